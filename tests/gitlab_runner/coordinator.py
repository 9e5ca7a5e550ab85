"""A fake GitLab server for scripts/gitlab-runner. It serves one GitLab Runner on the loopback.

It hands out one job at a time and keeps the Runner's reports about it: the trace, the state, and the reason of a failure.
Started by hand (`coordinator.py JOB.json`) it prints its address, waits for the end of that one job, and prints the reports."""

import http.server
import json
import re
import sys
import threading
import urllib.parse

TOKEN = "token-of-the-runner"


class Job:
    """A job for a Runner, and the Runner's reports about it."""

    def __init__(self, number, answer):
        self.number = number
        self.answer = answer
        self.trace = b""
        self.state = "pending"
        self.failure_reason = None
        # True once a user has cancelled the job in the web interface.
        self.canceled = False

    def ended(self):
        return self.state in ("success", "failed")


class Coordinator(http.server.ThreadingHTTPServer):
    """The server. It runs in its own thread from the beginning."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        # Lock for the fields below. It is notified of every change.
        self.changed = threading.Condition()
        self.waiting = []
        self.jobs = {}
        # Calls that a real Runner never makes.
        self.wrong = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        """Ignores connection errors: a killed Runner disconnects in the middle of a call."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def put(self, number, answer):
        """Adds a job, which a later request for a job gets."""
        job = Job(number, {"id": number, "token": f"token-of-job-{number}", **answer})
        with self.changed:
            self.jobs[number] = job
            self.waiting.append(job)
        return job

    def wait(self, holds, seconds, what):
        """Waits until `holds()` is true; checks it after each change."""
        with self.changed:
            if not self.changed.wait_for(holds, seconds):
                raise TimeoutError(f"not within {seconds} s: {what}")


class Handler(http.server.BaseHTTPRequestHandler):
    """One call of the Runner."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body, route = self.body(), self.route()
        if route == "/api/v4/runners":
            return self.answer(201, {"id": 1, "token": TOKEN})
        if json.loads(body).get("token") != TOKEN:
            return self.refuse(403, "no token of a runner")
        if route == "/api/v4/runners/verify":
            return self.answer(200, {})
        if route != "/api/v4/jobs/request":
            return self.refuse(404, "unknown")
        with self.server.changed:
            if not self.server.waiting:
                return self.answer(204)
            job = self.server.waiting.pop(0)
            job.state = "running"
            self.server.changed.notify_all()
        return self.answer(201, job.answer)

    def do_PATCH(self):
        body = self.body()
        job = self.job("/trace", self.headers.get("JOB-TOKEN"))
        if job is None:
            return self.refuse(403, "no such job, or not its token")
        start = re.match(r"(\d+)-", self.headers.get("Content-Range", ""))
        if start is None:
            return self.refuse(400, "no Content-Range")
        with self.server.changed:
            fits = int(start[1]) <= len(job.trace)
            if fits:
                # A Runner that learns here of the cancel sends the same part of the trace again.
                job.trace = job.trace[: int(start[1])] + body
                self.server.changed.notify_all()
            told = "canceled" if job.canceled else job.state
            return self.answer(202 if fits else 416, None, told, Range=f"0-{len(job.trace)}")

    def do_PUT(self):
        update = json.loads(self.body())
        job = self.job("", update.get("token"))
        if job is None:
            return self.refuse(403, "no such job, or not its token")
        with self.server.changed:
            if not job.ended():
                job.state, job.failure_reason = update["state"], update.get("failure_reason")
                self.server.changed.notify_all()
            return self.answer(200, {}, "canceled" if job.canceled else None)

    def body(self):
        """Returns the body of the request, whether it has a length or comes in chunks."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def route(self):
        """Returns the path without the query: newer Runners send `?debug_trace=false` with a trace."""
        return urllib.parse.urlsplit(self.path).path

    def job(self, rest, token):
        """Returns the job that the path names, or None if the token is not the job's."""
        found = re.fullmatch(r"/api/v4/jobs/(\d+)" + rest, self.route())
        job = found and self.server.jobs.get(int(found[1]))
        return job if job and job.answer["token"] == token else None

    def refuse(self, code, why):
        self.server.wrong.append(f"{self.command} {self.path}: {why}")
        self.answer(code, {"message": why})

    def answer(self, code, content=None, status=None, **headers):
        body = b"" if content is None else json.dumps(content).encode()
        self.send_response(code)
        if content is not None:
            self.send_header("Content-Type", "application/json")
        if code != 204:
            self.send_header("Content-Length", str(len(body)))
        if status is not None:
            self.send_header("Job-Status", status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Prints nothing: wrong calls are recorded."""


def main(path):
    coordinator = Coordinator()
    print(coordinator.url, TOKEN, flush=True)
    with open(path, encoding="utf-8") as file:
        job = coordinator.put(1, json.load(file))
    coordinator.wait(job.ended, None, "the end of the job")
    sys.stdout.buffer.write(job.trace)
    print(job.state, job.failure_reason or "", *coordinator.wrong)


if __name__ == "__main__":
    main(*sys.argv[1:])
