# Starts a real Docker engine with images of our own, for scripts that source this file from the folder above `tests`.
# They set `proof` before, the name that begins their lines. Afterwards `here` is a new folder, `DOCKER_HOST` the engine, and
# `STEP_RUNNER_BIN` a static program. The engine sets up no network and pulls nothing. It ends with the script.
# skipped WHY: skips this test. With STEP_RUNNER_REQUIRE_PARTS set it fails instead.
skipped() {
    echo "$proof: skipped: $1"
    [ -z "${STEP_RUNNER_REQUIRE_PARTS:-}" ] || exit 1
    exit 0
}
[ "$(id -u)" = 0 ] || skipped 'not root'
for part in dockerd docker busybox readelf; do
    command -v "$part" >/dev/null || skipped "no $part"
done
busybox=$(command -v busybox)
# A dynamically linked program has an INTERP header. A readelf that is there but fails is a failure.
headers=$(readelf --program-headers --wide "$busybox") || { echo "$proof: readelf cannot read busybox" >&2; exit 1; }
[[ $headers != *INTERP* ]] || skipped 'no static busybox'

if [ -z "${STEP_RUNNER_BIN:-}" ]; then
    scripts/static-build --profile release
    STEP_RUNNER_BIN=${CARGO_TARGET_DIR:-target}/x86_64-unknown-linux-musl/release/step-runner
fi
here=$(mktemp -d -t sr-docker.XXXXXX)
# Settings for another engine must not apply here.
unset DOCKER_CONTEXT DOCKER_TLS_VERIFY DOCKER_CERT_PATH
export DOCKER_HOST=unix://$here/docker.sock DOCKER_CONFIG=$here/client
mounts() { while read -r _ _ _ _ at _; do [[ $at != "$here"/* ]] || echo "$at"; done </proc/self/mountinfo; }
# Lists the cgroups that containers leave behind.
control_groups() { find /sys/fs/cgroup -maxdepth 2 -type d -name docker 2>/dev/null || true; }
others=$(control_groups)
end() {
    local code=$?
    if [ -n "${engine:-}" ]; then
        [ "$code" = 0 ] || tail -n 20 "$here/dockerd.log" >&2
        docker ps --all --quiet 2>/dev/null | while read -r id; do docker rm --force "$id" >/dev/null 2>&1 || true; done
        kill -TERM "$engine" 2>/dev/null || true
        timeout 60 tail --pid="$engine" --follow /dev/null || kill -KILL "$engine" 2>/dev/null || true
        wait "$engine" 2>/dev/null || true
        mounts | sort --reverse | while read -r at; do umount "$at" || true; done
        [ -n "$others" ] || control_groups | while read -r group; do rmdir "$group" || true; done
    fi
    if [ "$code" = 0 ] && [ -z "$(mounts)" ]; then rm -rf --one-file-system "$here"; else echo "$proof: kept: $here" >&2; fi
}
trap end EXIT
fail() {
    echo "$proof: $1" >&2
    [ -z "${2:-}" ] || cat "$2" >&2
    exit 1
}
# eventually COMMAND: retries the command for two minutes, as long as the engine runs.
eventually() {
    local until=$((SECONDS + 120))
    until "$@" >/dev/null 2>&1; do
        kill -0 "$engine" 2>/dev/null || fail "the engine has ended, before this came true: $*"
        [ "$SECONDS" -lt "$until" ] || fail "this never came true: $*"
        sleep 0.2
    done
}

mkdir "$here/client" && echo '{}' >"$here/dockerd.json"
settings=(--bridge=none --iptables=false --ip6tables=false)
# Older engines change this score by default. Newer ones do not, and do not know the option.
[[ $(dockerd --help 2>&1) != *--oom-score-adjust* ]] || settings+=(--oom-score-adjust=0)
setsid dockerd --config-file "$here/dockerd.json" --host "$DOCKER_HOST" --data-root "$here/data" --exec-root "$here/run" \
    --pidfile "$here/dockerd.pid" "${settings[@]}" >"$here/dockerd.log" 2>&1 </dev/null &
engine=$!
eventually docker version

root=$here/root
mkdir -p "$root"/{bin,dev,etc,proc,root,sys,tmp} && chmod 1777 "$root/tmp" && cp "$busybox" "$root/bin/busybox"
"$busybox" --list | while read -r name; do [ "$name" = busybox ] || ln -s busybox "$root/bin/$name"; done
printf '#!/bin/sh\nexec "$@"\n' >"$root/wrapper"
# An init process for the image: passes SIGTERM on and reaps the processes it adopts.
cat >"$root/init" <<'INIT'
#!/bin/sh
"$@" &
child=$!
trap 'kill -TERM $child' TERM
while wait $child; code=$?; kill -0 $child 2>/dev/null; do :; done
exit $code
INIT
chmod 755 "$root/wrapper" "$root/init"
# image NAME [ENTRYPOINT]: makes an image of that root.
image() {
    local settings=(--change 'ENV PATH=/usr/local/bin:/usr/bin:/bin')
    [ -z "${2:-}" ] || settings+=(--change "ENTRYPOINT $2")
    tar -C "$root" -c . | docker import "${settings[@]}" - "$1" >/dev/null
}
