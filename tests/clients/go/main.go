// A client with the default options of grpc-go: client SOCKET CALLS RUNS FOLLOWERS QUIET
//
// It prints a line for each part of the test. It asks the script that started it (scripts/clients) to restart the
// daemon and to count connections.
package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	pb "step-runner/clients/pb"
)

const secret = "a-secret-of-this-job"

var (
	socket                        string
	calls, runs, followers, quiet int
	background                    = context.Background()
	stdin                         = bufio.NewReader(os.Stdin)
)

// check ends the program with this message unless the condition holds.
func check(holds bool, what ...any) {
	if !holds {
		fmt.Fprintln(os.Stderr, what...)
		os.Exit(1)
	}
}

func need[T any](value T, err error) T {
	check(err == nil, err)
	return value
}

// ask sends a request to the script and returns its answer.
func ask(what string) string {
	fmt.Println("ask", what)
	return strings.TrimSpace(need(stdin.ReadString('\n')))
}

func connect(options ...grpc.DialOption) pb.StepRunnerClient {
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	return pb.NewStepRunnerClient(need(grpc.NewClient("unix:"+socket, options...)))
}

func script(text string) string { return `[{name: work, script: "` + text + `"}]` }

// bodies returns the lines that the steps wrote, without time, stream and flag (docs/integrate/protocol.md).
func bodies(log []byte) []string {
	lines := []string{}
	for line := range strings.Lines(string(log)) {
		if len(line) > 32 && line[28:31] == "01O" {
			lines = append(lines, strings.TrimSuffix(line[32:], "\n"))
		}
	}
	return lines
}

func numbers(last int) string {
	text := make([]string, last)
	for i := range text {
		text[i] = strconv.Itoa(i + 1)
	}
	return strings.Join(text, " ")
}

// follow appends the rest of the log, from the offset len(log) to its end.
func follow(ctx context.Context, c pb.StepRunnerClient, id string, log []byte, seen func([]byte)) ([]byte, error) {
	stream, err := c.FollowLogs(ctx, &pb.FollowLogsRequest{Id: id, Offset: int32(len(log))}, grpc.WaitForReady(true))
	for err == nil {
		var piece *pb.FollowLogsResponse
		if piece, err = stream.Recv(); err == nil {
			log = append(log, piece.Data...)
			if seen != nil {
				seen(log)
			}
		}
	}
	if err == io.EOF {
		err = nil
	}
	return log, err
}

func run(c pb.StepRunnerClient, id, text string, variables ...*pb.Variable) {
	request := &pb.RunRequest{Id: id, Steps: script(text), Job: &pb.Job{Variables: variables}}
	need(c.Run(background, request))
}

func finish(c pb.StepRunnerClient, id string) { need(c.Finish(background, &pb.FinishRequest{Id: id})) }

func state(c pb.StepRunnerClient, id string) *pb.Status {
	jobs := need(c.Status(background, &pb.StatusRequest{Id: id})).Jobs
	check(len(jobs) == 1, jobs)
	return jobs[0]
}

// parallel calls work with all numbers below count, at most `at` at a time.
func parallel(count, at int, work func(int)) {
	next := make(chan int)
	var all sync.WaitGroup
	for range at {
		all.Add(1)
		go func() {
			defer all.Done()
			for n := range next {
				work(n)
			}
		}()
	}
	for n := range count {
		next <- n
	}
	close(next)
	all.Wait()
}

func manyCalls(c pb.StepRunnerClient) string {
	parallel(calls, 16, func(int) {
		ctx, stop := context.WithTimeout(background, time.Minute)
		defer stop()
		need(c.Status(ctx, &pb.StatusRequest{}))
	})
	connections := ask("connections")
	check(connections == "1", connections, "connections")
	return fmt.Sprintf("%d calls, %s connection", calls, connections)
}

// oneRun runs one of five kinds of short jobs, from Run to Finish.
func oneRun(c pb.StepRunnerClient, n int) {
	id, kind := fmt.Sprint("run-", n), n%5
	text := []string{"echo hello", "exit 3", "seq 200", "echo $TOKEN", "echo started; sleep 600"}[kind]
	run(c, id, text, &pb.Variable{Key: "TOKEN", Value: secret, Masked: true})
	if kind == 4 {
		need(c.Cancel(background, &pb.CancelRequest{Id: id}))
	}
	log := need(follow(background, c, id, nil, nil))
	ended := state(c, id)
	check(ended.Finished && ended.LogBytes == int64(len(log)), id, ended, len(log))
	check(ended.ExitCode == []int32{0, 3, 0, 0, -2}[kind], id, ended)
	expected := []string{"hello", "", numbers(200), "[MASKED]"}
	check(kind == 4 || strings.Join(bodies(log), " ") == expected[kind], id, string(log))
	finish(c, id)
}

func manyRuns(c pb.StepRunnerClient) string {
	parallel(runs, 20, func(n int) { oneRun(c, n) })
	nothingLeft(c)
	return fmt.Sprintf("%d runs", runs)
}

func nothingLeft(c pb.StepRunnerClient) {
	check(len(need(c.Status(background, &pb.StatusRequest{})).Jobs) == 0, "jobs are left")
}

func manyFollowers(c pb.StepRunnerClient) string {
	run(c, "many", "seq 40000")
	logs := make([][]byte, followers)
	parallel(followers, followers, func(n int) { logs[n] = need(follow(background, c, "many", nil, nil)) })
	for _, log := range logs {
		check(bytes.Equal(log, logs[0]), "followers saw different bytes")
	}
	check(strings.Join(bodies(logs[0]), " ") == numbers(40000), "the log has other lines")
	check(state(c, "many").LogBytes == int64(len(logs[0])), "the log has another length")
	finish(c, "many")
	return fmt.Sprintf("%d followers of %d bytes", followers, len(logs[0]))
}

func deadlines(c pb.StepRunnerClient) string {
	run(c, "late", "echo begun; sleep 2; echo done")
	other := make(chan []byte)
	go func() { other <- need(follow(background, c, "late", nil, nil)) }()
	ctx, stop := context.WithTimeout(background, 500*time.Millisecond)
	defer stop()
	_, err := follow(ctx, c, "late", nil, nil)
	check(status.Code(err) == codes.DeadlineExceeded, err)
	check(!state(c, "late").Finished, "the job has ended")
	check(strings.Join(bodies(<-other), " ") == "begun done", "the other follower")
	finish(c, "late")
	return "deadlines"
}

func cancelling(c pb.StepRunnerClient) string {
	run(c, "held", "echo begun; sleep 600")
	ctx, cancel := context.WithCancel(background)
	var held []grpc.ServerStreamingClient[pb.FollowLogsResponse]
	for range followers {
		stream := need(c.FollowLogs(ctx, &pb.FollowLogsRequest{Id: "held"}))
		need(stream.Recv())
		held = append(held, stream)
	}
	_, err := follow(background, c, "held", nil, nil)
	check(status.Code(err) == codes.ResourceExhausted && detail[*errdetails.ErrorInfo](err).Reason == "too_many_followers", err)
	check(detail[*errdetails.RetryInfo](err).RetryDelay.AsDuration() == time.Second, err)
	cancel()
	for _, stream := range held {
		for err = nil; err == nil; {
			_, err = stream.Recv()
		}
		check(status.Code(err) == codes.Canceled, err)
	}
	again := make(chan []byte)
	go func() { again <- untilThereIsRoom(c, "held") }()
	need(c.Cancel(background, &pb.CancelRequest{Id: "held"}))
	check(len(<-again) > 0 && state(c, "held").ExitCode == -2, "the job's end")
	finish(c, "held")
	return "cancel"
}

// untilThereIsRoom follows the log. While that is refused for now, it retries after the time that the daemon names.
func untilThereIsRoom(c pb.StepRunnerClient, id string) []byte {
	for {
		log, err := follow(background, c, id, nil, nil)
		if status.Code(err) != codes.ResourceExhausted {
			return need(log, err)
		}
		time.Sleep(detail[*errdetails.RetryInfo](err).RetryDelay.AsDuration())
	}
}

// keepAlive asks for a PING each second; grpc-go raises that to ten seconds.
func keepAlive() string {
	c := connect(grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: time.Second, Timeout: 5 * time.Second}))
	run(c, "quiet", fmt.Sprintf("sleep %d; echo awake", quiet))
	log := need(follow(background, c, "quiet", nil, nil))
	check(strings.Join(bodies(log), " ") == "awake", string(log))
	finish(c, "quiet")
	return fmt.Sprintf("keepalive for %d s", quiet)
}

// detail returns the detail of type T that came with a refusal.
func detail[T any](err error) T {
	for _, each := range status.Convert(err).Details() {
		if found, ok := each.(T); ok {
			return found
		}
	}
	check(false, "no such detail:", err)
	panic("not reached")
}

func refused(err error, code codes.Code, word string, metadata map[string]string) error {
	check(status.Code(err) == code, err)
	info := detail[*errdetails.ErrorInfo](err)
	check(info.Reason == word && info.Domain == "step-runner", info)
	check(fmt.Sprint(info.Metadata) == fmt.Sprint(metadata), info)
	return err
}

func errorsWithDetails(c pb.StepRunnerClient) string {
	_, err := c.Status(background, &pb.StatusRequest{Id: "nobody"})
	refused(err, codes.NotFound, "unknown_job", map[string]string{"id": "nobody"})
	_, err = c.Run(background, &pb.RunRequest{Id: "a/b"})
	refused(err, codes.InvalidArgument, "invalid_id", map[string]string{"field": "id"})
	var steps strings.Builder
	for n := range 30 {
		fmt.Fprintf(&steps, "- {name: s%d, script: 1, 鍵%d: %s}\n", n, n, strings.Repeat("ä", 200))
	}
	_, err = c.Run(background, &pb.RunRequest{Id: "bad", Steps: steps.String()})
	refused(err, codes.InvalidArgument, "malformed_steps", map[string]string{"id": "bad", "field": "steps"})
	violations := detail[*errdetails.BadRequest](err).FieldViolations
	check(len(violations) > 2, violations)
	check(violations[0].Field == "steps:1:25" && violations[0].Reason == "schema", violations[0])
	return "errors with details"
}

// restart follows a job while its daemon is killed and restarted, and resumes by offset.
func restart(c pb.StepRunnerClient) string {
	run(c, "long", "for i in $(seq 30); do echo $i; sleep 0.1; done; exit 7")
	var log []byte
	asked, broken := false, 0
	for {
		var err error
		log, err = follow(background, c, "long", log, func(log []byte) {
			if !asked && len(bodies(log)) >= 5 {
				asked = true
				check(ask("restart") == "restarted", "no restart")
			}
		})
		if err == nil {
			break
		}
		check(status.Code(err) == codes.Unavailable, err)
		broken++
	}
	check(asked && broken > 0, "the connection never broke")
	check(strings.Join(bodies(log), " ") == numbers(30), string(log))
	check(bytes.Equal(log, need(follow(background, c, "long", nil, nil))), "the log is another one")
	check(state(c, "long").ExitCode == 7, "the exit code")
	finish(c, "long")
	return "restart"
}

func main() {
	socket = os.Args[1]
	for n, value := range []*int{&calls, &runs, &followers, &quiet} {
		*value = need(strconv.Atoi(os.Args[2+n]))
	}
	fmt.Println("version grpc-go", grpc.Version)
	c := connect()
	part := func(work func(pb.StepRunnerClient) string) {
		begun := time.Now()
		fmt.Printf("part %s %.1f s\n", work(c), time.Since(begun).Seconds())
	}
	part(manyCalls)
	part(manyRuns)
	kept := make(chan string)
	go func() { kept <- keepAlive() }()
	part(manyFollowers)
	part(deadlines)
	part(cancelling)
	part(errorsWithDetails)
	fmt.Println("part", <-kept)
	part(restart)
	nothingLeft(c)
	fmt.Println("done")
}
