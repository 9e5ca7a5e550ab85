# grep.sh OUTPUT_FILE PATTERN FILE FIXED IGNORE_CASE MAX: typed inputs become options, output becomes typed outputs.
set -eu
output_file=$1 pattern=$2 file=$3 fixed=$4 ignore_case=$5 max=$6

# json TEXT: TEXT, one line, as a JSON string.
json() {
    printf '%s\n' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g; s/	/\\t/g; s/.*/"&"/'
}

# Arguments are collected in "$@": nothing is split or expanded again.
set -- -n
[ "$fixed" = false ] || set -- "$@" -F
[ "$ignore_case" = false ] || set -- "$@" -i
[ "$max" -eq 0 ] || set -- "$@" -m "$max"
set -- "$@" -e "$pattern" -- "$file"

# 1 says that nothing was found, which is an answer and no failure.
status=0
found=$(grep "$@") || status=$?
[ "$status" -le 1 ] || exit "$status"

numbers=$(printf '%s' "$found" | cut -d : -f 1 | paste -s -d , -)
first=$(printf '%s\n' "$found" | head -n 1)
{
    [ "$status" -eq 0 ] && echo '{"name": "found", "value": true}' || echo '{"name": "found", "value": false}'
    printf '{"name": "lines", "value": [%s]}\n' "$numbers"
    printf '{"name": "first", "value": %s}\n' "$(json "${first#*:}")"
} >> "$output_file"
