use std::os::unix::fs::symlink;

use serde_json::json;

use super::*;

fn parse(inputs: &Json, mapping: Mapping) -> Result<Contents, String> {
    Contents::parse(inputs.as_object().unwrap(), mapping).map_err(|error| error.to_string())
}

fn common(files: &Json) -> Result<Contents, String> {
    parse(&json!({"common": {"files": files}}), Mapping::DestinationToSource)
}

/// Creates a job's directory with these files.
fn project(files: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in files {
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
    dir
}

fn collected(dir: &tempfile::TempDir, files: &Json) -> Result<Vec<String>, String> {
    let entries = common(files)?.common.collect(dir.path(), &[]).map_err(|error| error.to_string())?;
    let shown = |(path, entry): (&PathBuf, &Entry)| match entry {
        Entry::Folder => format!("{}/", path.display()),
        Entry::File { executable: true, .. } => format!("{}*", path.display()),
        Entry::File { .. } => path.display().to_string(),
        Entry::Link(target) => format!("{} -> {}", path.display(), target.display()),
    };
    Ok(entries.iter().map(shown).collect())
}

#[test]
fn without_platforms_there_is_one_image_for_all() {
    let contents = common(&json!({"func.yml": "func.yml"})).unwrap();
    let [variant] = contents.variants.as_slice() else { panic!("{}", contents.variants.len()) };
    assert_eq!(
        (variant.platform.os.to_string(), variant.platform.variant.clone()),
        (GENERIC.to_owned(), None)
    );
}

#[test]
fn platforms_are_read_with_all_their_keys() {
    let described = json!({"files": {"bin/tool": "out/tool"}, "variant": "v7", "os.version": "1",
        "os.features": ["a"], "features": ["b"]});
    let contents =
        parse(&json!({"platforms": {"linux/arm": described}}), Mapping::DestinationToSource).unwrap();
    assert_eq!(
        serde_json::to_value(&contents.variants[0].platform).unwrap(),
        json!({"os": "linux", "architecture": "arm", "variant": "v7", "os.version": "1",
            "os.features": ["a"], "features": ["b"]})
    );
    assert_eq!(contents.variants[0].files.pairs[0].source, "out/tool");
}

#[test]
fn the_old_builtin_maps_the_other_way_round() {
    let inputs = json!({"common": {"files": {"out/tool": "/bin/tool"}}});
    let contents = parse(&inputs, Mapping::SourceToDestination).unwrap();
    assert_eq!(contents.common.pairs, [Pair { destination: "bin/tool".into(), source: "out/tool".into() }]);
}

#[test]
fn what_makes_no_sense_is_refused_with_its_place() {
    let new = Mapping::DestinationToSource;
    for (inputs, expected) in [
        (json!({"common": {"file": {}}}), "common: unknown key \"file\"; known: files"),
        (json!({"common": []}), "input \"common\": expected a struct"),
        (json!({"common": {"files": ["a"]}}), "common.files: expected a struct of paths"),
        (json!({"common": {"files": {"a": 1}}}), "common.files: \"a\": expected a path as a string"),
        (json!({"common": {"files": {"../a": "a"}}}), "\"../a\" is no path in an image"),
        (json!({"common": {"files": {"a": "../a"}}}), "\"../a\" is no source"),
        (json!({"common": {"files": {"a": "/etc/passwd"}}}), "\"/etc/passwd\" is no source"),
        (json!({"common": {"files": {"a": ""}}}), "\"\" is no source"),
        (json!({"platforms": {"linux": {}}}), "\"linux\" is no platform: expected OS/ARCH"),
        (json!({"platforms": {"linux/arm/v7": {}}}), "\"linux/arm/v7\" is no platform"),
        (json!({"platforms": {"linux/arm": []}}), "\"linux/arm\": expected a struct"),
        (json!({"platforms": {"linux/arm": {"os": "x"}}}), "platforms.\"linux/arm\": unknown key \"os\""),
        (
            json!({"platforms": {"linux/arm": {"variant": 7}}}),
            "platforms.\"linux/arm\".variant: expected a string",
        ),
        (json!({"platforms": {"linux/arm": {"features": "x"}}}), "features: expected an array of strings"),
    ] {
        let message = parse(&inputs, new).unwrap_err();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn files_and_folders_are_collected_below_their_destination() {
    let dir = project(&["func.yml", "out/tool", "out/lib/a", "out/lib/b"]);
    fs::set_permissions(dir.path().join("out/tool"), fs::Permissions::from_mode(0o750)).unwrap();
    fs::create_dir(dir.path().join("out/empty")).unwrap();
    symlink("lib/a", dir.path().join("out/link")).unwrap();
    let files = json!({"/func.yml": "./func.yml", "opt//x/.": "out"});
    assert_eq!(
        collected(&dir, &files).unwrap(),
        [
            "func.yml",
            "opt/",
            "opt/x/",
            "opt/x/empty/",
            "opt/x/lib/",
            "opt/x/lib/a",
            "opt/x/lib/b",
            "opt/x/link -> lib/a",
            "opt/x/tool*"
        ]
    );
    assert_eq!(
        collected(&dir, &json!({".": "out/lib", "func.yml": "func.yml"})).unwrap(),
        ["a", "b", "func.yml"]
    );
}

#[test]
fn sources_that_cannot_be_packed_are_named() {
    let dir = project(&["a", "out/b"]);
    symlink("/etc", dir.path().join("leaves")).unwrap();
    fs::create_dir(dir.path().join("bad")).unwrap();
    symlink("../../x", dir.path().join("bad/link")).unwrap();
    fs::create_dir_all(dir.path().join("white")).unwrap();
    fs::write(dir.path().join("white/.wh.x"), "x").unwrap();
    let long = vec!["d".repeat(200); 11].join("/");
    for (files, expected) in [
        (json!({"x": "missing"}), "cannot find the source"),
        (json!({"x": "leaves"}), "leads out of the job's directory"),
        (json!({"x": "bad"}), "bad/link: the symbolic link does not stay inside the image"),
        (json!({"x": "white"}), "common.files: \"x/.wh.x\": a name that begins with .wh. removes files"),
        (json!({".wh..wh..opq": "a"}), "a name that begins with .wh. removes files"),
        (json!({(long): "a"}), "a path longer than 2048 bytes"),
        (json!({("d".repeat(256)): "a"}), "longer than 255 bytes"),
        (json!({".": "a"}), "common.files: \".\": a file needs a name"),
        (json!({"a": "a", "./a": "out/b"}), "common.files: \"a\": two sources have this destination"),
        (json!({"x": "out", "x/b": "a"}), "common.files: \"x/b\": two sources have this destination"),
        (
            json!({"x": "a", "x/b": "a"}),
            "common.files: \"x\": a folder and another source have this destination",
        ),
    ] {
        let message = collected(&dir, &files).unwrap_err();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn layers_of_one_image_share_folders_only() {
    let dir = project(&["a", "out/b"]);
    let entries = |files: &Json| common(files).unwrap().common.collect(dir.path(), &[]).unwrap();
    let shared = entries(&json!({"bin/a": "a"}));
    assert!(check_layers(&shared, &entries(&json!({"bin/b": "a"})), "p").is_ok());
    for files in [json!({"bin/a": "out/b"}), json!({"bin": "a"})] {
        let message = check_layers(&shared, &entries(&files), "linux/amd64").unwrap_err().to_string();
        assert!(
            message.contains("\"linux/amd64\": \"bin") && message.contains("is in common.files too"),
            "{message}"
        );
    }
}

#[test]
fn the_old_builtin_takes_files_from_anywhere_by_their_absolute_path() {
    let (dir, elsewhere) = (project(&["a"]), project(&["b", "lib/c"]));
    let outside = |name: &str| elsewhere.path().join(name).to_str().unwrap().to_owned();
    let files = json!({"a": "bin/a", (outside("b")): "bin/b", (outside("lib")): "/lib"});
    let inputs = json!({"common": {"files": files}});
    let contents = parse(&inputs, Mapping::SourceToDestination).unwrap();
    let entries = contents.common.collect(dir.path(), &[]).unwrap();
    let paths: Vec<_> = entries.keys().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(paths, ["bin", "bin/a", "bin/b", "lib", "lib/c"]);
    // A relative path must still stay in the job's directory.
    symlink(elsewhere.path(), dir.path().join("leaves")).unwrap();
    let inputs = json!({"common": {"files": {"leaves": "x"}}});
    let contents = parse(&inputs, Mapping::SourceToDestination).unwrap();
    let message = contents.common.collect(dir.path(), &[]).unwrap_err().to_string();
    assert!(message.contains("leads out of the job's directory"), "{message}");
    let inputs = json!({"common": {"files": {"../b": "x"}}});
    assert!(parse(&inputs, Mapping::SourceToDestination).unwrap_err().contains("is no source"));
}
