# The examples of docs/integrate/clients.md, taken from the page, for scripts/clients. Each runs twice in a row against one
# daemon and must print the log and the exit code of its job.
page=$PWD/docs/integrate/clients.md

# example LANGUAGE: prints the first example of a language, with our socket.
example() {
    awk -v fence="\`\`\`$1" '$0 == fence && !seen { seen = shown = 1; next } $0 == "```" { shown = 0 } shown' "$page" |
        sed "s|unix:/run/jobs/step-runner.sock|unix:$socket|"
}

# runs_twice COMMAND…: starts a daemon and runs an example.
runs_twice() {
    local round
    fresh
    for round in 1 2; do
        said=$("$@" 2>&1) && [[ $said == *'01O hello'*$'\n'0 ]] ||
            { echo "$name: the example of the page, run $round: $said" >&2 && return 1; }
    done
    echo "| $name | the example of clients.md, twice in a row | 0 failures |"
}

example_python() {
    example python >"$here/example.py"
    PYTHONPATH=$cache/python PYTHONDONTWRITEBYTECODE=1 runs_twice python3 "$here/example.py"
}

example_go() {
    mkdir -p "$cache/go/example"
    {
        printf '%s\n' 'package main' 'import ("context"; "fmt"; "log"; "os"; "time"' '"google.golang.org/grpc"' \
            '"google.golang.org/grpc/credentials/insecure"' 'pb "step-runner/clients/pb")' \
            'func main() {' 'ctx := context.Background()'
        example go
        echo '}'
    } >"$cache/go/example/main.go"
    (cd "$cache/go" && GOFLAGS='-mod=readonly -buildvcs=false' CGO_ENABLED=0 go build -o bin/example ./example)
    runs_twice "$cache/go/bin/example"
}

example_node() {
    example js >"$cache/node/example.js"
    runs_twice node "$cache/node/example.js"
}

example_jvm() {
    {
        printf 'import %s;\n' io.grpc.Grpc io.grpc.InsecureChannelCredentials steprunner.v1.StepRunnerGrpc \
            'steprunner.v1.StepRunnerOuterClass.*'
        printf 'class Example {\npublic static void main(String[] arguments) {\n'
        example java
        printf '}\n}\n'
    } >"$here/Example.java"
    runs_twice java -cp "$cache/jvm/target/classes:$cache/jvm/lib/*" "$here/Example.java"
}
