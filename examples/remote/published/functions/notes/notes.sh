# notes.sh TAG OUTPUT_FILE: writes the notes of a release (here: to the log).
set -eu
echo "# Release $1"
printf '{"name": "title", "value": "release %s"}\n' "$1" >> "$2"
