# Starts a real Kubernetes node for scripts that source this file from the folder above `tests`. They set `proof` before,
# the name that begins their lines. Afterwards `here` is a new folder, `kubectl` in `PATH`, `node` the process id of the
# node's namespace, `KUBECONFIG` the administrator's, and `STEP_RUNNER_BIN` a static program. The images are
# `step-runner:0.1.0` and `busybox:1`. The node has neither scheduler nor network for Pods. It ends with the script.
# Needs root, go 1.24 or later, containerd, openssl, busybox (static) and python3. The first run builds etcd,
# kube-apiserver, kubelet and kubectl (some minutes of processor time, 5 GB of caches) into the target folder. All of
# them listen on 127.0.0.1 and run in their own mount and process namespaces.
repository=$PWD
target=${CARGO_TARGET_DIR:-$repository/target}
# From 1.35 on the API server requires `create` for a WebSocket too: the first round below then needs both verbs.
release=v1.34.4
tools=$target/kube/$release
# skipped WHY: skips this test. With STEP_RUNNER_REQUIRE_PARTS set it fails instead.
skipped() {
    echo "$proof: skipped: $1"
    [ -z "${STEP_RUNNER_REQUIRE_PARTS:-}" ] || exit 1
    exit 0
}
fail() {
    echo "$proof: $1" >&2
    [ -z "${2:-}" ] || cat "$2" >&2
    exit 1
}
[ "$(id -u)" = 0 ] || skipped 'not root'
for part in go containerd ctr openssl busybox python3 readelf unshare; do
    command -v "$part" >/dev/null || skipped "no $part"
done
# A Go this new is not in every distribution. Without it the test is skipped even with STEP_RUNNER_REQUIRE_PARTS set.
go_is_new() {
    local version
    # A Go that is there but fails is a failure.
    version=$(cd / && GOTOOLCHAIN=local go env GOVERSION) && [ -n "$version" ] || fail 'go does not tell its version'
    [[ $version =~ go([0-9]+)\.([0-9]+) ]] && ((BASH_REMATCH[1] > 1 || BASH_REMATCH[2] >= 24)) && return
    STEP_RUNNER_REQUIRE_PARTS='' skipped "needs go 1.24 or later, this is $version"
}
[ -x "$tools/kube" ] || go_is_new
# A dynamically linked program has an INTERP header.
headers=$(readelf --program-headers --wide "$(command -v busybox)") || fail 'readelf cannot read busybox'
[[ $headers != *INTERP* ]] || skipped 'no static busybox'
# One program contains all parts of Kubernetes; its first argument selects the part.
kube() { "$tools/kube" "$@"; }
kubectl() { kube kubectl "$@"; }

build_tools() {
    [ -x "$tools/kube" ] && return
    local source=$tools/source
    local -x GOFLAGS='-mod=mod -buildvcs=false' CGO_ENABLED=0
    mkdir -p "$source"
    cp "$repository/deploy/kubernetes/test/kube.go" "$source/main.go"
    printf 'module kube\n\ngo 1.24.0\n' >"$source/go.mod"
    # The download's errors are in its output.
    go -C "$source" mod download -json "k8s.io/kubernetes@$release" >"$source/download.json" ||
        fail 'the Go modules cannot be downloaded:' "$source/download.json"
    # go.mod names the staging libraries of Kubernetes without versions. They are released separately as v0.x.
    python3 - "$source/download.json" "$release" >>"$source/go.mod" <<'PYTHON'
import json, re, sys
release = sys.argv[2]
text = open(json.load(open(sys.argv[1]))["Dir"] + "/go.mod").read()
print(f"require k8s.io/kubernetes {release}\nreplace (")
for name in sorted(set(re.findall(r"(k8s\.io/[a-z-]+) => \./staging", text))):
    print(f"\t{name} => {name} v0{release[2:]}")
print(")")
PYTHON
    go -C "$source" mod tidy
    local version=k8s.io/component-base/version minor=${release#v1.}
    go -C "$source" build -trimpath -o "$tools/kube.new" -ldflags \
        "-s -w -X $version.gitVersion=$release -X $version.gitMajor=1 -X $version.gitMinor=${minor%.*}" .
    mv "$tools/kube.new" "$tools/kube"
}

build_tools
if [ -z "${STEP_RUNNER_BIN:-}" ]; then
    scripts/static-build --profile release
    STEP_RUNNER_BIN=$target/x86_64-unknown-linux-musl/release/step-runner
fi
here=$(mktemp -d /tmp/kube.XXXXXX)
# Lists the cgroups that containers leave behind.
control_groups() { find /sys/fs/cgroup -maxdepth 2 -type d \( -name k8s.io -o -name kubepods \) 2>/dev/null || true; }
others=$(control_groups)
end() {
    # Killing the first process of the pid namespace kills all others in it, though not immediately.
    [ -z "${node:-}" ] || { kill -KILL "$node" 2>/dev/null || true; wait "$node" 2>/dev/null || true; }
    for _ in $(seq 50); do ! rm -rf --one-file-system "$here" 2>/dev/null || break; sleep 0.2; done
    [ -n "$others" ] || control_groups | while read -r group; do find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true; done
}
trap end EXIT
# eventually COMMAND: retries the command for two minutes.
eventually() {
    for _ in $(seq 600); do "$@" >/dev/null 2>&1 && return; sleep 0.2; done
    echo "$proof: this never came true: $*" >&2
    tail -n 20 "$here"/*.log >&2
    return 1
}

# Builds two images: the program alone, and a shell with tools.
deploy/kubernetes/test/images.py "$STEP_RUNNER_BIN" "$(command -v busybox)" "$here/images.tar"

read -r etcd peer api kubelet < <(python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
print(*(s.getsockname()[1] for s in sockets))')
token=$(openssl rand -hex 24)
printf '%s,admin,admin,system:masters\n' "$token" >"$here/tokens.csv"
openssl genrsa -out "$here/accounts.key" 2>/dev/null
export KUBECONFIG=$here/admin.conf
# config NAME: prints a kubeconfig of the administrator, who can impersonate others.
config() {
    cat <<CONFIG
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://127.0.0.1:$api", insecure-skip-tls-verify: true}}]
users: [{name: test, user: {token: $token${1:+, as: "$1"}}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
current-context: test
CONFIG
}
config >"$KUBECONFIG"
config system:serviceaccount:default:step-client >"$here/client.conf"
config system:serviceaccount:default:step-agent >"$here/agent.conf"
mkdir "$here"/{certificates,kubelet,no-network,pods,volume-plugins}
cat >"$here/containerd.toml" <<CONFIG
version = 2
root = "$here/containerd/root"
state = "$here/containerd/state"
[grpc]
address = "$here/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/library/busybox:1"
restrict_oom_score_adj = true
disable_apparmor = true
stream_server_address = "127.0.0.1"
[plugins."io.containerd.grpc.v1.cri".cni]
conf_dir = "$here/no-network"
bin_dir = "$here/no-network"
CONFIG
cat >"$here/kubelet.yaml" <<CONFIG
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
port: $kubelet
healthzPort: 0
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
podLogsDir: $here/pods
volumePluginDir: $here/volume-plugins
containerRuntimeEndpoint: unix://$here/containerd.sock
resolvConf: ""
evictionHard: {memory.available: 50Mi}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
CONFIG
cat >"$here/node.sh" <<NODE
set -eu
mount --make-rprivate /
mkdir -p "$here/var-log" && mount --bind "$here/var-log" /var/log
# The kubelet wants to change kernel settings of the whole machine. Here /proc/sys is read-only and shows the values
# that it wants.
mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys
for wanted in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \\
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    name=\${wanted%=*}
    mkdir -p "$here/sys/\${name%/*}" && echo "\${wanted#*=}" >"$here/sys/\$name"
    [ ! -e "/proc/sys/\$name" ] || mount --bind "$here/sys/\$name" "/proc/sys/\$name"
done
containerd --config "$here/containerd.toml" >"$here/containerd.log" 2>&1 &
"$tools/kube" etcd --data-dir "$here/etcd" --unsafe-no-fsync --listen-client-urls http://127.0.0.1:$etcd \\
    --advertise-client-urls http://127.0.0.1:$etcd --listen-peer-urls http://127.0.0.1:$peer \\
    --initial-advertise-peer-urls http://127.0.0.1:$peer --initial-cluster default=http://127.0.0.1:$peer >"$here/etcd.log" 2>&1 &
# Restarts the API server whenever it ends.
while :; do "$tools/kube" apiserver --etcd-servers http://127.0.0.1:$etcd --bind-address 127.0.0.1 --advertise-address 127.0.0.1 \\
    --secure-port $api --cert-dir "$here/certificates" --endpoint-reconciler-type none --service-cluster-ip-range 10.96.0.0/24 \\
    --token-auth-file "$here/tokens.csv" --authorization-mode RBAC --service-account-issuer https://test \\
    --service-account-key-file "$here/accounts.key" --service-account-signing-key-file "$here/accounts.key" \\
    --disable-admission-plugins ServiceAccount --kubelet-preferred-address-types InternalIP,Hostname >"$here/apiserver.log" 2>&1 || :
done &
until ctr --address "$here/containerd.sock" --namespace k8s.io images import "$here/images.tar"; do sleep 0.3; done >/dev/null 2>&1
until "$tools/kube" kubectl get --raw /readyz; do sleep 0.3; done >/dev/null 2>&1
"$tools/kube" kubelet --config "$here/kubelet.yaml" --kubeconfig "$KUBECONFIG" --root-dir "$here/kubelet" \\
    --cert-dir "$here/certificates" --hostname-override 127.0.0.1 >"$here/kubelet.log" 2>&1 &
wait
NODE
unshare --mount --pid --fork --kill-child --mount-proc bash "$here/node.sh" >"$here/node.log" 2>&1 &
node=$!
eventually kubectl get node 127.0.0.1
mkdir "$here/bin" && printf '#!/bin/sh\nexec "%s" kubectl "$@"\n' "$tools/kube" >"$here/bin/kubectl" && chmod 755 "$here/bin/kubectl"
export PATH=$here/bin:$PATH
