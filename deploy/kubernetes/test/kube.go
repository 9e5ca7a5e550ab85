// For scripts/kube-test: etcd, kube-apiserver, kubelet and kubectl of one release as one program, so that one link is enough.
package main

import (
	"context"
	"fmt"
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	parts := map[string]func() int{
		"etcd":      func() int { etcdmain.Main(os.Args); return 0 },
		"apiserver": func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
		"kubelet":   func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
		"kubectl":   func() int { return cli.Run(kubectl.NewDefaultKubectlCommand()) },
	}
	if len(os.Args) > 1 {
		if part, known := parts[os.Args[1]]; known {
			os.Args = os.Args[1:]
			os.Exit(part())
		}
	}
	fmt.Fprintln(os.Stderr, "use: kube etcd|apiserver|kubelet|kubectl [ARGUMENT]...")
	os.Exit(2)
}
