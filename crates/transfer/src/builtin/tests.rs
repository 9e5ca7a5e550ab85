//! Tests of writing and reading archives.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc;

use serde_json::json;

use super::archive::{self, Archive, Blob};
use super::layer::{self, LAYER_MEDIA_TYPE};
use super::*;
use crate::oci::digest_of;

fn environment(dir: &Path) -> BuiltinEnvironment<'static> {
    let scratch = dir.join("scratch");
    fs::create_dir_all(&scratch).unwrap();
    BuiltinEnvironment { work_dir: dir.to_owned(), scratch, variable: &|_| None, say: &|_| {} }
}

fn build(dir: &Path, inputs: &Json) -> Result<BuiltinValues, String> {
    build::build_archive(inputs.as_object().unwrap(), &environment(dir)).map_err(|error| error.to_string())
}

fn project() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in [("func.yml", "{}\n---\n"), ("out/amd64/tool", "amd"), ("out/arm64/tool", "arm")] {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

fn two_platforms() -> Json {
    json!({
        "version": "1.2.3",
        "common": {"files": {"func.yml": "func.yml"}},
        "platforms": {
            "linux/amd64": {"files": {"bin": "out/amd64"}},
            "linux/arm64": {"files": {"bin": "out/arm64"}, "variant": "v8"},
        },
    })
}

fn read(archive: &Archive, digest: &str) -> Json {
    let descriptor = oci_client::manifest::OciDescriptor {
        digest: digest.to_owned(),
        size: blob_size(archive, digest),
        ..Default::default()
    };
    serde_json::from_slice(&archive.manifest(&descriptor).unwrap()).unwrap()
}

fn blob_size(archive: &Archive, digest: &str) -> i64 {
    let hex = digest.strip_prefix("sha256:").unwrap();
    let mut reader = tar::Archive::new(File::open(archive.path()).unwrap());
    let mut entries = reader.entries().unwrap().map(Result::unwrap);
    entries.find(|entry| entry.path().unwrap().ends_with(hex)).unwrap().size() as i64
}

#[test]
fn an_archive_holds_an_index_with_an_image_for_each_platform() {
    let dir = project();
    let outputs = build(dir.path(), &two_platforms()).unwrap();
    assert_eq!((&outputs["archive"], &outputs["version"]), (&json!(ARCHIVE), &json!("1.2.3")));
    let archive = Archive::open(&dir.path().join(ARCHIVE)).unwrap();
    assert_eq!(archive.version(), "1.2.3");
    assert_eq!(outputs["digest"], archive.root().digest.as_str());
    let index: Json = serde_json::from_slice(&archive.manifest(archive.root()).unwrap()).unwrap();
    assert_eq!(index["annotations"], json!({"org.opencontainers.image.version": "1.2.3"}));
    let platforms: Vec<_> = index["manifests"].as_array().unwrap().iter().map(|m| &m["platform"]).collect();
    assert_eq!(
        platforms,
        [
            &json!({"os": "linux", "architecture": "amd64"}),
            &json!({"os": "linux", "architecture": "arm64", "variant": "v8"})
        ]
    );
    let images: Vec<_> = index["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|manifest| read(&archive, manifest["digest"].as_str().unwrap()))
        .collect();
    assert_eq!(images[0]["layers"][0], images[1]["layers"][0], "the common layer is shared");
    assert_ne!(images[0]["layers"][1], images[1]["layers"][1]);
    assert_eq!(images[0]["layers"][1]["mediaType"], LAYER_MEDIA_TYPE);
    let config = read(&archive, images[1]["config"]["digest"].as_str().unwrap());
    assert_eq!((&config["os"], &config["variant"]), (&json!("linux"), &json!("v8")));
    assert_eq!(config["rootfs"]["diff_ids"].as_array().unwrap().len(), 2);
}

#[test]
fn a_layer_holds_the_files_with_their_executable_bits() {
    use std::os::unix::fs::PermissionsExt;
    let dir = project();
    let tool = dir.path().join("out/amd64/tool");
    fs::set_permissions(tool, fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::symlink("tool", dir.path().join("out/amd64/alias")).unwrap();
    build(
        dir.path(),
        &json!({"version": "1.0.0", "common": {"files": {"bin": "out/amd64", "func.yml": "func.yml"}}}),
    )
    .unwrap();
    let archive = Archive::open(&dir.path().join(ARCHIVE)).unwrap();
    let index: Json = serde_json::from_slice(&archive.manifest(archive.root()).unwrap()).unwrap();
    assert_eq!(index["manifests"][0]["platform"], json!({"os": "generic", "architecture": "generic"}));
    let image = read(&archive, index["manifests"][0]["digest"].as_str().unwrap());
    let descriptor = serde_json::from_value(image["layers"][0].clone()).unwrap();
    let (file, start) = archive.blob(&descriptor).unwrap();
    let mut bytes = vec![0; descriptor.size as usize];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, start).unwrap();
    assert_eq!(digest_of(&bytes), descriptor.digest);
    let mut layer = tar::Archive::new(zstd::stream::read::Decoder::new(bytes.as_slice()).unwrap());
    let entries = layer.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let header = entry.header().clone();
        assert_eq!((header.mtime().unwrap(), header.uid().unwrap(), header.gid().unwrap()), (0, 0, 0));
        let path = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        format!("{path} {:o} {text}", header.mode().unwrap())
    });
    assert_eq!(
        entries.collect::<Vec<_>>(),
        ["bin 755 ", "bin/alias 777 ", "bin/tool 755 amd", "func.yml 644 {}\n---\n"]
    );
}

#[test]
fn the_same_files_give_the_same_bytes_and_an_archive_never_holds_itself() {
    let dir = project();
    let mut inputs = two_platforms();
    inputs["common"]["files"] = json!({".": "."});
    inputs["platforms"] = json!({});
    let bytes = || {
        build(dir.path(), &inputs).unwrap();
        fs::read(dir.path().join(ARCHIVE)).unwrap()
    };
    let first = bytes();
    fs::write(dir.path().join("func.yml"), "{}\n---\n").unwrap();
    assert!(bytes() == first, "the second build differs");
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "{left:?}");
}

#[test]
fn an_archive_of_an_earlier_build_is_packed_if_it_is_named() {
    let dir = project();
    fs::write(dir.path().join(ARCHIVE), "earlier").unwrap();
    let files = json!({"files": {"other.tar": ARCHIVE}});
    let inputs = json!({"version": "1.0.0", "common": files});
    let (named, again) = (build(dir.path(), &inputs).unwrap(), build(dir.path(), &inputs).unwrap());
    assert_ne!(named["digest"], again["digest"], "the second build packs what the first one wrote");
}

#[test]
fn what_unpacks_to_more_than_a_fetch_allows_is_not_built() {
    let dir = project();
    File::create(dir.path().join("zeros")).unwrap().set_len(70 << 20).unwrap();
    let inputs = json!({"version": "1.0.0", "common": {"files": {"zeros": "zeros"}}});
    let message = build(dir.path(), &inputs).unwrap_err();
    assert!(message.starts_with("common.files: this image could not be fetched: "), "{message}");
    assert!(message.contains("200 times its size"), "{message}");
    assert!(!dir.path().join(ARCHIVE).exists());
}

#[test]
fn an_image_has_a_version_and_files() {
    let dir = project();
    for (version, common, expected) in [
        ("1.2", json!({"files": {"func.yml": "func.yml"}}), "input \"version\": \"1.2\" is no version"),
        ("", json!({"files": {"func.yml": "func.yml"}}), "input \"version\": is empty"),
        ("1.2.3", json!({}), "the image for generic/generic would be empty"),
    ] {
        let message = build(dir.path(), &json!({"version": version, "common": common})).unwrap_err();
        assert!(message.contains(expected), "{message}");
    }
    assert!(!dir.path().join(ARCHIVE).exists());
}

#[test]
fn what_is_no_archive_or_a_spoilt_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.tar");
    let refused = |what: &str| {
        let message = Archive::open(&path).unwrap_err().to_string();
        assert!(message.contains(what), "{message}");
    };
    refused("cannot open the archive");
    fs::write(&path, [b'x'; 2000]).unwrap();
    refused("no OCI image layout as a tar archive");
    let write = |blobs: &[(String, &[u8])], index: &Json| {
        let blobs: BTreeMap<_, _> =
            blobs.iter().map(|(digest, bytes)| (digest.clone(), Blob::Bytes(bytes.to_vec()))).collect();
        archive::write(&path, &blobs, index.to_string().as_bytes()).unwrap();
    };
    write(&[], &json!([]));
    refused("index.json: ");
    let image = json!({"mediaType": "m", "digest": digest_of(b"x"), "size": 1,
        "annotations": {"org.opencontainers.image.ref.name": "1.0.0"}});
    let top = |images: Json| json!({"schemaVersion": 2, "manifests": images});
    write(&[], &top(json!([image, image])));
    refused("expected one image, found 2");
    let mut nameless = image.clone();
    nameless["annotations"] = json!(null);
    write(&[], &top(json!([nameless])));
    refused("has no annotation");
    for (content, expected) in [
        (None, "is missing"),
        (Some(b"y".as_slice()), "has other content than its name says"),
        (Some(b"xx".as_slice()), "has another size than described"),
    ] {
        let blobs: Vec<_> = content.iter().map(|bytes| (digest_of(b"x"), *bytes)).collect();
        write(&blobs, &top(json!([image])));
        let archive = Archive::open(&path).unwrap();
        let message = archive.manifest(archive.root()).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

/// Starts a registry that has nothing. Returns its address, and the first lines of all requests.
fn empty_registry() -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, requests) = mpsc::channel();
    // The thread ends with the test program.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map(Result::unwrap) {
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            sender.send(line).ok();
            let answer = "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(answer.as_bytes()).ok();
        }
    });
    (address, requests)
}

#[test]
fn an_archive_that_could_not_be_fetched_is_not_published() {
    let dir = tempfile::tempdir().unwrap();
    let mut packer = tar::Builder::new(zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap());
    let mut header = layer::header();
    header.set_size(70 << 20);
    header.set_mode(0o644);
    packer.append_data(&mut header, "zeros", io::repeat(0).take(70 << 20)).unwrap();
    let layer = packer.into_inner().unwrap().finish().unwrap();
    let manifest = json!({"schemaVersion": 2,
        "config": {"mediaType": "config", "digest": digest_of(b"{}"), "size": 2},
        "layers": [{"mediaType": LAYER_MEDIA_TYPE, "digest": digest_of(&layer), "size": layer.len()}]});
    let manifest = manifest.to_string().into_bytes();
    let index = json!({"schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest_of(&manifest),
        "size": manifest.len(), "annotations": {"org.opencontainers.image.ref.name": "1.0.0"}}]});
    let blobs = [layer, manifest, b"{}".to_vec()].map(|bytes| (digest_of(&bytes), Blob::Bytes(bytes)));
    archive::write(&dir.path().join(ARCHIVE), &blobs.into(), index.to_string().as_bytes()).unwrap();
    let (address, requests) = empty_registry();
    let inputs = json!({"archive": ARCHIVE, "to_repository": format!("{address}/g/x")});
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (inputs, environment) = (inputs.as_object().unwrap(), environment(dir.path()));
    let message = runtime.block_on(publish::publish(inputs, &environment)).unwrap_err().to_string();
    assert!(message.contains("function-image.tar: this image could not be fetched: "), "{message}");
    assert!(requests.try_iter().all(|line| line.starts_with("GET ")), "something was pushed");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 64, ..Default::default() })]

    /// Reading an archive always ends with an answer, whatever its damage.
    #[test]
    fn a_damaged_archive_is_refused_or_read(
        changes in proptest::collection::vec((0_usize..8192, proptest::prelude::any::<u8>()), 1..20),
        length in 0_usize..20_000,
    ) {
        let dir = project();
        build(dir.path(), &two_platforms()).unwrap();
        let path = dir.path().join(ARCHIVE);
        let mut bytes = fs::read(&path).unwrap();
        for (at, byte) in changes {
            let len = bytes.len();
            bytes[at % len] = byte;
        }
        bytes.truncate(length);
        fs::write(&path, bytes).unwrap();
        if let Ok(archive) = Archive::open(&path) {
            archive.manifest(archive.root()).ok();
        }
    }
}
