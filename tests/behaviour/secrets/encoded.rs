//! Secrets that programs print with escapes (masking.md §2; faults.md row 35). Each test is a report of a user.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::json;

/// Runs a script with a masked variable `SECRET` and no other variables than `PATH`, as in most images. Returns what
/// it printed.
fn printed(secret: &str, script: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    command.args(["run", "-", "--no-check", "--masked-var", "SECRET", "--output", "raw"]);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("SECRET", secret);
    command.env("TMPDIR", dir.path()).current_dir(dir.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let job = json!([{ "name": "a", "script": script }]).to_string();
    child.stdin.take().unwrap().write_all(job.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("[MASKED]"), "{said}{errors}");
    said + &errors
}

#[test]
fn bug_mask_json_of_dotnet() {
    let said = printed(
        "Ab+cd/Ef==9xyZ",
        r#"printf '%s\n' '{"key":"Ab\u002Bcd/Ef==9xyZ"}' '{"key":"Ab\u002bcd\/Ef\u003D=9xyZ"}'"#,
    );
    assert_eq!(said.matches(r#"{"key":"[MASKED]"}"#).count(), 2, "{said}");
}

#[test]
fn bug_mask_percent_in_urls() {
    let said = printed(
        "wJalrXUtnFEMI/K7MDENG+bPxRfi=",
        "echo https://ci:wJalrXUtnFEMI%2FK7MDENG+bPxRfi=@git.example.com/g/p.git; \
         echo https://ci:wJalrXUtnFEMI%2fK7MDENG%2BbPxRfi%3d@git.example.com/g/p.git",
    );
    assert_eq!(said.matches("https://ci:[MASKED]@git.example.com/g/p.git").count(), 2, "{said}");
}

#[test]
fn bug_mask_shell_quotes_without_locale() {
    let secret = "p\u{e4}ssw\u{f6}rt-123";
    // What the shell of this machine prints, and what bash and `ls` print.
    let said = printed(
        secret,
        "set -x; : -u \"ci:$SECRET\"; set +x; printf '%s\\n' '+ : -u $'\\''ci:p\\303\\244ssw\\303\\266rt-123'\\''' \
         \"'p'$'\\303\\244''ssw'$'\\303\\266''rt-123'\"",
    );
    assert!(said.matches("[MASKED]").count() >= 2, "{said}");
    // A time in front of a line may have these digits, too.
    assert!(!said.contains("\\303") && !said.contains("ssw") && !said.contains("rt-123"), "{said}");
}

#[test]
fn bug_mask_short_lines_cr() {
    let said = printed(
        "ab12cd\r\nef34gh\r\nij56kl",
        r"printf 'ab12cd\r\r\nef34gh\r\r\nij56kl\r\n'; printf 'ab12cd\nef34gh\r\r\r\nij56kl\n'",
    );
    assert!(!["ab12cd", "ef34gh", "ij56kl"].iter().any(|line| said.contains(line)), "{said}");
}

#[test]
fn fault_35_a_secret_of_several_lines_is_hidden_where_a_shell_passes_on_its_words() {
    let said = printed("ab12cd\nef34gh\nij56kl", "echo $SECRET");
    assert!(!said.contains("ef34gh"), "{said}");
}
