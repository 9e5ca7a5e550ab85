package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"gitlab.com/gitlab-org/step-runner/pkg/api/client"
	"gitlab.com/gitlab-org/step-runner/pkg/api/client/basic"
	"gitlab.com/gitlab-org/step-runner/pkg/api/client/extended"
)

// patience is the longest wait for anything. Only a server that hangs needs it.
const patience = 2 * time.Minute

// oneCase is a named test: a job, or a few calls.
type oneCase struct {
	name string
	look func(*server, string) error
}

// files are put into the working directory of each job.
var files = map[string]string{
	"typed/step.yml": `spec:
  inputs:
    s: {type: string, default: text}
    n: {type: number, default: 1.5}
    b: {type: boolean, default: true}
    o: {type: struct, default: {b: 1, a: [x]}}
    a: {type: array, default: [1, two]}
---
exec:
  command: [sh, -c, 'printf "%s\n" "$@"', sh, '${{inputs.s}}', '${{inputs.n}}', '${{inputs.b}}', '${{inputs.o}}', '${{inputs.a}}']
`,
	"required/step.yml": `spec:
  inputs:
    name: {type: string}
---
exec:
  command: [echo, '${{inputs.name}}']
`,
	"give/step.yml": `spec:
  inputs:
    word: {type: string}
  outputs:
    word: {type: string}
---
exec:
  command:
    - sh
    - -c
    - |
      printf '{"name":"word","value":"<%s>"}\n' "$1" > ${{output_file}}
      printf '{"name":"EXPORTED","value":"%s"}\n' "$1" > ${{export_file}}
    - sh
    - ${{inputs.word}}
`,
	"outer/step.yml": `spec:
  outputs:
    word: {type: string}
---
env:
  LAYER: outer
run:
  - name: first
    step: ../give
    inputs: {word: one}
  - name: second
    step: ../give
    inputs: {word: '${{steps.first.outputs.word}} ${{env.LAYER}}'}
outputs:
  word: ${{steps.second.outputs.word}}
`,
	"delegating/step.yml": `spec:
  outputs: delegate
---
run:
  - name: inner
    step: ../give
    inputs: {word: delegated}
delegate: inner
`,
	"promises/step.yml": `spec:
  outputs:
    word: {type: string}
---
exec:
  command: ['true']
`,
}

func cases() []oneCase {
	return []oneCase{
		{"success", script("echo one; echo two")},
		{"both channels", script("echo out; sleep 0.3; echo err >&2")},
		{"empty lines", script(`printf 'a\n\n\nb\n'`)},
		{"carriage returns", script(`printf 'a\r\nb\rc\n'`)},
		{"no line feed at the end", script("printf abc")},
		{"a line of 200,000 bytes", longLine},
		{"exit code 7", script("exit 7")},
		{"exit code 255", script("exit 255")},
		{"killed by a signal", script("kill -9 $$")},
		{"command not found", script("no-such-command 2>/dev/null")},
		{"program not found", job("run: [{name: a, step: ./missing}]\n", with{})},
		{"second of three steps fails", job("run:\n- {name: a, script: echo 1}\n- {name: b, script: exit 3}\n- {name: c, script: echo 3}\n", with{})},
		{"environment and job variables", job(
			"run: [{name: a, script: 'echo ${{env.E}} ${{job.V}} $E [$V] [$CI_JOB_ID]'}]\n",
			with{env: map[string]string{"E": "e $HOME"}, variables: []client.Variable{{Key: "V", Value: "v"}, {Key: "CI_JOB_ID", Value: "9"}}},
		)},
		{"file variable", fileVariable},
		{"file variable without a working directory", fileVariableAtHome},
		{"no working directory", home("run: [{name: a, script: pwd}]\n")},
		{"relative step without a working directory", home("run: [{name: a, step: ./give, inputs: {word: w}}]\n")},
		{"unknown job variable", expression("${{job.NONE}}")},
		{"unknown variable of the environment", expression("${{env.NONE}}")},
		{"unknown step", expression("${{steps.none.outputs.x}}")},
		{"expression that is not closed", expression("${{job.NONE")},
		{"inputs with their defaults", job("run: [{name: a, step: ./typed}]\n", with{})},
		{"inputs of each type", job("run: [{name: a, step: ./typed, inputs: {s: 'a b', n: 3, b: false, o: {k: v, l: 2}, a: [1, x, true]}}]\n", with{})},
		{"inputs nested in each other", job("run: [{name: a, step: ./typed, inputs: {o: {k: {l: [1, true]}}, a: [[], {}]}}]\n", with{})},
		{"a number as string", job("run: [{name: a, step: ./typed, inputs: {s: 5}}]\n", with{})},
		{"a string as number", job("run: [{name: a, step: ./typed, inputs: {n: five}}]\n", with{})},
		{"input missing", job("run: [{name: a, step: ./required}]\n", with{})},
		{"input unknown", job("run: [{name: a, step: ./required, inputs: {name: a, x: b}}]\n", with{})},
		{"nested steps", job("run:\n- {name: a, step: ./outer}\n- {name: b, script: \"echo '${{steps.a.outputs.word}}' $EXPORTED\"}\n", with{})},
		{"delegation", job("run:\n- {name: a, step: ./delegating}\n- {name: b, script: \"echo '${{steps.a.outputs.word}}'\"}\n", with{})},
		{"output missing", job("run: [{name: a, step: ./promises}]\n", with{})},
		{"steps that are no YAML", job("run: [", with{})},
		{"steps with an unknown key", job("run: [{name: a, skript: b}]\n", with{})},
		{"no steps", job("run: []\n", with{})},
		{"closed while it runs", closed},
		{"deadline of the client", deadline},
		{"the same id twice", twice},
		{"unknown id", unknown},
		{"the log from an offset", offset},
		{"list of jobs", list},
	}
}

// with holds the environment and variables of a job.
type with struct {
	env       map[string]string
	variables []client.Variable
}

// request makes a request with a new working directory that holds the files.
func request(on *server, name, steps string, with with) (*client.RunRequest, error) {
	id := strings.Map(func(r rune) rune {
		if strings.ContainsRune(" ,", r) {
			return '-'
		}
		return r
	}, name)
	dir := filepath.Join(on.folder, "jobs", id)
	if err := lay(dir); err != nil {
		return nil, err
	}
	return &client.RunRequest{
		Id: id, WorkDir: dir, Env: with.env, Variables: with.variables, Steps: "spec: {}\n---\n" + steps,
	}, nil
}

func lay(dir string) error {
	for path, text := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func job(steps string, with with) func(*server, string) error {
	return func(on *server, name string) error {
		request, err := request(on, name, steps, with)
		if err != nil {
			return err
		}
		_, err = run(on, name, request)
		return err
	}
}

func script(text string) func(*server, string) error {
	return job(fmt.Sprintf("run: [{name: a, script: %q}]\n", text), with{})
}

func expression(text string) func(*server, string) error {
	return job(fmt.Sprintf("run: [{name: a, step: ./required, inputs: {name: %q}}]\n", text), with{})
}

// home makes a case whose job has no working directory.
func home(steps string) func(*server, string) error {
	return func(on *server, name string) error {
		request, err := request(on, name, steps, with{})
		if err != nil {
			return err
		}
		if err := lay(filepath.Join(on.folder, "work")); err != nil {
			return err
		}
		request.WorkDir = ""
		_, err = run(on, name, request)
		return err
	}
}

// dial is the address of a server, in the form that the reference's client takes.
type dial string

func (d dial) Dial() (*grpc.ClientConn, error) {
	return grpc.NewClient(string(d), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// run runs a job to its end with the reference's client and notes everything that the client sees. It returns the log.
func run(on *server, name string, request *client.RunRequest) (string, error) {
	log.SetOutput(io.Discard)
	runner, err := extended.New(dial(on.conn.Target()))
	if err != nil {
		return "", err
	}
	defer runner.CloseConn()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var text bytes.Buffer
	err = runner.Run(ctx, request)
	on.note(name, runCode, status.Code(unwrapped(err)).String())
	if err != nil {
		on.note(name, "Run: message", status.Convert(unwrapped(err)).Message())
		return "", nil
	}
	_, err = runner.Follow(ctx, request.Id, &extended.FollowOutput{Logs: &text})
	noted := "none"
	if err != nil {
		noted = err.Error()
	}
	on.note(name, "error of Follow", noted)
	ended, err := end(ctx, runner.StepRunnerClient, request.Id)
	if err != nil {
		return "", err
	}
	on.note(name, "state", ended.State.String())
	on.note(name, "message", ended.Message)
	output, own := parted(text.String(), ended.Message)
	on.note(name, "log", output)
	if own.announcement != "" {
		on.note("any job", "announcement of a step", own.announcement)
	}
	if ended.Message != "" {
		on.note("any failed job", "its message is in the log", fmt.Sprint(own.failure))
	}
	on.note(name, "times are in order", fmt.Sprint(!ended.StartTime.IsZero() && !ended.EndTime.Before(ended.StartTime)))
	on.note(name, "Close", fmt.Sprint(runner.Close(ctx, request.Id)))
	return text.String(), nil
}

// statusEvery is the time between two looks at the state of a job.
const statusEvery = 10 * time.Millisecond

// end waits until a job has ended. A follower that fails leaves before that, and then the state is a matter of luck.
func end(ctx context.Context, runner *basic.StepRunnerClient, id string) (client.Status, error) {
	for {
		seen, err := runner.Status(ctx, id)
		if err != nil || seen.State != client.StateRunning {
			return seen, err
		}
		select {
		case <-ctx.Done():
			return seen, fmt.Errorf("job %s has not ended: %w", id, ctx.Err())
		case <-time.After(statusEvery):
		}
	}
}

// runCode is the fact that says if Run refused a job. If only one server did, nothing else of the job can be compared.
const runCode = "Run: code"

// ownLines are the lines that the server itself writes to a log.
type ownLines struct {
	announcement string
	failure      bool
}

var announced = regexp.MustCompile(`(?m)^(Running step (?:name=)?"?)([a-z]+)("?)$`)

// parted removes the server's own lines from a log. Their form is noted once, not for each job.
func parted(log, message string) (string, ownLines) {
	var own ownLines
	if line := announced.FindString(log); line != "" {
		own.announcement = announced.ReplaceAllString(line, "${1}NAME$3")
	}
	log = announced.ReplaceAllString(log, "[step $2]")
	last := "job failed: " + message + "\n"
	if before, found := strings.CutSuffix(log, last); found && message != "" {
		log, own.failure = before, true
	}
	return log, own
}

// unwrapped returns the server's error, which the client has wrapped.
func unwrapped(err error) error {
	if err == nil {
		return nil
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return err
}

func longLine(on *server, name string) error {
	request, err := request(on, name, "run: [{name: a, script: 'head -c 200000 /dev/zero | tr \"\\0\" x; echo'}]\n", with{})
	if err != nil {
		return err
	}
	text, err := run(on, name, request)
	on.note(name, "log", fmt.Sprintf("%d x", strings.Count(text, "x")))
	return err
}

func secret() []client.Variable {
	return []client.Variable{{Key: "FILE", Value: "content $HOME\nand more", File: true}}
}

const showFile = "run: [{name: a, script: 'echo ${{job.FILE}}; stat -c %a ${{job.FILE}}; cat ${{job.FILE}}; echo'}]\n"

func fileVariable(on *server, name string) error {
	request, err := request(on, name, showFile, with{variables: secret()})
	if err != nil {
		return err
	}
	text, err := run(on, name, request)
	on.note(name, "file after Close", exists(text))
	return err
}

func fileVariableAtHome(on *server, name string) error {
	request, err := request(on, name, showFile, with{variables: secret()})
	if err != nil {
		return err
	}
	request.WorkDir = ""
	text, err := run(on, name, request)
	on.note(name, "file after Close", exists(text))
	return err
}

// exists says if the first path in a log exists.
func exists(text string) string {
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "/") {
			_, err := os.Stat(line)
			return fmt.Sprint(err == nil)
		}
	}
	return "no path"
}

// watched is a log that closes a channel once it contains a text.
type watched struct {
	bytes.Buffer
	text string
	seen chan struct{}
}

func (w *watched) Write(p []byte) (int, error) {
	had := strings.Contains(w.String(), w.text)
	n, err := w.Buffer.Write(p)
	if !had && strings.Contains(w.String(), w.text) {
		close(w.seen)
	}
	return n, err
}

func closed(on *server, name string) error {
	request, err := request(on, name, "run: [{name: a, script: 'echo begun; sleep 60'}]\n", with{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	runner := basic.New(on.conn)
	if err := runner.Run(ctx, request); err != nil {
		return err
	}
	text := &watched{text: "begun", seen: make(chan struct{})}
	end := make(chan error, 1)
	go func() {
		_, err := runner.FollowLogs(ctx, request.Id, 0, text)
		end <- err
	}()
	select {
	case <-text.seen:
	case err := <-end:
		return fmt.Errorf("the log ended early (%v): %s", err, text)
	}
	running, err := runner.Status(ctx, request.Id)
	on.note(name, "state before", fmt.Sprint(running.State, " ", err))
	on.note(name, "Close", fmt.Sprint(runner.Close(ctx, request.Id)))
	on.note(name, "end of the log", fmt.Sprint(<-end))
	_, err = runner.Status(ctx, request.Id)
	on.note(name, "Status is refused", fmt.Sprint(err != nil))
	on.note(name, "Close again", fmt.Sprint(runner.Close(ctx, request.Id)))
	return nil
}

func deadline(on *server, name string) error {
	request, err := request(on, name, "run: [{name: a, script: 'echo begun; sleep 60'}]\n", with{})
	if err != nil {
		return err
	}
	runner, err := extended.New(dial(on.conn.Target()))
	if err != nil {
		return err
	}
	defer runner.CloseConn()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	var text bytes.Buffer
	ended, err := runner.RunAndFollow(ctx, request, &extended.FollowOutput{Logs: &text})
	on.note(name, "error says context deadline exceeded", fmt.Sprint(err != nil && strings.Contains(err.Error(), "context deadline exceeded")))
	on.note(name, "state", ended.State.String())
	on.note(name, "message", ended.Message)
	_, err = runner.Status(context.Background(), request.Id)
	on.note(name, "the job is closed", fmt.Sprint(err != nil))
	return nil
}

func twice(on *server, name string) error {
	request, err := request(on, name, "run: [{name: a, script: 'echo run >> count; cat count'}]\n", with{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	runner := basic.New(on.conn)
	if err := runner.Run(ctx, request); err != nil {
		return err
	}
	if _, err := run(on, name, request); err != nil {
		return err
	}
	// After Close a job can run again.
	_, err = run(on, name+", closed in between", request)
	return err
}

func unknown(on *server, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	runner := basic.New(on.conn)
	_, err := runner.Status(ctx, "none")
	on.note(name, "Status: code", status.Code(unwrapped(err)).String())
	on.note(name, "Status: message", status.Convert(unwrapped(err)).Message())
	_, err = runner.FollowLogs(ctx, "none", 0, io.Discard)
	on.note(name, "FollowLogs: code", status.Code(unwrapped(err)).String())
	on.note(name, "Close", fmt.Sprint(runner.Close(ctx, "none")))
	return nil
}

func offset(on *server, name string) error {
	request, err := request(on, name, "run: [{name: a, script: 'seq 1000'}]\n", with{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	runner := basic.New(on.conn)
	if err := runner.Run(ctx, request); err != nil {
		return err
	}
	var whole bytes.Buffer
	length, err := runner.FollowLogs(ctx, request.Id, 0, &whole)
	on.note(name, "length is that of the log", fmt.Sprint(length == int64(whole.Len()), " ", err))
	offsets := map[string]int64{"1": 1, "100": 100, "the last byte": length - 1, "the end": length}
	for from, at := range offsets {
		var rest bytes.Buffer
		_, err := runner.FollowLogs(ctx, request.Id, at, &rest)
		same := bytes.Equal(rest.Bytes(), whole.Bytes()[at:])
		on.note(name, "right from "+from, fmt.Sprint(same, " ", err))
	}
	var rest bytes.Buffer
	_, err = runner.FollowLogs(ctx, request.Id, length+1, &rest)
	on.note(name, "past the end", fmt.Sprint(status.Code(unwrapped(err))))
	return runner.Close(ctx, request.Id)
}

func list(on *server, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	runner := basic.New(on.conn)
	for _, id := range []string{"list-1", "list-2"} {
		request, err := request(on, id, "run: [{name: a, script: 'echo'}]\n", with{})
		if err != nil {
			return err
		}
		if err := runner.Run(ctx, request); err != nil {
			return err
		}
		if _, err := runner.FollowLogs(ctx, id, 0, io.Discard); err != nil {
			return err
		}
		if _, err := end(ctx, runner, id); err != nil {
			return err
		}
	}
	jobs, err := runner.ListJobs(ctx)
	if err != nil {
		return err
	}
	ids := make([]string, 0, len(jobs))
	for _, job := range jobs {
		ids = append(ids, job.Id+" "+job.State.String())
	}
	slices.Sort(ids)
	on.note(name, "jobs", strings.Join(ids, ", "))
	for _, id := range []string{"list-1", "list-2"} {
		if err := runner.Close(ctx, id); err != nil {
			return err
		}
	}
	return nil
}
