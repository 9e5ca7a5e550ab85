use std::net::TcpListener;

use super::*;

#[test]
fn the_digest_of_nothing_is_known() {
    let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(digest_of(b""), empty);
    assert_eq!(ImageVersion::digest(empty), Some(ImageVersion::Digest(empty.to_owned())));
}

#[test]
fn a_silent_registry_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Accepts connections and never answers. The thread ends with the test program.
    std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());

    let name = ImageName::new(&address.to_string(), "e", "1").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let network = Network::default();
    let certificates = certificates(&network).unwrap();
    let client = client(&network, &name, &certificates, Duration::from_millis(50)).unwrap();
    let reference = name.reference();
    let asked = client.pull_manifest_raw(&reference, &RegistryAuth::Anonymous, &[]);
    let error = runtime.block_on(asked).unwrap_err();
    let problem = error::of_library(error, false);
    assert!(matches!(problem, Problem::Silent), "{problem}");
}
