use rustls::pki_types::pem::PemObject;

use super::*;

/// Certificate of `registry.example.com`, made by `openssl req -x509`: signed by itself, and that of an authority.
const OWN: &[u8] = include_bytes!("../../../../tests/support/tls/own.pem");
/// Another one with the same names.
const OTHER: &[u8] = include_bytes!("../../../../tests/support/tls/own_other.pem");
/// One with the same names and key, which has expired.
const EXPIRED: &[u8] = include_bytes!("../../../../tests/support/tls/own_expired.pem");
/// One that [`AUTHORITY`] signed.
const ISSUED: &[u8] = include_bytes!("../../../../tests/support/tls/registry.pem");
const AUTHORITY: &[u8] = include_bytes!("../../../../tests/support/tls/authority.pem");

fn certificate(pem: &[u8]) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem).unwrap()
}

/// Verifies `server` for `name`, so many seconds from now.
fn verified(trusted: &[&[u8]], server: &[u8], name: &str, later: i64) -> Result<(), TlsFault> {
    use_ring();
    let verifier = verifier(trusted.iter().map(|pem| certificate(pem)).collect()).unwrap();
    let now = UnixTime::now().as_secs().checked_add_signed(later).unwrap();
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now));
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let verified = verifier.verify_server_cert(&certificate(server), &[], &name, &[], now);
    verified.map(drop).map_err(|error| TlsFault::of(&error))
}

#[test]
fn fault_113_a_trusted_certificate_that_is_the_servers_own_is_accepted() {
    const NAME: &str = "registry.example.com";
    const YEARS: i64 = 200 * 366 * 24 * 3600;
    for (trusted, server, name, later, expected) in [
        (&[OWN][..], OWN, NAME, 0, Ok(())),
        (&[AUTHORITY, OWN], OWN, NAME, 0, Ok(())),
        (&[AUTHORITY], ISSUED, NAME, 0, Ok(())),
        // Trusted itself, without its authority.
        (&[ISSUED], ISSUED, NAME, 0, Ok(())),
        (&[OWN], OWN, "other.example.com", 0, Err(TlsFault::Host)),
        (&[ISSUED], ISSUED, "other.example.com", 0, Err(TlsFault::Host)),
        (&[OWN], OWN, "127.0.0.1", 0, Err(TlsFault::Host)),
        (&[OWN], OWN, NAME, YEARS, Err(TlsFault::Time)),
        (&[OWN], OWN, NAME, -YEARS / 4, Err(TlsFault::Time)),
        (&[ISSUED], ISSUED, NAME, YEARS, Err(TlsFault::Time)),
        (&[EXPIRED], EXPIRED, NAME, 0, Err(TlsFault::Time)),
        (&[OWN, OTHER], EXPIRED, NAME, 0, Err(TlsFault::Time)),
        (&[OTHER], OWN, NAME, 0, Err(TlsFault::Untrusted)),
        (&[AUTHORITY], OWN, NAME, 0, Err(TlsFault::Untrusted)),
        (&[OWN], ISSUED, NAME, 0, Err(TlsFault::Untrusted)),
    ] {
        assert_eq!(verified(trusted, server, name, later), expected, "{name} {later}");
    }
}

#[test]
fn without_a_usable_certificate_there_are_no_settings() {
    assert!(matches!(config(Vec::new(), None), Err(WebError::NoCertificates(_))));
    let broken = CertificateDer::from(b"no certificate".to_vec());
    assert!(matches!(config(vec![broken], None), Err(WebError::NoCertificates(_))));
}
