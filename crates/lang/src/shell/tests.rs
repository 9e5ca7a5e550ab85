//! Scripts that people write, and the command in each whose failure is lost.

use proptest::prelude::*;

use super::*;

/// Returns the line of the script whose failure is lost.
fn lost(script: &str) -> Option<&str> {
    lost_failure(script).map(|at| script.get(at..).unwrap().lines().next().unwrap().trim_end())
}

#[test]
fn a_command_before_the_last_one_loses_its_failure() {
    for (script, command) in [
        ("make\necho done", "make"),
        ("cd build\nmake", "cd build"),
        ("npm ci\nnpm test\n", "npm ci"),
        ("node --version\nnpm ci\nnpm test\n", "npm ci"),
        ("export CI=1\n. venv/bin/activate\npip install -r r.txt\npytest\n", ". venv/bin/activate"),
        ("set -x\nmake test\nrm -f out\n", "make test"),
        ("# build\n\nmake \\\n  all\necho ok\n", "make \\"),
        ("make; echo built\necho done", "make; echo built"),
        ("make | tee log\ncat log", "make | tee log"),
        ("if [ -d x ]; then\n  cd x\n  make\nfi\n", "cd x"),
        ("if [ -d x ]; then\n  make x\nelse\n  make y\nfi\necho done\n", "make x"),
        ("for x in a b; do\n  cp $x out\n  sign out/$x\ndone\n", "cp $x out"),
        ("while read -r x; do\n  make \"$x\"\ndone < list\necho done\n", "make \"$x\""),
        ("case $X in\n  a) make a; strip a ;;\n  *) make ;;\nesac\n", "make a; strip a ;;"),
        ("build() {\n  make\n  echo built\n}\nbuild\n", "make"),
        ("(\n  cd x\n  make\n)\n", "cd x"),
        ("VERSION=$(git describe)\necho \"$VERSION\"", "VERSION=$(git describe)"),
        ("export VERSION=`git describe`\nmake", "export VERSION=`git describe`"),
        ("python3 - <<EOF\nset -e\nEOF\necho done", "python3 - <<EOF"),
        ("cat > x <<'EOF'\nmake || exit\nEOF\nsh x\necho 'a\nb'", "sh x"),
        ("make ${{ inputs.target }}\necho '${{ vars.X }}'", "make ${{ inputs.target }}"),
        ("X=1 make\necho \"done: $(date)\"", "X=1 make"),
        ("make 2>&1 >log\necho", "make 2>&1 >log"),
        ("test -f x\necho there", "test -f x"),
        ("make\r\necho done\r\n", "make"),
    ] {
        assert_eq!(lost(script), Some(command), "{script}");
    }
}

#[test]
fn scripts_that_cannot_lose_a_failure_or_look_after_it_are_left_alone() {
    for script in [
        "",
        "make",
        "make; echo done",
        "echo building\nmake",
        "# only a comment\nmake",
        "export A=1 B=2\nC=3\nmake",
        "echo start\nprintf 'x\\n'\nmkdir -p out\nmake",
        "node --version\nnpm test",
        "printf '%s' \"$X\" | base64 | tr -d '\\n'\nmake",
        "set -e\nmake\necho done",
        "set -eu\nmake\necho done",
        "set -euo pipefail\nmake\necho done",
        "set -o errexit\nmake\necho done",
        "echo hello\nset -ex\nmake\necho done",
        "make &&\n  make test &&\n  echo done",
        "make || exit\necho done",
        "make || exit 1\nmake test || { echo failed; exit 1; }\necho done",
        "make || true\necho done",
        "[ -f x ] && rm x\nmake",
        "make\ncode=$?\nrm -f x\nexit $code",
        "make test\nif [ $? -ne 0 ]; then\n  echo failed\n  exit 1\nfi\n",
        "make\ncase $? in\n  0) echo fine ;;\n  *) exit 1 ;;\nesac",
        "make\n[ \"$?\" = 0 ] || exit 3\necho done",
        "trap 'exit 1' ERR\nmake\necho done",
        "make\nexit 0",
        "if make; then\n  echo fine\nelse\n  echo bad\n  exit 1\nfi",
        "if [ -d x ]; then\n  make x\nelse\n  make y\nfi",
        "until curl -sf http://localhost\ndo\n  sleep 1\ndone\nmake",
        "while ! nc -z localhost 80; do sleep 1; done\nmake test",
        "for i in 1 2 3; do\n  echo \"$i\"\ndone\nmake",
        "for ((i = 0; i < 3; i++)); do\n  echo $i\ndone\nmake",
        "i=0\n((i++))\nmake",
        "list=(a b\n  c)\nmake",
        "server &\nmake test",
        "cat <<EOF\nmake\ntest\nEOF\nmake",
        "cat <<-'EOF' > x\n\tmake\n\tEOF\nsh x",
        "NOW=$(date +%s)\nDIR=\"$(cd x; pwd)\" && make",
        "echo '\nmake\ntest\n'",
        "echo \"a \\\"b\\\"\n $(make) \"\nmake",
        "curl https://example.com/x#y \\\n  -o x",
        "exec > log 2>&1\nmake",
        "! grep -r TODO src\nmake",
        "sum=$((1 + 2))\nmake $sum",
        // Not understood, so not judged.
        "make 'x\necho done",
        "if make\necho",
        "function f { make\n echo; }\nf",
        "make\n}\necho",
        "coproc (make)\necho",
    ] {
        assert_eq!(lost(script), None, "{script}");
    }
}

#[test]
fn no_nesting_exhausts_the_stack() {
    for opening in
        ["(", "! ", "{ ", "if ", "while ", "f() ", "$(", "\"$(", "((", "case x in a) ", "${", "<(", "`"]
    {
        let script = format!("make\n{}\necho", opening.repeat(99_999));
        assert_eq!(lost_failure(&script), None, "{opening}");
    }
}

proptest! {
    #[test]
    fn any_text_is_read_to_its_end_or_given_up(
        words in prop::collection::vec(
            prop::sample::select(vec![
                "make", "echo", "\n", ";", "&&", "||", "|", "&", "(", ")", "{", "}", "if", "then", "else", "elif", "fi", "for",
                "in", "while", "do", "done", "case", "esac", ";;", "'", "\"", "`", "$(", "${", "${{", "}}", "$?", "<<EOF",
                "EOF", ">", "<", "2>&1", "&>x", "#", "\\", "!", "set -e", "a=(", "((", "é", " ",
            ]),
            0..40,
        ),
        spaced in any::<bool>(),
    ) {
        let script = words.join(if spaced { " " } else { "" });
        if let Some(at) = lost_failure(&script) {
            prop_assert!(script.is_char_boundary(at) && at < script.len());
        }
    }
}
