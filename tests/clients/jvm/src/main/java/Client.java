import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Context;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import steprunner.v1.StepRunnerGrpc;
import steprunner.v1.StepRunnerGrpc.StepRunnerBlockingStub;
import steprunner.v1.StepRunnerOuterClass.CancelRequest;
import steprunner.v1.StepRunnerOuterClass.FinishRequest;
import steprunner.v1.StepRunnerOuterClass.FollowLogsRequest;
import steprunner.v1.StepRunnerOuterClass.FollowLogsResponse;
import steprunner.v1.StepRunnerOuterClass.Job;
import steprunner.v1.StepRunnerOuterClass.RunRequest;
import steprunner.v1.StepRunnerOuterClass.StatusRequest;
import steprunner.v1.StepRunnerOuterClass.Variable;

/**
 * A client with the default options of grpc-java: Client SOCKET CALLS RUNS FOLLOWERS QUIET
 *
 * <p>It prints a line for each part of the test. It asks the script that started it (scripts/clients) to restart the
 * daemon and to count connections.
 */
public final class Client {
    private static final BufferedReader STDIN =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private static final ExecutorService POOL = Executors.newCachedThreadPool();
    private static String socket;
    private static int calls;
    private static int runs;
    private static int followers;
    private static int quiet;

    private final StepRunnerBlockingStub stub;

    private Client(ManagedChannelBuilder<?> builder) {
        stub = StepRunnerGrpc.newBlockingStub(builder.build());
    }

    private static ManagedChannelBuilder<?> channel() {
        return Grpc.newChannelBuilder("unix:" + socket, InsecureChannelCredentials.create());
    }

    private static void check(boolean holds, Object what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    /** Sends a request to the script and returns its answer. */
    private static String ask(String what) throws IOException {
        System.out.println("ask " + what);
        return STDIN.readLine().strip();
    }

    private void run(String id, String text, Variable... variables) {
        String steps = "[{name: work, script: \"" + text + "\"}]";
        Job job = Job.newBuilder().addAllVariables(List.of(variables)).build();
        stub.run(RunRequest.newBuilder().setId(id).setSteps(steps).setJob(job).build());
    }

    private void finish(String id) {
        stub.finish(FinishRequest.newBuilder().setId(id).build());
    }

    private void cancel(String id) {
        stub.cancel(CancelRequest.newBuilder().setId(id).build());
    }

    private steprunner.v1.StepRunnerOuterClass.Status state(String id) {
        return stub.status(StatusRequest.newBuilder().setId(id).build()).getJobs(0);
    }

    private Iterator<FollowLogsResponse> stream(String id, int offset) {
        FollowLogsRequest request = FollowLogsRequest.newBuilder().setId(id).setOffset(offset).build();
        return stub.withWaitForReady().followLogs(request);
    }

    private ByteString follow(String id) {
        List<ByteString> pieces = new ArrayList<>();
        stream(id, 0).forEachRemaining(piece -> pieces.add(piece.getData()));
        return ByteString.copyFrom(pieces);
    }

    /** Returns the lines that the steps wrote, without time, stream and flag (docs/integrate/protocol.md). */
    private static String bodies(ByteString log) {
        return log.toStringUtf8().lines()
                .filter(line -> line.startsWith("01O", 28))
                .map(line -> line.substring(32))
                .collect(Collectors.joining(" "));
    }

    private static String numbers(int last) {
        return IntStream.rangeClosed(1, last).mapToObj(Integer::toString).collect(Collectors.joining(" "));
    }

    /** Calls work with all numbers below count, at most `at` at a time. */
    private static void parallel(int count, int at, Consumer<Integer> work) throws Exception {
        AtomicInteger next = new AtomicInteger();
        Callable<Void> worker = () -> {
            for (int n = next.getAndIncrement(); n < count; n = next.getAndIncrement()) {
                work.accept(n);
            }
            return null;
        };
        List<Future<Void>> workers = new ArrayList<>();
        for (int i = 0; i < at; i++) {
            workers.add(POOL.submit(worker));
        }
        for (Future<Void> each : workers) {
            each.get();
        }
    }

    private String manyCalls() throws Exception {
        parallel(calls, 16, n ->
                stub.withDeadlineAfter(1, TimeUnit.MINUTES).status(StatusRequest.getDefaultInstance()));
        String connections = ask("connections");
        check(connections.equals("1"), connections + " connections");
        return calls + " calls, " + connections + " connection";
    }

    /** Runs one of five kinds of short jobs, from Run to Finish. */
    private void oneRun(int n) {
        String id = "run-" + n;
        int kind = n % 5;
        String text = List.of("echo hello", "exit 3", "seq 200", "echo $TOKEN", "echo started; sleep 600").get(kind);
        run(id, text, Variable.newBuilder().setKey("TOKEN").setValue("a-secret-of-this-job").setMasked(true).build());
        if (kind == 4) {
            cancel(id);
        }
        ByteString log = follow(id);
        var ended = state(id);
        check(ended.getFinished() && ended.getLogBytes() == log.size(), ended);
        check(ended.getExitCode() == List.of(0, 3, 0, 0, -2).get(kind), ended);
        List<String> expected = List.of("hello", "", numbers(200), "[MASKED]");
        check(kind == 4 || bodies(log).equals(expected.get(kind)), log.toStringUtf8());
        finish(id);
    }

    private String manyRuns() throws Exception {
        parallel(runs, 20, this::oneRun);
        nothingLeft();
        return runs + " runs";
    }

    private void nothingLeft() {
        check(stub.status(StatusRequest.getDefaultInstance()).getJobsCount() == 0, "jobs are left");
    }

    private String manyFollowers() throws Exception {
        run("many", "seq 40000");
        ByteString[] logs = new ByteString[followers];
        parallel(followers, followers, n -> logs[n] = follow("many"));
        for (ByteString log : logs) {
            check(log.equals(logs[0]), "followers saw different bytes");
        }
        check(bodies(logs[0]).equals(numbers(40000)), "the log has other lines");
        check(state("many").getLogBytes() == logs[0].size(), "the log has another length");
        finish("many");
        return followers + " followers of " + logs[0].size() + " bytes";
    }

    private String deadlines() throws Exception {
        run("late", "echo begun; sleep 2; echo done");
        Future<ByteString> other = POOL.submit(() -> follow("late"));
        FollowLogsRequest request = FollowLogsRequest.newBuilder().setId("late").build();
        StatusRuntimeException error = failure(() ->
                stub.withDeadlineAfter(500, TimeUnit.MILLISECONDS).followLogs(request).forEachRemaining(piece -> { }));
        check(error.getStatus().getCode() == Status.Code.DEADLINE_EXCEEDED, error);
        check(!state("late").getFinished(), "the job has ended");
        check(bodies(other.get()).equals("begun done"), "the other follower");
        finish("late");
        return "deadlines";
    }

    private String cancelling() throws Exception {
        run("held", "echo begun; sleep 600");
        Context.CancellableContext context = Context.current().withCancellation();
        List<Iterator<FollowLogsResponse>> held = new ArrayList<>();
        context.run(() -> {
            for (int i = 0; i < followers; i++) {
                held.add(stream("held", 0));
            }
        });
        held.forEach(Iterator::next);
        StatusRuntimeException error = failure(() -> follow("held"));
        refused(error, Status.Code.RESOURCE_EXHAUSTED, "too_many_followers", Map.of("id", "held"));
        check(detail(error, RetryInfo.class).getRetryDelay().getSeconds() == 1, error);
        context.cancel(null);
        for (Iterator<FollowLogsResponse> stream : held) {
            StatusRuntimeException end = failure(() -> stream.forEachRemaining(piece -> { }));
            check(end.getStatus().getCode() == Status.Code.CANCELLED, end);
        }
        Future<ByteString> again = POOL.submit(() -> untilThereIsRoom("held"));
        cancel("held");
        check(!again.get().isEmpty() && state("held").getExitCode() == -2, "the job's end");
        finish("held");
        return "cancel";
    }

    /** Follows the log. While that is refused for now, retries after the time that the daemon names. */
    private ByteString untilThereIsRoom(String id) throws Exception {
        while (true) {
            try {
                return follow(id);
            } catch (StatusRuntimeException error) {
                if (error.getStatus().getCode() != Status.Code.RESOURCE_EXHAUSTED) {
                    throw error;
                }
                TimeUnit.SECONDS.sleep(detail(error, RetryInfo.class).getRetryDelay().getSeconds());
            }
        }
    }

    /** Asks for a PING each second; grpc-java raises that to ten seconds. */
    private static String keepAlive() {
        Client client = new Client(channel().keepAliveTime(1, TimeUnit.SECONDS).keepAliveTimeout(5, TimeUnit.SECONDS));
        client.run("quiet", "sleep " + quiet + "; echo awake");
        check(bodies(client.follow("quiet")).equals("awake"), "the quiet job");
        client.finish("quiet");
        return "keepalive for " + quiet + " s";
    }

    private static StatusRuntimeException failure(Runnable call) {
        try {
            call.run();
        } catch (StatusRuntimeException error) {
            return error;
        }
        throw new AssertionError("the call succeeded");
    }

    /** Returns the detail of this type that came with a refusal. */
    private static <T extends Message> T detail(StatusRuntimeException error, Class<T> type)
            throws InvalidProtocolBufferException {
        for (Any each : StatusProto.fromThrowable(error).getDetailsList()) {
            if (each.is(type)) {
                return each.unpack(type);
            }
        }
        throw new AssertionError("no such detail: " + error);
    }

    private static void refused(
            StatusRuntimeException error, Status.Code code, String reason, Map<String, String> metadata)
            throws InvalidProtocolBufferException {
        ErrorInfo info = detail(error, ErrorInfo.class);
        check(error.getStatus().getCode() == code, error);
        check(info.getReason().equals(reason) && info.getDomain().equals("step-runner"), info);
        check(info.getMetadataMap().equals(metadata), info);
    }

    private String errors() throws Exception {
        refused(failure(() -> state("nobody")), Status.Code.NOT_FOUND, "unknown_job", Map.of("id", "nobody"));
        RunRequest badId = RunRequest.newBuilder().setId("a/b").build();
        refused(failure(() -> stub.run(badId)), Status.Code.INVALID_ARGUMENT, "invalid_id", Map.of("field", "id"));
        String steps = IntStream.range(0, 30)
                .mapToObj(n -> "- {name: s" + n + ", script: 1, 鍵" + n + ": " + "ä".repeat(200) + "}\n")
                .collect(Collectors.joining());
        RunRequest bad = RunRequest.newBuilder().setId("bad").setSteps(steps).build();
        StatusRuntimeException error = failure(() -> stub.run(bad));
        Map<String, String> metadata = Map.of("id", "bad", "field", "steps");
        refused(error, Status.Code.INVALID_ARGUMENT, "malformed_steps", metadata);
        var violations = detail(error, BadRequest.class).getFieldViolationsList();
        check(violations.size() > 2 && violations.get(0).getField().equals("steps:1:25"), violations);
        return "errors with details";
    }

    /** Follows a job while its daemon is killed and restarted, and resumes by offset. */
    private String restart() throws Exception {
        run("long", "for i in $(seq 30); do echo $i; sleep 0.1; done; exit 7");
        ByteString log = ByteString.EMPTY;
        boolean asked = false;
        int broken = 0;
        for (boolean whole = false; !whole;) {
            try {
                Iterator<FollowLogsResponse> stream = stream("long", log.size());
                while (stream.hasNext()) {
                    log = log.concat(stream.next().getData());
                    if (!asked && bodies(log).split(" ").length >= 5) {
                        asked = true;
                        check(ask("restart").equals("restarted"), "no restart");
                    }
                }
                whole = true;
            } catch (StatusRuntimeException error) {
                check(error.getStatus().getCode() == Status.Code.UNAVAILABLE, error);
                broken++;
            }
        }
        check(asked && broken > 0, "the connection never broke");
        check(bodies(log).equals(numbers(30)), log.toStringUtf8());
        check(log.equals(follow("long")), "the log is another one");
        check(state("long").getExitCode() == 7, "the exit code");
        finish("long");
        return "restart";
    }

    private static void part(Callable<String> work) throws Exception {
        long begun = System.nanoTime();
        String done = work.call();
        System.out.printf("part %s %.1f s%n", done, (System.nanoTime() - begun) / 1e9);
    }

    private static void all() throws Exception {
        System.out.println("version grpc-java " + io.grpc.internal.GrpcUtil.IMPLEMENTATION_VERSION);
        Client client = new Client(channel());
        part(client::manyCalls);
        part(client::manyRuns);
        Future<String> kept = POOL.submit(Client::keepAlive);
        part(client::manyFollowers);
        part(client::deadlines);
        part(client::cancelling);
        part(client::errors);
        System.out.println("part " + kept.get());
        part(client::restart);
        client.nothingLeft();
        System.out.println("done");
    }

    public static void main(String[] arguments) {
        socket = arguments[0];
        calls = Integer.parseInt(arguments[1]);
        runs = Integer.parseInt(arguments[2]);
        followers = Integer.parseInt(arguments[3]);
        quiet = Integer.parseInt(arguments[4]);
        try {
            all();
            System.exit(0);
        } catch (Exception | AssertionError error) {
            error.printStackTrace();
            System.exit(1);
        }
    }
}
