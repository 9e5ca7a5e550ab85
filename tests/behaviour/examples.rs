//! Every example does what its README says: the commands of its `console` blocks print `expected.txt`.
//!
//! Each folder in `examples` has one test, and a second one with the shell and tools of busybox. `UPDATE_EXPECTED=1`
//! rewrites the files.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::{env, fs};

use crate::git_server::GitServer;
use crate::support::parts;
use crate::support::registry::{DockerRegistry, GZIP_LAYER};

const PROGRAM: &str = env!("CARGO_BIN_EXE_step-runner");

type Failed = Box<dyn std::error::Error>;

/// Makes the tests of each example, `NAME::as_expected` and `NAME::in_busybox`.
macro_rules! examples {
    ($($name:ident: $folder:literal,)*) => {
        const EXAMPLES: &[&str] = &[$($folder),*];
        $(
            mod $name {
                #[test]
                fn as_expected() -> Result<(), super::Failed> {
                    super::as_expected($folder)
                }

                #[test]
                fn in_busybox() -> Result<(), super::Failed> {
                    super::in_busybox($folder)
                }
            }
        )*
    };
}

examples! {
    build_and_test: "build-and-test",
    cleanup: "cleanup",
    delegate: "delegate",
    exports: "exports",
    failure: "failure",
    flow: "flow",
    hello: "hello",
    matrix: "matrix",
    outputs: "outputs",
    pipeline: "pipeline",
    remote: "remote",
    secrets: "secrets",
    wrap_a_tool: "wrap-a-tool",
}

#[test]
fn each_example_has_its_tests() {
    assert_eq!(names(&examples()), EXAMPLES);
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

/// Returns the sorted names of a folder's entries.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn as_expected(name: &str) -> Result<(), Failed> {
    let mut scene = Scene::new();
    if !scene.serve(name) {
        return Ok(());
    }
    let readme = fs::read_to_string(examples().join(name).join("README.md"))?;
    let printed = scene.transcript(&commands(&readme), "sh");
    let file = examples().join(name).join("expected.txt");
    if env::var_os("UPDATE_EXPECTED").is_some() {
        fs::write(&file, &printed)?;
    }
    compare(&printed, &fs::read_to_string(&file)?)?;
    shown(&readme, &printed)
}

/// Runs the example with only busybox as shell and tools.
fn in_busybox(name: &str) -> Result<(), Failed> {
    let Some(busybox) = find("busybox") else {
        parts::skipped(&format!("example {name} with busybox"), "busybox");
        return Ok(());
    };
    let mut scene = Scene::new();
    if !scene.serve(name) {
        return Ok(());
    }
    let tools = scene.root.path().join("tools");
    fs::create_dir(&tools)?;
    let installed = Command::new(&busybox).args(["--install", "-s"]).arg(&tools).status()?;
    if !installed.success() {
        return Err("busybox --install failed".into());
    }
    scene.path = tools.clone().into();
    let readme = fs::read_to_string(examples().join(name).join("README.md"))?;
    let printed = scene.transcript(&commands(&readme), tools.join("sh").to_str().unwrap());
    compare(&printed, &fs::read_to_string(examples().join(name).join("expected.txt"))?)
}

/// Runs the commands of the README's tour, except those that build the program. They succeed, or fail as the README
/// says, and print each line that it shows. The daemon uses a folder of this test.
#[test]
fn tour_of_the_readme() -> Result<(), Failed> {
    let scene = Scene::new();
    fs::create_dir(scene.root.path().join("tests"))?;
    copy(&examples().with_file_name("tests").join("broken"), &scene.root.path().join("tests/broken"));
    fs::create_dir(scene.root.path().join("scripts"))?;
    let script = Path::new("scripts").join("tour-kill");
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(&script), scene.root.path().join(&script))?;
    let readme = fs::read_to_string(examples().with_file_name("README.md"))?;
    let is_of_tour = |line: &&str| !line.contains("cargo") && !line.contains("PATH=") && *line != "…";
    let lines: Vec<String> = console(&readme)
        .into_iter()
        .skip_while(|line| !line.contains("--version"))
        .filter(is_of_tour)
        .map(|line| line.replace("/tmp/jobs", "jobs"))
        .collect();
    let commands: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("$ ")).collect();
    let printed = scene.transcript(&commands, "sh");
    for line in &lines {
        let absolute = line.replace("socket jobs/", "socket /home/you/jobs/");
        if !printed.contains(line.as_str()) && !printed.contains(&absolute) {
            return Err(format!("README.md shows what is not printed: {line}\n{printed}").into());
        }
    }
    let failed: Vec<_> = printed.lines().filter(|line| line.starts_with("(exit code")).collect();
    let expected = ["(exit code 3)", "(exit code 1)"];
    if failed != expected {
        return Err(format!("these commands failed: {failed:?}, not {expected:?}\n{printed}").into());
    }
    Ok(())
}

/// The checker finds nothing in any example.
#[test]
fn all_pass_check() -> Result<(), Failed> {
    let Output { status, stdout, stderr } =
        Command::new(PROGRAM).args(["check", "--quiet"]).arg(examples()).stdin(Stdio::null()).output()?;
    let said = [stdout, stderr].concat();
    if status.success() && said.is_empty() {
        return Ok(());
    }
    Err(format!("{status}\n{}", String::from_utf8_lossy(&said)).into())
}

/// Returns the path of a program on `PATH`.
fn find(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Returns the commands of the `console` blocks: the text behind `$ ` at the start of a line.
fn commands(readme: &str) -> Vec<&str> {
    console(readme).into_iter().filter_map(|line| line.strip_prefix("$ ")).collect()
}

/// Returns the lines of the `console` blocks.
fn console(readme: &str) -> Vec<&str> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in readme.lines() {
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            line if inside => lines.push(line),
            _ => {}
        }
    }
    lines
}

/// Checks that each line of the README's blocks was printed, in this order. The README can leave lines out.
fn shown(readme: &str, printed: &str) -> Result<(), Failed> {
    let mut printed = printed.lines();
    match console(readme).into_iter().find(|line| !printed.any(|other| other == *line)) {
        None => Ok(()),
        Some(line) => Err(format!("README.md shows what is not printed: {line}").into()),
    }
}

fn compare(printed: &str, expected: &str) -> Result<(), Failed> {
    if printed == expected {
        return Ok(());
    }
    let first = printed.lines().zip(expected.lines()).take_while(|(is, should)| is == should).count();
    Err(format!("line {} differs; printed:\n{printed}\nexpected:\n{expected}", first + 1).into())
}

/// A copy of the examples in a new folder.
struct Scene {
    root: tempfile::TempDir,
    path: std::ffi::OsString,
    hosts: Option<(GitServer, DockerRegistry)>,
}

impl Scene {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        copy(&examples(), &root.path().join("examples"));
        Self { root, path: env::var_os("PATH").unwrap(), hosts: None }
    }

    /// Starts the servers that the example uses, filled from its folder `published`, and puts their addresses into its
    /// files. Returns false and reports a skipped test if a server's program is missing.
    fn serve(&mut self, example: &str) -> bool {
        let folder = self.root.path().join("examples").join(example);
        let published = folder.join("published");
        if !published.exists() {
            return true;
        }
        let Some(git) = GitServer::start(example) else { return false };
        let Some(registry) = DockerRegistry::start() else { return false };
        for (path, text) in files(&folder) {
            let text = text
                .replace("https://git.example.com", "git.example.com")
                .replace("git.example.com", &format!("http://{}", git.host()))
                .replace("registry.example.com", &registry.address);
            // Overwrites the file, so that it keeps its permissions.
            fs::write(folder.join(path), text).unwrap();
        }
        let repository = git.repository("ci/functions");
        for (path, text) in files(&published.join("functions")) {
            repository.file(&path, &text);
        }
        repository.commit("The first version");
        repository.git(&["tag", "v1"]);
        registry.push("ci/announce", "1", &[(GZIP_LAYER, layer(&published.join("announce")))]);
        self.hosts = Some((git, registry));
        true
    }

    /// Runs `commands` in one shell. Returns what a terminal would show, with the exit code of each command that fails.
    fn transcript(&self, commands: &[&str], shell: &str) -> String {
        let program = Path::new(PROGRAM).parent().unwrap();
        let path = env::join_paths([program.to_owned()].into_iter().chain(env::split_paths(&self.path)));
        let typist = r#"exec 2>&1
            for command do
                printf '$ %s\n' "$command"
                eval "$command"
                code=$?
                [ "$code" -eq 0 ] || echo "(exit code $code)"
            done"#;
        let output = Command::new(shell)
            .args(["-c", typist, "sh"])
            .args(commands)
            .current_dir(self.root.path())
            .stdin(Stdio::null())
            .env_clear()
            .env("PATH", path.unwrap())
            .env("STEP_RUNNER_ID", "example")
            .output()
            .unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        let root = fs::canonicalize(self.root.path()).unwrap();
        let text = String::from_utf8(output.stdout).unwrap().replace(root.to_str().unwrap(), "/home/you");
        self.as_written(text).lines().map(|line| without_processes(&without_time(line)) + "\n").collect()
    }

    /// Replaces the addresses of the servers by their names, and removes hashes of their content, which depend on these
    /// addresses.
    fn as_written(&self, text: String) -> String {
        let Some((git, registry)) = &self.hosts else { return text };
        let text =
            text.replace(&git.host(), "git.example.com").replace(&registry.address, "registry.example.com");
        let words = text.split_inclusive(|c: char| !c.is_ascii_hexdigit());
        let is_hash = |word: &str| word.trim_end_matches(|c: char| !c.is_ascii_hexdigit()).len() >= 40;
        let shown = |word: &str| match word.chars().last() {
            Some(end) if is_hash(word) && !end.is_ascii_hexdigit() => format!("HASH{end}"),
            _ => word.to_owned(),
        };
        words.map(shown).collect()
    }
}

/// Replaces a time of day at the start of a line, behind blanks: it differs with every run.
fn without_time(line: &str) -> String {
    let text = line.trim_start();
    let shape: String = text.chars().take(13).map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    if shape == "00:00:00.000 " {
        line.replacen(text.split(' ').next().unwrap(), "HH:MM:SS.mmm", 1)
    } else {
        line.to_owned()
    }
}

/// Replaces process ids, which differ with every run, and commands, which contain the folder of the examples.
fn without_processes(line: &str) -> String {
    let running = [" process running: ", " processes running: "].into_iter().find(|text| line.contains(text));
    match running.and_then(|text| Some((text, line.split_once(text)?.0))) {
        Some((text, step)) => format!("{step}{text}PID (COMMAND)"),
        None => line.to_owned(),
    }
}

/// Returns every file below `folder`, by its path from there.
fn files(folder: &Path) -> Vec<(String, String)> {
    let all = crate::support::tree(folder).into_keys().filter(|path| path.is_file());
    let named = |path: PathBuf| {
        let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
        (name, fs::read_to_string(path).unwrap())
    };
    all.map(named).collect()
}

/// Makes a layer of the content of `folder`.
fn layer(folder: &Path) -> Vec<u8> {
    let mut archive =
        tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    archive.append_dir_all(".", folder).unwrap();
    archive.into_inner().unwrap().finish().unwrap()
}

/// Copies folders and files, with their permissions.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let to = to.join(entry.file_name());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            copy(&entry.path(), &to);
        } else if kind.is_file() {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}
