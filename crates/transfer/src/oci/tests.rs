use std::net::TcpListener;
use std::time::Duration;

use super::*;

#[test]
fn a_silent_registry_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Accepts connections and never answers. The thread ends with the test program.
    std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());

    let name = ImageName::new(&address.to_string(), "e", "1").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let network = Network::default();
    let client = network.client(&network.tls().unwrap(), Some(Duration::from_millis(50))).unwrap();
    let clients = [client.clone(), client];
    let base = name.base().unwrap();
    let sender = (&network, clients);
    let session =
        Session::with_clients(base, name.repository(), sender, Credentials::Anonymous, Access::Pull);
    let registry = Registry { name, session };
    let error = runtime.block_on(registry.manifest(registry.name().version())).unwrap_err();
    assert!(matches!(error.problem, Problem::Silent), "{error}");
}

#[test]
fn an_answer_of_another_form_is_refused_with_the_parsers_reason() {
    let error = serde_json::from_str::<Tags>("{\"tags\": [1]}").map(drop).unwrap_err();
    let text = Problem::no_json("its list of tags is none", &error).to_string();
    assert!(text.contains("its list of tags is none: invalid type"), "{text}");
    assert!(text.contains("line 1 column 11"), "{text}");
}
