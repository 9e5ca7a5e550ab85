// Package daemon starts the program under test for the reference's own tests.
package daemon

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Program returns the path of the program under test, from the environment.
func Program() string { return os.Getenv("STEP_RUNNER_BIN") }

// Daemon is a daemon with its own state folder. It ends with its test.
type Daemon struct {
	t       *testing.T
	socket  string
	running *exec.Cmd
}

// New prepares a daemon without starting it. Its environment is this process's, with the entries of env added.
func New(t *testing.T, env ...string) *Daemon {
	dir, err := os.MkdirTemp("", "d")
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{t: t, socket: filepath.Join(dir, "s.sock")}
	d.running = exec.Command(Program(), "serve", "--socket", d.socket, "--log-format", "plain", "--cancel-grace", "0s")
	d.running.Env = append(os.Environ(), env...)
	t.Cleanup(func() {
		d.Stop()
		_ = os.RemoveAll(dir)
	})
	return d
}

// Start starts the daemon and returns when it answers.
func (d *Daemon) Start() {
	stderr, err := d.running.StderrPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := d.running.Start(); err != nil {
		d.t.Fatal(err)
	}
	lines := bufio.NewReader(stderr)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			d.t.Fatalf("no daemon: %s", line)
		}
		if strings.HasPrefix(line, "step-runner is listening on socket ") {
			break
		}
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
}

// Stop ends the daemon and its jobs.
func (d *Daemon) Stop() {
	if d.running == nil || d.running.Process == nil {
		return
	}
	ended := d.running
	d.running = nil
	_ = ended.Process.Signal(os.Interrupt)
	timer := time.AfterFunc(20*time.Second, func() { _ = ended.Process.Kill() })
	defer timer.Stop()
	_ = ended.Wait()
}

// Connect returns a connection, which need not be ready.
func (d *Daemon) Connect(options ...grpc.DialOption) *grpc.ClientConn {
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient("unix:"+d.socket, options...)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = conn.Close() })
	return conn
}
