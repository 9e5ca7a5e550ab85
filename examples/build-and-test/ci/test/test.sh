# test.sh PROGRAM OUTPUT_FILE: runs every test, then fails if one has failed.
set -eu
program=$1 output_file=$2
passed=0 failed=0
for test in tests/*.sh; do
    if sh "$test" "$program"; then
        echo "ok $test"
        passed=$((passed + 1))
    else
        echo "not ok $test"
        failed=$((failed + 1))
    fi
done
[ "$failed" -eq 0 ] || { echo "$failed failed" >&2; exit 1; }
printf '{"name": "passed", "value": %d}\n' "$passed" >> "$output_file"
