//! Tests of server certificates, which `openssl` makes.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::*;

/// A server without repositories, with a certificate for this name. Needs `openssl`.
struct Server {
    port: u16,
    folder: TempDir,
}

impl Server {
    /// Starts one whose certificate is signed by itself and, if `authority`, that of an authority, which is what
    /// `openssl` makes unless it is told otherwise.
    fn start(test: &str, name: &str, authority: bool) -> Option<Self> {
        let authority = if authority { "TRUE" } else { "FALSE" };
        let constraints = format!("basicConstraints=critical,CA:{authority}");
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
            .args(["-subj", "/CN=server", "-addext", &format!("subjectAltName={name}")])
            .args(["-addext", &constraints])
            .arg("-keyout")
            .arg(path("key"))
            .arg("-out")
            .arg(path("certificate"))
            .stderr(Stdio::null())
            .status();
        if !made.is_ok_and(|status| status.success()) {
            parts::skipped(test, "openssl");
            return None;
        }
        step_runner_web::use_ring();
        let certificate = CertificateDer::from_pem_file(path("certificate")).unwrap();
        let key = PrivateKeyDer::from_pem_file(path("key")).unwrap();
        let config = ServerConfig::builder().with_no_client_auth();
        let config = Arc::new(config.with_single_cert(vec![certificate], key).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // The thread ends with the test program.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
                let mut stream = StreamOwned::new(connection, stream);
                // Clients that do not trust it disconnect.
                if stream.read(&mut [0; 4096]).is_ok() {
                    let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                    stream.write_all(answer).and_then(|()| stream.flush()).ok();
                }
            }
        });
        Some(Self { port, folder })
    }

    fn client(&self) -> Client {
        let mut client = Client::default();
        let certificate = self.folder.path().join("certificate").to_str().unwrap().to_owned();
        client.variables.insert("SSL_CERT_FILE", certificate);
        client
    }
}

#[test]
fn a_server_is_trusted_once_it_or_its_authority_is_named() {
    for authority in [false, true] {
        let Some(server) = Server::start("a_server_is_trusted_once", "IP:127.0.0.1", authority) else {
            return;
        };
        let url = format!("https://127.0.0.1:{}/p", server.port);
        let message = error(&url, "main");
        assert!(message.contains("authority") && message.contains("SSL_CERT_FILE"), "{message}");
        let message = server.client().fetch(&url, "main").err().unwrap();
        assert!(message.contains("no such repository"), "{authority}: {message}");
    }
}

#[test]
fn a_certificate_for_another_host_is_not_taken() {
    for authority in [false, true] {
        let name = "DNS:example.com";
        let Some(server) = Server::start("a_certificate_for_another_host", name, authority) else { return };
        let message =
            server.client().fetch(&format!("https://127.0.0.1:{}/p", server.port), "main").err().unwrap();
        assert!(message.contains("for another host"), "{message}");
    }
}
