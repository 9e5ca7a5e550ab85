// Package server replaces the reference's own test server: the same calls, with the daemon under test behind them.
package server

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"gitlab.com/gitlab-org/step-runner/pkg/testutil/daemon"
	"gitlab.com/gitlab-org/step-runner/proto"
)

// TestStepRunnerServer is the daemon of one test.
type TestStepRunnerServer struct {
	*daemon.Daemon
	// True if Run returns when the job has ended. The reference's test server does so unless a test gives it an executor.
	waits bool
}

// New prepares a server; Serve starts it.
func New(t *testing.T, options ...func(*TestStepRunnerServer)) *TestStepRunnerServer {
	server := &TestStepRunnerServer{Daemon: daemon.New(t), waits: true}
	for _, option := range options {
		option(server)
	}
	return server
}

// Serve starts the server.
func (s *TestStepRunnerServer) Serve() *TestStepRunnerServer {
	s.Start()
	return s
}

// NewConnection returns a connection. On it, Run returns when the job has ended, as with the reference's test server.
func (s *TestStepRunnerServer) NewConnection() *grpc.ClientConn {
	if !s.waits {
		return s.Connect()
	}
	return s.Connect(grpc.WithChainUnaryInterceptor(untilEnd))
}

func untilEnd(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, call grpc.UnaryInvoker, options ...grpc.CallOption) error {
	err := call(ctx, method, request, answer, conn, options...)
	run, isRun := request.(*proto.RunRequest)
	if err != nil || !isRun || !strings.HasSuffix(method, "/Run") {
		return err
	}
	stream, err := proto.NewStepRunnerClient(conn).FollowLogs(ctx, &proto.FollowLogsRequest{Id: run.Id})
	for err == nil {
		_, err = stream.Recv()
	}
	if err == io.EOF {
		return nil
	}
	return err
}

// WithExecutor is used by tests in which Run returns before the job has ended.
func WithExecutor(func(delegate func())) func(*TestStepRunnerServer) {
	return func(server *TestStepRunnerServer) { server.waits = false }
}

// WithJobRunExitWaitTime does nothing: Close always waits until the job has ended.
func WithJobRunExitWaitTime(time.Duration) func(*TestStepRunnerServer) {
	return func(*TestStepRunnerServer) {}
}
