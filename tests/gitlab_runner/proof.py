"""Runs jobs with a real GitLab Runner whose Custom executor uses PROGRAM, for scripts/gitlab-runner: proof.py RUNNER PROGRAM

The jobs succeed, fail, are cancelled, reach their time limit, or have their daemon killed during a stage. After each the Runner
must have reported the right end and the whole trace, and no process and no state of the job may be left
(docs/integrate/gitlab-custom-executor.md). At last the Runner is killed during a stage: the driver must end the job's
processes by itself, and the watcher of its daemon everything else."""

import glob
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from unittest.mock import ANY

from coordinator import TOKEN, Coordinator

# Longest wait for anything. A Runner sends updates every 3 s, and a job ends within its grace times.
PATIENCE = 180
SECRET = "never-shown-8f2c61"
LINES = 20_000


def expect(holds, what):
    if not holds:
        raise AssertionError(what)


def eventually(holds, what):
    """Waits until `holds()` is true. After a timeout `what()` describes what was missing."""
    until = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError(f"not within {PATIENCE} s: {what()}")
        time.sleep(0.05)


def words_of(process):
    """Returns the command line of a process, or nothing if it has ended."""
    try:
        return pathlib.Path(process, "cmdline").read_bytes()
    except OSError:
        return b""


class Proof:
    def __init__(self, runner, program, folder):
        self.folder = pathlib.Path(folder)
        self.state = self.folder / "state"
        self.log = self.folder / "runner.log"
        self.coordinator = Coordinator()
        self.number = 0
        for name in ("tmp", "builds", "cache"):
            (self.folder / name).mkdir()
        (self.folder / "config.toml").write_text(self.config(program), encoding="utf-8")
        # Variables of our own environment do not reach Runner and driver.
        self.environment = {"PATH": os.environ["PATH"], "HOME": folder, "TMPDIR": f"{folder}/tmp"}
        said = self.call(runner, "verify").communicate(timeout=PATIENCE)[0]
        # Newer Runners say that the token is valid.
        expect(b"is alive" in said or b"is valid" in said, f"verify: {said}")
        self.runner = self.call(runner, "run", self.log.open("wb"))

    def call(self, runner, command, output=subprocess.PIPE):
        words = [runner, command, "--config", self.folder / "config.toml"]
        return subprocess.Popen(
            words, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )

    def config(self, program):
        calls = ""
        for call in ("config", "prepare", "run", "cleanup"):
            words = ["custom-executor", f"--state-dir={self.state}", "--cancel-grace=20s", "--abandon-after=5s", call]
            calls += f"{call}_exec = {json.dumps(program)}\n{call}_args = {json.dumps(words)}\n"
        return f"""
concurrent = 1
check_interval = 1
[[runners]]
name = "proof"
url = "{self.coordinator.url}"
token = "{TOKEN}"
executor = "custom"
shell = "bash"
builds_dir = "{self.folder}/builds"
cache_dir = "{self.folder}/cache"
[runners.custom]
{calls}
graceful_kill_timeout = 60
force_kill_timeout = 10
"""

    def start(self, *script, timeout=3600):
        """Starts a job with this script and without sources, in GitLab's format."""
        self.number += 1
        variables = {
            "CI_JOB_ID": str(self.number),
            "CI_PROJECT_ID": "5",
            "CI_PROJECT_PATH_SLUG": "group-project",
            "CI_SERVER_URL": self.coordinator.url,
            "GIT_STRATEGY": "none",
            "GIT_CHECKOUT": "false",
            "SECRET": SECRET,
            # Runners from 18.7 on put the time before each line of the trace.
            "FF_TIMESTAMPS": "false",
        }
        step = {"timeout": timeout, "allow_failure": False}
        answer = {
            "allow_git_fetch": True,
            "job_info": {"name": "job", "stage": "test", "project_id": 5, "project_name": "project"},
            "git_info": {
                "repo_url": f"{self.coordinator.url}/group/project.git",
                "ref": "main",
                "sha": "0123456789abcdef0123456789abcdef01234567",
                "before_sha": "0000000000000000000000000000000000000000",
                "ref_type": "branch",
            },
            "runner_info": {"timeout": timeout},
            "variables": [
                {"key": key, "value": value, "public": key != "SECRET", "file": False, "masked": key == "SECRET"}
                for key, value in variables.items()
            ],
            "steps": [
                {"name": "script", "script": script, "when": "on_success", **step},
                {"name": "after_script", "script": ['echo "after: $((40 + 2))"'], "when": "always", **step},
            ],
            "image": {"name": ""},
            "services": [],
            "artifacts": [],
            "cache": [],
            "credentials": [],
            "dependencies": [],
            "features": {"trace_sections": False},
        }
        return self.coordinator.put(self.number, answer)

    def ended(self, job, state, reason=None):
        """Waits for the end of the job and checks its state and reason."""
        self.coordinator.wait(job.ended, PATIENCE, f"the end of job {job.number}")
        end = (job.state, job.failure_reason or None)
        expect(end == (state, reason), f"it ended as {end}, not as {(state, reason)}")
        expect(SECRET.encode() not in job.trace, "the trace shows the secret")
        # The Runner cleans up after it has reported the end.
        eventually(lambda: not self.left(), lambda: f"nothing left after the job: {self.left()}")

    def left(self):
        """Returns the folders and processes of the driver, its daemon and its jobs."""
        left = glob.glob(f"{self.state}/*/meta.json")
        for process in glob.glob("/proc/[0-9]*"):
            try:
                words = pathlib.Path(process, "cmdline").read_bytes() + pathlib.Path(process, "environ").read_bytes()
            except OSError:
                continue
            is_ours = os.fsencode(self.state) in words and process != f"/proc/{os.getpid()}"
            left += [process] * is_ours
        return left

    def trace_has(self, job, text):
        self.coordinator.wait(lambda: text in job.trace or job.ended(), PATIENCE, f"{text} in the trace of job {job.number}")
        expect(text in job.trace, f"the job ended without {text}")

    def success(self):
        count = f"for i in $(seq {LINES}); do echo \"line $i\"; done"
        job = self.start(count, 'echo "it is $SECRET, $SECRET"', 'echo "in $CI_PROJECT_DIR: $PWD"')
        self.ended(job, "success")
        lines = b"".join(b"line %d\n" % number for number in range(1, LINES + 1))
        expect(lines in job.trace, "the lines of the script are not in the trace as they were written")
        expect(b"Using step-runner daemon " in job.trace, "the driver did not say what it uses")
        expect(b"it is [MASKED], [MASKED]\n" in job.trace, "the secret is not masked")
        project = os.fsencode(self.folder / "builds")
        expect(b"in " + project in job.trace, "the project is not in builds_dir")
        expect(b"after: 42\n" in job.trace, "no after_script")

    def failure(self):
        job = self.start('echo "now: $((1 + 1))"; exit 42', 'echo "later: $((1 + 1))"')
        self.ended(job, "failed", "script_failure")
        expect(b"now: 2\n" in job.trace and b"later: 2" not in job.trace, "the script did not end where it exits")
        expect(b"after: 42\n" in job.trace, "no after_script")
        expect(b"Job failed: exit" in job.trace, "the Runner does not say that the job has failed")

    def endless(self, timeout=3600, silent=False):
        """Starts a job that does not end by itself, and waits until it runs. Returns it and the pid of its background process."""
        number = self.number + 1
        file = self.folder / f"{number}.pid"
        more = "[ $n -lt 2 ]" if silent else ":"
        ticks = f'n=0; while {more}; do n=$((n + 1)); echo "tick $n"; sleep 0.5; done; sleep 100000'
        job = self.start(f"sleep 100000 & echo $! > {file}", ticks, timeout=timeout)
        self.trace_has(job, b"tick 2\n")
        return job, int(file.read_text())

    def cancel(self):
        job, background = self.endless()
        job.canceled = True
        # GitLab sets its own state and reason for such a job.
        self.ended(job, "failed", ANY)
        told = job.trace + self.log.read_bytes()
        expect(b"Job failed: canceled" in told, "the Runner does not say that the job was canceled")
        expect(not os.path.exists(f"/proc/{background}"), "a process of the job lives")

    def timeout(self):
        job, background = self.endless(timeout=20)
        self.ended(job, "failed", "job_execution_timeout")
        expect(b"execution took longer than 20" in job.trace, "the Runner does not say that time was up")
        expect(not os.path.exists(f"/proc/{background}"), "a process of the job lives")

    def killed_daemon(self):
        go = self.folder / "go"
        job = self.start('echo "before: $((6 * 7))"', f"while [ ! -e {go} ]; do sleep 0.1; done", 'echo "behind: $((6 * 7))"')
        self.trace_has(job, b"before: 42\n")
        (killed,) = self.daemons()
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: self.daemons() not in ([], [killed]), lambda: "another private daemon")
        go.touch()
        self.ended(job, "success")
        for text in (b"before: 42\n", b"behind: 42\n", b"after: 42\n"):
            expect(job.trace.count(text) == 1, f"{text} stands {job.trace.count(text)} times in the trace")

    def killed_runner(self):
        # A job that prints would end by a broken pipe, so this one is silent.
        job, background = self.endless(silent=True)
        self.runner.kill()
        self.runner.wait()
        eventually(lambda: not os.path.exists(f"/proc/{background}"), lambda: "the end of the job's processes")
        eventually(lambda: not self.left(), lambda: f"nothing left after the Runner's death: {self.left()}")
        print(f"gitlab-runner: killed_runner: nothing is left of job, driver and daemon, {job.state}", flush=True)

    def daemons(self):
        """Returns the pids of the private daemons."""
        processes = [left for left in self.left() if left.startswith("/proc/")]
        daemons = [process for process in processes if words_of(process).split(b"\0")[1:2] == [b"serve"]]
        return [int(process.removeprefix("/proc/")) for process in daemons]

    def run(self):
        try:
            for part in (self.success, self.failure, self.cancel, self.timeout, self.killed_daemon):
                begun = time.monotonic()
                part()
                job = self.coordinator.jobs[self.number]
                end = " ".join(filter(None, (job.state, job.failure_reason)))
                took = time.monotonic() - begun
                print(f"gitlab-runner: {part.__name__}: {end}, {len(job.trace)} bytes of trace, {took:.0f} s", flush=True)
            self.killed_runner()
            expect(not self.coordinator.wrong, f"calls that were refused: {self.coordinator.wrong}")
        finally:
            self.runner.terminate()
            try:
                self.runner.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.runner.kill()
                self.runner.wait()
            # A killed Runner leaves the private daemon running, and a failed test can leave any process.
            for process in self.left():
                if process.startswith("/proc/"):
                    os.kill(int(process.removeprefix("/proc/")), signal.SIGKILL)


def main(runner, program):
    folder = tempfile.mkdtemp(prefix="sr-runner-")
    proof = None
    try:
        proof = Proof(runner, program, folder)
        proof.run()
    except (AssertionError, OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"gitlab-runner: FAILED: {error}; kept: {folder}", file=sys.stderr)
        if proof is not None and proof.number:
            sys.stderr.buffer.write(proof.coordinator.jobs[proof.number].trace[-4000:])
            sys.stderr.buffer.write(proof.log.read_bytes()[-4000:])
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
