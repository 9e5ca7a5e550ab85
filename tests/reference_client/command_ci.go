// Package ci replaces a command of the reference: it passes the same arguments to the program under test.
package ci

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"gitlab.com/gitlab-org/step-runner/pkg/runner"
	"gitlab.com/gitlab-org/step-runner/pkg/testutil/daemon"
)

// NewCmd returns the command.
func NewCmd() *cobra.Command {
	return &cobra.Command{
		Use:                "ci",
		DisableFlagParsing: true,
		SilenceUsage:       true,
		RunE: func(_ *cobra.Command, args []string) error {
			program := exec.Command(daemon.Program(), append([]string{"ci"}, args...)...)
			program.Env = append(os.Environ(), fmt.Sprintf("CI_STEPS_DEBUG=%t", runner.RunningInDebugMode))
			said, err := program.CombinedOutput()
			fmt.Print(string(said))
			if err != nil {
				return fmt.Errorf("%w: %s", err, bytes.TrimSpace(said))
			}
			return nil
		},
	}
}
