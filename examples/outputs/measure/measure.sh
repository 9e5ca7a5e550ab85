# measure.sh FOLDER OUTPUT_FILE: counts the files of FOLDER and their bytes.
set -eu
folder=$1 output_file=$2

# json TEXT: TEXT, one line, as a JSON string.
json() {
    printf '%s\n' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g; s/	/\\t/g; s/.*/"&"/'
}

files=0 bytes=0 most=-1
for file in "$folder"/*; do
    [ -f "$file" ] || continue
    size=$(wc -c < "$file")
    files=$((files + 1)) bytes=$((bytes + size))
    if [ "$size" -gt "$most" ]; then
        most=$((size)) largest=${file##*/}
    fi
done
{
    printf '{"name": "files", "value": %d}\n' "$files"
    printf '{"name": "bytes", "value": %d}\n' "$bytes"
    if [ "$files" -gt 0 ]; then
        printf '{"name": "largest", "value": {"name": %s, "bytes": %d}}\n' "$(json "$largest")" "$most"
    fi
} >> "$output_file"
