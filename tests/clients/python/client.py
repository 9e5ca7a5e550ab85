"""A client with the default options of Python's grpcio: client.py SOCKET CALLS RUNS FOLLOWERS QUIET

It prints a line for each part of the test. It asks the script that started it (scripts/clients) to restart the daemon
and to count connections."""

import concurrent.futures as futures
import sys
import time

import grpc
from google.rpc import error_details_pb2 as details
from grpc_status import rpc_status

from steprunner.v1 import step_runner_pb2 as pb
from steprunner.v1 import step_runner_pb2_grpc as stubs

SOCKET, CALLS, RUNS, FOLLOWERS, QUIET = sys.argv[1], *map(int, sys.argv[2:6])
SECRET = "a-secret-of-this-job"


def say(line):
    print(line, flush=True)


def ask(what):
    """Sends a request to the script and returns its answer."""
    say(f"ask {what}")
    return sys.stdin.readline().strip()


def check(holds, *what):
    if not holds:
        raise AssertionError(" ".join(map(str, what)))


def connect(**options):
    channel = grpc.insecure_channel(f"unix:{SOCKET}", [(f"grpc.{name}", value) for name, value in options.items()])
    return stubs.StepRunnerStub(channel)


def script(text):
    return '[{name: work, script: "' + text + '"}]'


def bodies(log):
    """Returns the lines that the steps wrote, without time, stream and flag (docs/integrate/protocol.md)."""
    return [line[32:] for line in log.decode().splitlines() if line[28:31] == "01O"]


def follow(stub, job, offset=0, **options):
    return b"".join(piece.data for piece in stub.FollowLogs(pb.FollowLogsRequest(id=job, offset=offset), **options))


def status(stub, job):
    (found,) = stub.Status(pb.StatusRequest(id=job)).jobs
    return found


def calls(stub):
    window = []
    for _ in range(CALLS):
        window.append(stub.Status.future(pb.StatusRequest(), timeout=60))
        if len(window) == 16:
            window.pop(0).result()
    for call in window:
        call.result()
    connections = ask("connections")
    check(connections == "1", connections, "connections")
    return f"{CALLS} calls, {connections} connection"


def one_run(stub, number):
    """Runs one of five kinds of short jobs, from Run to Finish."""
    job, kind = f"run-{number}", number % 5
    text = ["echo hello", "exit 3", "seq 200", "echo $TOKEN", "echo started; sleep 600"][kind]
    variables = [pb.Variable(key="TOKEN", value=SECRET, masked=True)]
    stub.Run(pb.RunRequest(id=job, steps=script(text), job=pb.Job(variables=variables)), timeout=60)
    if kind == 4:
        stub.Cancel(pb.CancelRequest(id=job), timeout=60)
    log = follow(stub, job, timeout=120)
    ended = status(stub, job)
    check(ended.finished and ended.log_bytes == len(log), job, ended, len(log))
    check(ended.exit_code == [0, 3, 0, 0, -2][kind], job, ended)
    expected = [["hello"], [], [str(n) for n in range(1, 201)], ["[MASKED]"]]
    check(kind == 4 or bodies(log) == expected[kind], job, log)
    stub.Finish(pb.FinishRequest(id=job), timeout=60)


def runs(stub):
    with futures.ThreadPoolExecutor(20) as pool:
        for done in futures.as_completed([pool.submit(one_run, stub, number) for number in range(RUNS)]):
            done.result()
    check(not stub.Status(pb.StatusRequest()).jobs, "jobs are left")
    return f"{RUNS} runs"


def followers(stub):
    stub.Run(pb.RunRequest(id="many", steps=script("seq 40000")))
    with futures.ThreadPoolExecutor(FOLLOWERS) as pool:
        logs = list(pool.map(lambda _: follow(stub, "many"), range(FOLLOWERS)))
    check(len(set(logs)) == 1, "followers saw different bytes")
    check(bodies(logs[0]) == [str(n) for n in range(1, 40001)], "the log has other lines")
    check(status(stub, "many").log_bytes == len(logs[0]), "the log has another length")
    stub.Finish(pb.FinishRequest(id="many"))
    return f"{FOLLOWERS} followers of {len(logs[0])} bytes"


def deadlines(stub):
    stub.Run(pb.RunRequest(id="late", steps=script("echo begun; sleep 2; echo done")))
    with futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(follow, stub, "late")
        try:
            follow(stub, "late", timeout=0.5)
            check(False, "no deadline")
        except grpc.RpcError as error:
            check(error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error)
        check(not status(stub, "late").finished, "the job has ended")
        check(bodies(other.result()) == ["begun", "done"], "the other follower")
    stub.Finish(pb.FinishRequest(id="late"))
    return "deadlines"


def cancelling(stub):
    stub.Run(pb.RunRequest(id="held", steps=script("echo begun; sleep 600")))
    held = [stub.FollowLogs(pb.FollowLogsRequest(id="held")) for _ in range(FOLLOWERS)]
    for stream in held:
        check(next(stream).data, "nothing came")
    try:
        follow(stub, "held", timeout=60)
        check(False, "one more follower than may be")
    except grpc.RpcError as error:
        check(reason(error) == ("RESOURCE_EXHAUSTED", "too_many_followers"), error)
        check(detail(error, details.RetryInfo).retry_delay.seconds == 1, "no RetryInfo")
    for stream in held:
        stream.cancel()
    for stream in held:
        try:
            for _ in stream:
                pass
            check(False, "the stream ended by itself")
        except grpc.RpcError as error:
            check(error.code() == grpc.StatusCode.CANCELLED, error)
    with futures.ThreadPoolExecutor(1) as pool:
        again = pool.submit(until_there_is_room, stub, "held")
        stub.Cancel(pb.CancelRequest(id="held"))
        check(again.result().startswith(b"2") and status(stub, "held").exit_code == -2, "the job's end")
    stub.Finish(pb.FinishRequest(id="held"))
    return "cancel"


def until_there_is_room(stub, job):
    """Follows the log. While that is refused for now, retries after the time that the daemon names."""
    while True:
        try:
            return follow(stub, job)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            time.sleep(detail(error, details.RetryInfo).retry_delay.ToTimedelta().total_seconds())


def keepalive():
    stub = connect(keepalive_time_ms=1000, keepalive_timeout_ms=5000)
    stub.Run(pb.RunRequest(id="quiet", steps=script(f"sleep {QUIET}; echo awake")))
    log = follow(stub, "quiet")
    check(bodies(log) == ["awake"], log)
    stub.Finish(pb.FinishRequest(id="quiet"))
    return f"keepalive for {QUIET} s"


def reason(error):
    return error.code().name, detail(error, details.ErrorInfo).reason


def detail(error, kind):
    for packed in rpc_status.from_call(error).details:
        found = kind()
        if packed.Unpack(found):
            return found
    raise AssertionError(f"no {kind.DESCRIPTOR.name}: {error}")


def refused(call, request, code, word, metadata):
    try:
        call(request)
    except grpc.RpcError as error:
        info = detail(error, details.ErrorInfo)
        check((error.code().name, info.reason, info.domain) == (code, word, "step-runner"), error)
        check(dict(info.metadata) == metadata, info)
        return error
    raise AssertionError(f"{word}: the call succeeded")


def errors(stub):
    refused(stub.Status, pb.StatusRequest(id="nobody"), "NOT_FOUND", "unknown_job", {"id": "nobody"})
    refused(stub.Run, pb.RunRequest(id="a/b"), "INVALID_ARGUMENT", "invalid_id", {"field": "id"})
    malformed = "\n".join(f"- {{name: s{n}, script: 1, 鍵{n}: {'ä' * 200}}}" for n in range(30))
    request = pb.RunRequest(id="bad", steps=malformed)
    error = refused(stub.Run, request, "INVALID_ARGUMENT", "malformed_steps", {"id": "bad", "field": "steps"})
    violations = detail(error, details.BadRequest).field_violations
    check(len(violations) > 2 and all(each.field.startswith("steps:") for each in violations), violations)
    check(violations[0].field == "steps:1:25" and violations[0].reason == "schema", violations[0])
    return "errors with details"


def restart(stub):
    """Follows a job while its daemon is killed and restarted, and resumes by offset."""
    text = "for i in $(seq 30); do echo $i; sleep 0.1; done; exit 7"
    stub.Run(pb.RunRequest(id="long", steps=script(text)))
    log, asked, broken = b"", False, 0
    while True:
        try:
            stream = stub.FollowLogs(pb.FollowLogsRequest(id="long", offset=len(log)), wait_for_ready=True, timeout=120)
            for piece in stream:
                log += piece.data
                if len(bodies(log)) >= 5 and not asked:
                    asked = True
                    check(ask("restart") == "restarted", "no restart")
            break
        except grpc.RpcError as error:
            check(error.code() == grpc.StatusCode.UNAVAILABLE, error)
            broken += 1
    check(asked and broken, "the connection never broke")
    check(bodies(log) == [str(n) for n in range(1, 31)], log)
    check(log == follow(stub, "long"), "the log is another one")
    check(status(stub, "long").exit_code == 7, status(stub, "long"))
    stub.Finish(pb.FinishRequest(id="long"))
    return "restart"


def main():
    say(f"version grpcio {grpc.__version__}")
    stub = connect()
    with futures.ThreadPoolExecutor(1) as pool:
        quiet = None
        for part in [calls, runs, followers, deadlines, cancelling, errors, restart]:
            if part is restart:
                say(f"part {quiet.result()}")
            begun = time.monotonic()
            done = part(stub)
            say(f"part {done} {time.monotonic() - begun:.1f} s")
            if part is runs:
                quiet = pool.submit(keepalive)
    check(not stub.Status(pb.StatusRequest()).jobs, "jobs are left")
    say("done")


main()
