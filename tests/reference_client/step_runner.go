// Package testutil replaces the reference's helpers for integration tests: the same calls, with the daemon under test
// behind them.
package testutil

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"

	"gitlab.com/gitlab-org/step-runner/pkg/testutil/daemon"
	"gitlab.com/gitlab-org/step-runner/proto"
)

// StepRunnerBuilder collects the parameters of a job.
type StepRunnerBuilder struct {
	t   *testing.T
	env map[string]string
	job map[string]string
}

// StepRunner returns a new builder.
func StepRunner(t *testing.T) *StepRunnerBuilder {
	return &StepRunnerBuilder{t: t, env: map[string]string{}, job: map[string]string{}}
}

// WithGlobalCtxEnv sets the environment.
func (b *StepRunnerBuilder) WithGlobalCtxEnv(env map[string]string) *StepRunnerBuilder {
	b.env = env
	return b
}

// WithEnvKeyVal sets a variable of the environment.
func (b *StepRunnerBuilder) WithEnvKeyVal(key, value string) *StepRunnerBuilder {
	b.env[key] = value
	return b
}

// WithGlobalCtxJob sets a job variable.
func (b *StepRunnerBuilder) WithGlobalCtxJob(key, value string) *StepRunnerBuilder {
	b.job[key] = value
	return b
}

// WithDebugLogs enables debug lines in the log.
func (b *StepRunnerBuilder) WithDebugLogs() *StepRunnerBuilder {
	return b.WithGlobalCtxJob("CI_STEPS_LOG_LEVEL", "debug")
}

// Run runs the steps. It returns the whole result, the log, and an error if the job failed.
func (b *StepRunnerBuilder) Run(steps string) (*proto.StepResult, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	runner := daemon.New(b.t)
	runner.Start()
	conn := runner.Connect()
	client := proto.NewStepRunnerClient(conn)
	dir, err := os.Getwd()
	require.NoError(b.t, err)
	request := &proto.RunRequest{Id: "1", WorkDir: dir, Env: b.env, Steps: steps, Job: &proto.Job{BuildDir: dir}}
	for key, value := range b.job {
		request.Job.Variables = append(request.Job.Variables, &proto.Variable{Key: key, Value: value})
	}
	if _, err := client.Run(ctx, request); err != nil {
		return nil, "", err
	}
	stream, err := client.FollowLogs(ctx, &proto.FollowLogsRequest{Id: "1"})
	require.NoError(b.t, err)
	var log bytes.Buffer
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(b.t, err)
		log.Write(piece.Data)
	}
	root, err := rootResult(ctx, conn)
	require.NoError(b.t, err)
	answer, err := client.Status(ctx, &proto.StatusRequest{Id: "1"})
	require.NoError(b.t, err)
	if status := answer.Jobs[0]; status.Status != proto.StepResult_success {
		return root, log.String(), errors.New(status.Message)
	}
	return root, log.String(), nil
}

// raw passes the bytes of messages through, because the reference's own definition does not have FollowSteps.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(message any) ([]byte, error) { return message.([]byte), nil }

func (raw) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = bytes.Clone(data)
	return nil
}

func rootResult(ctx context.Context, conn *grpc.ClientConn) (*proto.StepResult, error) {
	description := &grpc.StreamDesc{StreamName: "FollowSteps", ServerStreams: true}
	stream, err := conn.NewStream(ctx, description, "/proto.StepRunner/FollowSteps", grpc.ForceCodec(raw{}))
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "1")); err != nil {
		return nil, err
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	var last []byte
	for {
		var message []byte
		err := stream.RecvMsg(&message)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		last = message
	}
	_, _, tag := protowire.ConsumeTag(last)
	if tag < 0 {
		return nil, fmt.Errorf("no result")
	}
	result, length := protowire.ConsumeBytes(last[tag:])
	if length < 0 {
		return nil, fmt.Errorf("no result")
	}
	root := &proto.StepResult{}
	return root, protobuf.Unmarshal(result, root)
}
