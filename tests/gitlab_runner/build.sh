# Provides a real GitLab Runner. Scripts read it in the root of the repository, with `proof`, their own name. It sets
# `runner`, the absolute path of the program.
#
# Needs go 1.24 or later (docs/integrate/gitlab-runner.md). The first run builds GitLab Runner 12.5.0, the newest release
# that the Go module proxy has, into the target folder (a minute of processor time). Set GITLAB_RUNNER=FILE to use another.
# shellcheck shell=bash
target=${CARGO_TARGET_DIR:-$PWD/target}
# skipped WHY: skips this test. With STEP_RUNNER_REQUIRE_PARTS set it fails instead.
skipped() {
    echo "$proof: skipped: $1"
    [ -z "${STEP_RUNNER_REQUIRE_PARTS:-}" ] || exit 1
    exit 0
}
# need PART…: skips this test without one of these programs.
need() {
    local part
    for part in "$@"; do
        command -v "$part" >/dev/null || skipped "no $part"
    done
}
# A Go this new is not in every distribution. Without it the test is skipped even with STEP_RUNNER_REQUIRE_PARTS set.
go_is_new() {
    local version
    # A Go that is there but fails is a failure.
    version=$(cd / && GOTOOLCHAIN=local go env GOVERSION) && [ -n "$version" ] || {
        echo "$proof: go does not tell its version" >&2
        exit 1
    }
    [[ $version =~ go([0-9]+)\.([0-9]+) ]] && ((BASH_REMATCH[1] > 1 || BASH_REMATCH[2] >= 24)) && return
    STEP_RUNNER_REQUIRE_PARTS='' skipped "needs go 1.24 or later, this is $version"
}
# build_runner: builds the program unless it is there, and sets `runner`.
build_runner() {
    local release=12.5.0
    local build=$target/gitlab-runner/$release package=gitlab.com/gitlab-org/gitlab-runner
    runner=${GITLAB_RUNNER:-$build/gitlab-runner}
    if [ -z "${GITLAB_RUNNER:-}" ] && ! [ -x "$runner" ]; then
        need go
        go_is_new
        mkdir -p "$build"
        cp tests/gitlab_runner/go.mod "$build/"
        (
            cd "$build"
            export GOFLAGS='-mod=mod -buildvcs=false' CGO_ENABLED=0
            go mod download "$package"
            go build -trimpath -ldflags "-s -w -X $package/common.VERSION=$release" -o gitlab-runner.new "$package"
            mv gitlab-runner.new gitlab-runner
        )
    fi
    runner=$(realpath "$runner")
}
