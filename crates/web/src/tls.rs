//! TLS to servers: which certificates are accepted, and what is wrong with the others.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::{WebError, use_ring};

/// Reasons for which a server's certificate or TLS is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFault {
    /// Neither the certificate nor one that it leads to is trusted.
    #[error(
        "the server's certificate was issued by an authority that is not known, or by the server itself: if the \
         server is to be trusted, set SSL_CERT_FILE to a file with the certificate of the authority or of the server"
    )]
    Untrusted,
    /// The certificate is not valid now.
    #[error(
        "the server's certificate has expired or is not valid yet: check the server, and this machine's clock"
    )]
    Time,
    /// The certificate has other names.
    #[error(
        "the server's certificate is for another host: check the host's name, which the certificate must have as \
         subjectAltName"
    )]
    Host,
    /// Any other fault.
    #[error(
        "no TLS connection can be made: check that the server speaks HTTPS at this port, and its certificate"
    )]
    Other,
}

impl TlsFault {
    pub(super) fn of(error: &Error) -> Self {
        use CertificateError::{
            Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet, NotValidYetContext,
        };
        match error {
            error if is_untrusted(error) => Self::Untrusted,
            Error::InvalidCertificate(
                Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. },
            ) => Self::Time,
            Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => Self::Host,
            _ => Self::Other,
        }
    }
}

/// A client's own certificate with its chain, and its key.
pub(super) type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Returns settings that trust servers whose certificate is one of `trusted`, or was issued by one of them. A client
/// with an `identity` shows it to servers that ask.
///
/// # Errors
/// None of the certificates is usable, or the identity's key does not fit its certificate.
pub(super) fn config(
    trusted: Vec<CertificateDer<'static>>,
    identity: Option<Identity>,
) -> Result<ClientConfig, WebError> {
    use_ring();
    let verifier = Arc::new(verifier(trusted)?);
    let config = ClientConfig::builder().dangerous().with_custom_certificate_verifier(verifier);
    match identity {
        None => Ok(config.with_no_client_auth()),
        Some((chain, key)) => config.with_client_auth_cert(chain, key).map_err(WebError::Identity),
    }
}

fn verifier(trusted: Vec<CertificateDer<'static>>) -> Result<Verifier, WebError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(trusted.iter().cloned());
    let chains = WebPkiServerVerifier::builder(Arc::new(roots)).build();
    Ok(Verifier { chains: chains.map_err(WebError::NoCertificates)?, trusted })
}

/// Verifies chains of certificates as usual, and also accepts a server's certificate that is trusted itself.
///
/// A certificate of `openssl req -x509` is that of an authority. The usual verification refuses it for a server, though
/// the user named exactly this certificate.
#[derive(Debug)]
struct Verifier {
    chains: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.chains.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The verification looks at the time first, so a certificate that has expired never gets here.
            Err(error) if is_untrusted(&error) && self.trusted.contains(end_entity) => {
                let certificate = ParsedCertificate::try_from(end_entity)?;
                rustls::client::verify_server_name(&certificate, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// True if a valid certificate leads to no trusted authority, or is that of an authority itself.
fn is_untrusted(error: &Error) -> bool {
    match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => true,
        Error::InvalidCertificate(CertificateError::Other(other)) => {
            other.0.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
