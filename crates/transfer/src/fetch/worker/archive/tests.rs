use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use proptest::prelude::*;
use tar::{Builder, Header};

use super::*;
use crate::fetch::order::Stats;
use crate::fetch::worker::site::Site;

impl Site {
    /// Unpacks the layers and checks that nothing outside has changed.
    fn unpack(&self, layers: &[Vec<u8>]) -> Result<(), FetchFailure> {
        let mut tree = self.writer();
        let done = layers.iter().try_for_each(|layer| unpack(Packing::Plain, layer.as_slice(), &mut tree));
        assert!(self.is_untouched());
        done
    }
}

/// An archive whose headers a test can choose freely. Names are written unchanged.
#[derive(Default)]
struct Crafted {
    bytes: Vec<u8>,
}

impl Crafted {
    fn entry(self, kind: EntryType, path: &str, link: &str, mode: u32, content: &[u8]) -> Self {
        self.sized(kind, path, link, mode, content.len() as u64, content)
    }

    fn sized(
        mut self,
        kind: EntryType,
        path: &str,
        link: &str,
        mode: u32,
        size: u64,
        content: &[u8],
    ) -> Self {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size);
        let raw = header.as_mut_bytes();
        raw[..path.len()].copy_from_slice(path.as_bytes());
        raw[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, path: &str, content: &str) -> Self {
        self.entry(EntryType::Regular, path, "", 0o644, content.as_bytes())
    }

    fn folder(self, path: &str) -> Self {
        self.entry(EntryType::Directory, path, "", 0o755, b"")
    }

    fn link(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, path, target, 0o777, b"")
    }

    fn hard_link(self, path: &str, original: &str) -> Self {
        self.entry(EntryType::Link, path, original, 0o644, b"")
    }

    fn pax(self, records: &[(&str, &str)]) -> Self {
        let content = pax_records(records);
        self.entry(EntryType::XHeader, "pax", "", 0o644, &content)
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(&[0; 1024]);
        self.bytes
    }
}

fn pax_records(records: &[(&str, &str)]) -> Vec<u8> {
    let record = |(key, value): &(&str, &str)| {
        let rest = format!(" {key}={value}\n");
        let digits = (1..9).find(|digits| (rest.len() + digits).to_string().len() == *digits).unwrap();
        format!("{}{rest}", rest.len() + digits)
    };
    records.iter().map(record).collect::<String>().into_bytes()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(bytes, 1).unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn every_packing_unpacks_to_the_same_tree() {
    let plain = Crafted::default()
        .folder("./")
        .folder("./bin/")
        .entry(EntryType::Regular, "bin/run", "", 0o4755, b"#!/bin/sh\n")
        .entry(EntryType::Regular, "bin/data", "", 0o600, b"x")
        .link("run", "bin/run")
        .end();
    for (media_type, packed) in [
        ("application/vnd.oci.image.layer.v1.tar", plain.clone()),
        ("application/vnd.oci.image.layer.v1.tar+gzip", gzip(&plain)),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", gzip(&plain)),
        ("application/vnd.oci.image.layer.v1.tar+zstd", zstd(&plain)),
        ("application/vnd.gitlab.step.layer.v1.tar+zstd", zstd(&plain)),
    ] {
        let site = Site::new();
        let mut tree = site.writer();
        unpack(Packing::of_media_type(media_type).unwrap(), packed.as_slice(), &mut tree).unwrap();
        assert_eq!(tree.finish().unwrap().files, 2, "{media_type}");
        let mode = |path: &str| fs::metadata(site.root().join(path)).unwrap().permissions().mode();
        assert_eq!(mode("bin/run"), 0o100_555, "executable, and not setuid");
        assert_eq!(mode("bin/data"), 0o100_444);
        assert_eq!(site.text("run"), "#!/bin/sh\n");
    }
    assert_eq!(Packing::of_media_type("application/vnd.wasm.content.layer.v1+wasm"), None);
}

#[test]
fn long_names_arrive_whole_in_both_forms() {
    let long = ["n".repeat(150), "m".repeat(120)].join("/");
    for gnu in [true, false] {
        let site = Site::new();
        let mut builder = Builder::new(Vec::new());
        let mut header = if gnu { Header::new_gnu() } else { Header::new_ustar() };
        header.set_size(4);
        header.set_mode(0o644);
        if gnu {
            builder.append_data(&mut header, &long, &b"four"[..]).unwrap();
        } else {
            builder.append_pax_extensions([("path", long.as_bytes())]).unwrap();
            builder.append_data(&mut header, "short", &b"four"[..]).unwrap();
        }
        site.unpack(&[builder.into_inner().unwrap()]).unwrap();
        assert_eq!(site.text(&long), "four");
    }
}

/// Forms of archives that have escaped their folder in other programs.
#[test]
fn fault_69_archives_that_reach_out_are_refused_by_name() {
    let a = Crafted::default;
    let dangerous = [
        ("../canary", a().file("../canary", "bad")),
        ("a/../../canary", a().folder("a/").file("a/../../canary", "bad")),
        ("./../canary", a().file("./../canary", "bad")),
        ("/tmp/absolute", a().file("/tmp/absolute", "bad")),
        ("//double", a().file("//double", "bad")),
        ("..", a().folder("..")),
        ("../newdir/", a().folder("../newdir/")),
        // The folder becomes a link between two entries.
        ("d/canary", a().folder("d/").file("d/x", "").link("d", "e").file("d/canary", "bad")),
        ("hard", a().hard_link("hard", "../canary")),
        ("hard", a().hard_link("hard", "/etc/passwd")),
        ("hard", a().hard_link("hard", "absent")),
        ("hard", a().hard_link("hard", "hard")),
        ("hard", a().folder("d/").hard_link("hard", "d")),
        ("hard", a().hard_link("hard", ".")),
        ("hard", a().file("x", "").link("l", "x").hard_link("hard", "l")),
        ("hard", a().folder("d/").file("d/x", "").link("l", "d").hard_link("hard", "l/x")),
        ("../hard", a().file("x", "").hard_link("../hard", "x")),
        ("/dev/x", a().entry(EntryType::Char, "/dev/x", "", 0o644, b"")),
        ("../pipe", a().entry(EntryType::Fifo, "../pipe", "", 0o644, b"")),
        ("../l", a().link("../l", "/etc")),
        ("odd", a().entry(EntryType::new(b'Z'), "odd", "", 0o644, b"")),
        ("../canary", a().pax(&[("path", "../canary")]).file("good", "bad")),
        ("/tmp/pax", a().pax(&[("path", "/tmp/pax")]).file("good", "bad")),
        ("good", a().pax(&[("path", "good"), ("path", "../canary")]).file("x", "bad")),
        ("x", a().pax(&[("size", "0"), ("size", "3")]).file("x", "bad")),
        ("x", a().pax(&[("size", "-1")]).file("x", "bad")),
        ("x", a().pax(&[("GNU.sparse.realsize", "9")]).file("x", "bad")),
        ("x", a().entry(EntryType::XHeader, "pax", "", 0, b"nonsense\n").file("x", "bad")),
        ("hole", a().entry(EntryType::GNUSparse, "hole", "", 0o644, b"")),
        ("../canary", a().file("../.wh.canary", "")),
        ("..", a().file(".wh...", "")),
        ("a/.wh.", a().file("a/.wh.", "")),
        ("../", a().file("../.wh..wh..opq", "")),
    ];
    for (name, archive) in dangerous {
        let site = Site::new();
        let Err(error) = site.unpack(&[archive.end()]) else { panic!("{name} is taken") };
        assert_eq!(error.class, Class::Fetch, "{name}");
        let known = error.message.contains(name) || error.message.contains("GNU header");
        assert!(known, "{name}: {}", error.message);
    }
}

#[test]
fn fault_69_what_leads_outside_or_is_no_file_is_left_out() {
    let a = Crafted::default;
    let ordinary = [
        ("through", a().link("through", "..").file("through/canary", "good")),
        ("abs", a().link("abs", "/etc").file("abs/passwd", "good")),
        ("a/b/up", a().folder("a/b/").link("a/b/up", "../../..").file("a/b/up/canary", "good")),
        // By its text each link stays inside, but the second one leaves through the first.
        ("two", a().folder("a/b/").link("a/b/root", "../..").link("two", "a/b/root/../canary")),
        ("l", a().pax(&[("linkpath", "../canary")]).link("l", "good")),
        ("dev", a().entry(EntryType::Char, "dev", "", 0o644, b"")),
        ("dev", a().entry(EntryType::Block, "dev", "", 0o644, b"")),
        ("pipe", a().entry(EntryType::Fifo, "pipe", "", 0o644, b"")),
        // A skipped entry still removes what was at its path before.
        ("x", a().file("x", "old").link("x", "/etc/passwd")),
        ("d", a().file("d/x", "old").entry(EntryType::Fifo, "d", "", 0o644, b"")),
    ];
    for (name, archive) in ordinary {
        let site = Site::new();
        site.unpack(&[archive.file("good", "good").end()]).unwrap();
        assert_eq!(site.text("good"), "good");
        let found = fs::symlink_metadata(site.root().join(name));
        assert!(found.is_err() || found.unwrap().is_dir(), "{name}");
        assert!(links_stay(&fs::canonicalize(site.root()).unwrap(), &site.root()));
    }
}

#[test]
fn a_hard_link_is_a_file_of_its_own() {
    let first = Crafted::default().entry(EntryType::Regular, "bin/a", "", 0o755, b"content").end();
    let second = Crafted::default().hard_link("b", "bin/a").hard_link("./c", "./b").hard_link("c", "c").end();
    let site = Site::new();
    let mut tree = site.writer();
    for layer in [first, second] {
        unpack(Packing::Plain, layer.as_slice(), &mut tree).unwrap();
    }
    for path in ["bin/a", "b", "c"] {
        let found = fs::metadata(site.root().join(path)).unwrap();
        assert_eq!((site.text(path).as_str(), found.nlink(), found.mode() & 0o777), ("content", 1, 0o555));
    }
    assert_eq!(tree.finish().unwrap(), Stats { files: 3, entries: 4, bytes: 21 });
}

#[test]
fn fault_69_names_with_nul_and_global_extensions_that_mean_something_are_refused() {
    let long = |content: &[u8]| {
        Crafted::default().entry(EntryType::GNULongName, "././@LongLink", "", 0, content).file("x", "bad")
    };
    let site = Site::new();
    assert_eq!(site.unpack(&[long(b"a\0/../../canary\0").end()]).unwrap_err().class, Class::Fetch);
    assert_eq!(site.unpack(&[long(b"../canary\0").end()]).unwrap_err().class, Class::Fetch);

    let global = |records: &[(&str, &str)]| {
        let content = pax_records(records);
        Crafted::default().entry(EntryType::XGlobalHeader, "g", "", 0, &content).file("x", "good").end()
    };
    assert!(site.unpack(&[global(&[("path", "../canary")])]).is_err());
    assert!(site.unpack(&[global(&[("size", "0")])]).is_err());
    site.unpack(&[global(&[("comment", "0123456789abcdef")])]).unwrap();
    assert_eq!(site.text("x"), "good");
}

/// RUSTSEC-2025-0111 and similar: a reader that trusts the header's size sees another archive inside a file.
#[test]
fn fault_69_the_size_of_the_extension_counts_for_everything_that_follows() {
    let hidden = Crafted::default().file("../canary", "bad").end();
    let size = hidden.len().to_string();
    let archive = Crafted::default()
        .pax(&[("size", &size)])
        .sized(EntryType::Regular, "outer", "", 0o644, 0, &hidden)
        .file("after", "good")
        .end();
    let site = Site::new();
    site.unpack(&[archive]).unwrap();
    assert_eq!(fs::read(site.root().join("outer")).unwrap(), hidden);
    assert_eq!(site.text("after"), "good");
}

#[test]
fn a_later_layer_replaces_and_removes_what_earlier_ones_have() {
    let first = Crafted::default()
        .file("keep", "1")
        .file("change", "1")
        .file("gone", "1")
        .file("d/old", "1")
        .file("d/sub/old", "1")
        .file("e/x", "1")
        .link("l", "keep")
        .end();
    let second = Crafted::default()
        .file("change", "2")
        .file("d/new", "2")
        .file(".wh.gone", "")
        // This whiteout comes after an entry of its own layer.
        .file("d/.wh..wh..opq", "")
        .file(".wh.change", "")
        .file(".wh..wh.plnk", "")
        .file(".wh.e", "")
        .file("l", "2")
        .end();
    let site = Site::new();
    site.unpack(&[first, second]).unwrap();
    assert_eq!(site.text("change"), "2");
    assert_eq!(site.text("d/new"), "2");
    assert_eq!(site.text("l"), "2");
    assert_eq!(site.text("keep"), "1", "not written through the link");
    for gone in ["gone", "d/old", "d/sub", "e", ".wh.gone", ".wh..wh.plnk"] {
        assert!(!site.has(gone), "{gone}");
    }
}

#[test]
fn whiteouts_in_folders_of_whiteouts_leave_what_their_layer_has() {
    let first = ["a/old", "a/b/old", "a/b/c/old", "gone/x", "gone/y/z"]
        .into_iter()
        .fold(Crafted::default(), |archive, path| archive.file(path, "1"))
        .end();
    let second = Crafted::default()
        .file("a/b/new", "2")
        .file("a/b/.wh..wh..opq", "")
        .file("a/b/.wh.c", "")
        .file("a/.wh..wh..opq", "")
        .file("a/b/.wh..wh..opq", "")
        .file("a/.wh.b", "")
        .file(".wh.gone", "")
        .file("gone/new", "2")
        .file("gone/.wh.new", "")
        .file("gone/.wh..wh..opq", "")
        .file("./.wh.gone", "")
        .end();
    let third = Crafted::default().file(".wh..wh..opq", "").file("top", "3").file(".wh.top", "").end();
    let site = Site::new();
    site.unpack(&[first, second]).unwrap();
    assert_eq!((site.text("a/b/new"), site.text("gone/new")), ("2".to_owned(), "2".to_owned()));
    for gone in ["a/old", "a/b/old", "a/b/c", "gone/x", "gone/y"] {
        assert!(!site.has(gone), "{gone}");
    }
    site.unpack(&[third]).unwrap();
    assert!(site.has("top") && !site.has("a") && !site.has("gone"));
}

fn zeros(count: u64) -> impl Read {
    io::repeat(0).take(count)
}

#[test]
fn fault_69_bombs_are_stopped_early() {
    // 10 GiB of zeros in less than 1 MiB, at the cost of packing 64 MiB once.
    let block = zeros(64 << 20);
    let frame = zstd::stream::encode_all(block, 1).unwrap();
    let head = Crafted::default().sized(EntryType::Regular, "bomb", "", 0o644, 10 << 30, b"").bytes;
    let mut packed = zstd(&head);
    (0..160).for_each(|_| packed.extend_from_slice(&frame));
    assert!(packed.len() < 1 << 20, "{}", packed.len());
    let site = Site::new();
    let mut tree = site.writer();
    let error = unpack(Packing::Zstd, packed.as_slice(), &mut tree).unwrap_err();
    assert_eq!(error.class, Class::Limit, "{}", error.message);
    assert!(error.message.contains("200 times"), "{}", error.message);
    assert!(fs::metadata(site.root().join("bomb")).unwrap().len() <= 65 << 20);
}

#[test]
fn a_check_refuses_what_unpacking_refuses() {
    let refused = |layer: &[u8]| check(Packing::Zstd, zstd(layer).as_slice()).err().map(|end| end.message);
    let whole = Crafted::default().folder("./").file("a", "x").link("b", "a").file(".wh.c", "").end();
    assert_eq!(refused(&whole), None);
    let large = Crafted::default().entry(EntryType::Regular, "a", "", 0o644, &vec![0; 70 << 20]).end();
    for (layer, says) in [
        (large, "200 times"),
        (Crafted::default().file("../a", "x").end(), "holds . or .."),
        (Crafted::default().pax(&[("path", &"d/".repeat(2000))]).file("a", "x").end(), "longer than 2048"),
        (b"no archive".repeat(100), "no valid archive"),
    ] {
        let message = refused(&layer).unwrap();
        assert!(message.contains(says), "{message}");
    }
}

#[test]
fn fault_69_headers_that_would_fill_memory_are_refused() {
    for kind in [EntryType::GNULongName, EntryType::XHeader, EntryType::XGlobalHeader] {
        let head = Crafted::default().sized(kind, "x", "", 0, 1 << 40, b"").bytes;
        let mut tree = Site::new().writer();
        let endless = io::Cursor::new(head).chain(zeros(1 << 40));
        let error = unpack(Packing::Plain, endless, &mut tree).unwrap_err();
        assert_eq!(error.class, Class::Limit, "{}", error.message);
        assert!(error.message.contains("larger than 1 MiB"), "{}", error.message);
    }
}

#[test]
fn fault_69_a_window_larger_than_the_limit_is_refused() {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(MAX_WINDOW_LOG + 1).unwrap();
    encoder.long_distance_matching(false).unwrap();
    encoder.include_contentsize(false).unwrap();
    encoder.write_all(&Crafted::default().file("x", "y").end()).unwrap();
    let packed = encoder.finish().unwrap();
    let mut tree = Site::new().writer();
    let error = unpack(Packing::Zstd, packed.as_slice(), &mut tree).unwrap_err();
    assert_eq!(error.class, Class::Fetch, "{}", error.message);
}

#[test]
fn fault_69_too_many_entries_and_too_deep_folders_are_refused() {
    let site = Site::new();
    for entry in [
        Crafted::default().folder("d/"),
        Crafted::default().link("l", "d"),
        Crafted::default().file(".wh.x", ""),
    ] {
        // Entries that change nothing cost time too.
        let error = site.unpack(&[entry.bytes.repeat(100_001)]).unwrap_err();
        assert_eq!(error.class, Class::Limit, "{}", error.message);
    }

    let deep = "d/".repeat(100_000);
    let error = site.unpack(&[Crafted::default().pax(&[("path", &deep)]).folder("x").end()]).unwrap_err();
    assert_eq!(error.class, Class::Limit, "{}", error.message);
}

#[test]
fn broken_archives_are_errors() {
    let good = Crafted::default().file("x", &"content".repeat(100)).file("y", "z").end();
    let site = Site::new();
    for cut in [1, 511, 513, 600, 1023, 1100] {
        assert!(site.unpack(&[good[..cut].to_vec()]).is_err(), "{cut}");
    }
    let mut tree = site.writer();
    for packing in [Packing::Gzip, Packing::Zstd] {
        assert_eq!(unpack(packing, &good[..], &mut tree).unwrap_err().class, Class::Fetch);
    }
    let packed = gzip(&good);
    assert!(unpack(Packing::Gzip, &packed[..packed.len() / 2], &mut tree).is_err());
    let error = site.unpack(&[vec![0x1b; 512]]).unwrap_err();
    assert!(!error.message.contains('\u{1b}'), "{:?}", error.message);
}

fn name() -> impl Strategy<Value = String> {
    let part = prop_oneof![6 => "[a-c]", 2 => Just("..".to_owned()), 1 => Just(".wh.a".to_owned()), 1 => Just(".".to_owned()),
        1 => Just(".wh..wh..opq".to_owned())];
    prop::collection::vec(part, 1..4).prop_map(|parts| parts.join("/"))
}

proptest! {
    #[test]
    fn fault_69_no_archive_reaches_out(
        entries in prop::collection::vec((name(), name(), prop::sample::select(b"0000055555222221xg7LKS3".to_vec())), 1..20),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let mut archive = Crafted::default();
        for (path, target, kind) in &entries {
            archive = archive.entry(EntryType::new(*kind), path, target, 0o755, b"");
        }
        let mut bytes = archive.end();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let site = Site::new();
        site.unpack(&[bytes]).ok();
        prop_assert!(links_stay(&fs::canonicalize(site.root()).unwrap(), &site.root()));
    }
}

fn links_stay(root: &Path, folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().all(|entry| {
        let path = entry.unwrap().path();
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            return links_stay(root, &path);
        }
        fs::canonicalize(&path).map_or(true, |real| real.starts_with(root))
    })
}
