# suite.sh RUNTIME JOBS COVERAGE SUITES LABELS TEAM: numbers and booleans come as words, arrays and structs as JSON.
set -eu
echo "runtime $1, $2 jobs, suites $4, labels $5"
if [ "$3" = true ]; then
    echo "coverage goes to team $6"
fi
