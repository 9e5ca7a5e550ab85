//! Registries for tests: the real one of Docker's distribution, and one with scripted answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};

use oci_client::manifest::{OciDescriptor, OciManifest};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use step_runner::oci::{Access, ImageName, ImageVersion, Registry, digest_of};
use step_runner::web::Network;

use super::{PATIENCE, parts};

pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const STEP_LAYER: &str = "application/vnd.gitlab.step.layer.v1.tar+zstd";
pub(crate) const GZIP_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub(crate) const PLAIN_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// User and password of the protected registry.
pub(crate) const USER: &str = "user";
pub(crate) const PASSWORD: &str = "secret";

/// Output of `htpasswd -nbB user secret`.
const HTPASSWD: &str = "user:$2y$05$/aai2uTYY2q9L7m6u7ZP8eQS6kM5CDyb9zgq8uTzuVhpDAqezNwju\n";

/// A running `docker-registry` on the loopback with its own store.
pub(crate) struct DockerRegistry {
    child: Child,
    /// The registry's address, `127.0.0.1:port`.
    pub(crate) address: String,
    docker_config: Option<String>,
    _dir: tempfile::TempDir,
}

impl DockerRegistry {
    /// Starts a registry. Returns `None` and reports that if the program is missing.
    pub(crate) fn start() -> Option<Self> {
        Self::start_as(false)
    }

    /// Starts a registry that requires [`USER`] and [`PASSWORD`].
    pub(crate) fn start_protected() -> Option<Self> {
        Self::start_as(true)
    }

    fn start_as(protected: bool) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let mut config = json!({
            "version": "0.1",
            "log": {"level": "info", "formatter": "json"},
            "storage": {"filesystem": {"rootdirectory": file("data")}},
            "http": {"addr": "127.0.0.1:0"},
        });
        if protected {
            std::fs::write(file("htpasswd"), HTPASSWD).unwrap();
            config["auth"] = json!({"htpasswd": {"realm": "tests", "path": file("htpasswd")}});
        }
        std::fs::write(file("config.yml"), config.to_string()).unwrap();
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(file("config.yml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                parts::skipped("a registry", "docker-registry");
                return None;
            }
            Err(error) => panic!("docker-registry: {error}"),
        };
        let said = BufReader::new(child.stderr.take().unwrap());
        let (sender, ready) = mpsc::channel();
        // Reads its output to the end, so that the registry never blocks on a full pipe.
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                let Ok(line) = serde_json::from_str::<Value>(&line) else { continue };
                let said = line["msg"].as_str().unwrap_or_default();
                if let Some(address) = said.strip_prefix("listening on ") {
                    sender.send(address.to_owned()).ok();
                }
            }
        });
        let address = ready.recv_timeout(PATIENCE).unwrap();
        let docker_config = protected.then(|| docker_config(&address, USER, PASSWORD));
        Some(Self { child, address, docker_config, _dir: dir })
    }

    /// Pushes an image of these layers, each with media type and content, as `repository:tag`. Returns its digest.
    pub(crate) fn push(&self, repository: &str, tag: &str, layers: &[(&str, Vec<u8>)]) -> String {
        self.in_repository(repository, async |registry| {
            let mut descriptors = Vec::new();
            for (media_type, bytes) in layers {
                let digest = push_blob(registry, bytes).await;
                descriptors.push(json!({"mediaType": media_type, "digest": digest, "size": bytes.len()}));
            }
            let digest = push_blob(registry, b"{}").await;
            let manifest = json!({
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest, "size": 2},
                "layers": descriptors,
            });
            put(registry, tag, &manifest, MANIFEST).await
        })
    }

    /// Pushes an index that names a manifest for each platform (`os/architecture[/variant]`).
    pub(crate) fn push_index(&self, repository: &str, tag: &str, images: &[(&str, String)]) -> String {
        self.in_repository(repository, async |registry| {
            let mut entries = Vec::new();
            for (platform, digest) in images {
                let found = registry.manifest(&ImageVersion::digest(digest).unwrap()).await.unwrap();
                assert!(matches!(found.content, OciManifest::Image(_)));
                let mut parts = platform.split('/');
                let mut platform = json!({"os": parts.next(), "architecture": parts.next()});
                if let Some(variant) = parts.next() {
                    platform["variant"] = variant.into();
                }
                let size = found.bytes.len();
                entries.push(
                    json!({"mediaType": MANIFEST, "digest": digest, "size": size, "platform": platform}),
                );
            }
            let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});
            put(registry, tag, &index, INDEX).await
        })
    }

    fn in_repository<T>(&self, repository: &str, work: impl AsyncFnOnce(&mut Registry) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let name = ImageName::new(&self.address, repository, "").unwrap();
            let (network, config) = (Network::default(), self.docker_config.as_deref());
            let mut registry = Registry::open(&network, &name, config, Access::Push).unwrap();
            work(&mut registry).await
        })
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Pushes a blob unless it exists. Returns its digest.
async fn push_blob(registry: &mut Registry, content: &[u8]) -> String {
    let (digest, size) = (digest_of(content), content.len() as i64);
    if !registry.has_blob(&digest).await.unwrap() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        let blob = OciDescriptor { digest: digest.clone(), size, ..OciDescriptor::default() };
        registry.push_file(&blob, file, 0).await.unwrap();
    }
    digest
}

async fn put(registry: &Registry, tag: &str, content: &Value, media_type: &'static str) -> String {
    let bytes = content.to_string().into_bytes();
    let digest = digest_of(&bytes);
    let pushed = registry.push_manifest(&ImageVersion::tag(tag).unwrap(), bytes, media_type).await.unwrap();
    assert_eq!(pushed, digest);
    digest
}

/// Returns a `DOCKER_AUTH_CONFIG` with one entry.
pub(crate) fn docker_config(key: &str, user: &str, password: &str) -> String {
    json!({"auths": {key: {"username": user, "password": password}}}).to_string()
}

/// A server that answers each request with the bytes that `script` returns for its head, then closes the connection.
pub(crate) struct Scripted {
    /// The server's address, `127.0.0.1:port`.
    pub(crate) address: String,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Scripted {
    pub(crate) fn start(script: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::listen(move |connection, seen| answer(connection, &script, seen))
    }

    /// Starts a proxy that connects only to `registry.example.com`, whose certificate is signed by [`authority`].
    pub(crate) fn behind_proxy(script: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::behind_proxy_as("registry.pem", "registry.key", script)
    }

    /// Like [`Self::behind_proxy`], with this certificate and key of `tests/support/tls`.
    pub(crate) fn behind_proxy_as(
        certificate: &str,
        key: &str,
        script: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let tls = Arc::new(tls(certificate, key));
        Self::listen(move |mut connection, seen| {
            answer(&mut connection, &|_| b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), seen);
            let session = ServerConnection::new(Arc::clone(&tls)).unwrap();
            let mut stream = StreamOwned::new(session, connection);
            answer(&mut stream, &script, seen);
            stream.conn.send_close_notify();
            stream.flush().ok();
        })
    }

    fn listen(serve: impl Fn(TcpStream, &Mutex<Vec<String>>) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let (serve, seen) = (Arc::new(serve), Arc::clone(&heads));
        // Ends with the test program.
        std::thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let (serve, seen) = (Arc::clone(&serve), Arc::clone(&seen));
                std::thread::spawn(move || serve(connection, &seen));
            }
        });
        Self { address, heads }
    }

    /// Starts a registry that gives `faults`, one after the other, to the first requests whose heads hold `to`. An empty
    /// one closes the connection.
    pub(crate) fn failing_first(
        to: &'static str,
        faults: Vec<Vec<u8>>,
        script: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let faults = Mutex::new(faults.into_iter());
        Self::start(move |head| {
            let fault = if head.contains(to) { faults.lock().unwrap().next() } else { None };
            fault.unwrap_or_else(|| script(head))
        })
    }

    /// Returns the heads of the requests so far.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

/// Returns the path of the certificate of the authority that signed the one of `registry.example.com`.
pub(crate) fn authority() -> PathBuf {
    certificate("authority.pem")
}

/// Returns the path of a file of `tests/support/tls`.
pub(crate) fn certificate(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/tls").join(name)
}

fn tls(certificate_name: &str, key_name: &str) -> ServerConfig {
    step_runner::web::use_ring();
    let certificate = CertificateDer::from_pem_file(self::certificate(certificate_name)).unwrap();
    let key = PrivateKeyDer::from_pem_file(self::certificate(key_name)).unwrap();
    ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap()
}

fn answer(mut connection: impl Read + Write, script: &dyn Fn(&str) -> Vec<u8>, seen: &Mutex<Vec<String>>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && connection.read(&mut byte).is_ok_and(|read| read == 1) {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    seen.lock().unwrap().push(head.clone());
    connection.write_all(&script(&head)).ok();
    connection.flush().ok();
}

/// Returns an answer with a body. Each of `headers` ends with its line end.
pub(crate) fn response(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n");
    [head.as_bytes(), body].concat()
}
