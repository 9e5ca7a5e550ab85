# build.sh VERSION OUTPUT_FILE: joins the sources into one program.
set -eu
version=$1 output_file=$2
program=build/slug
# The version becomes part of a program: let nothing through that could be code.
case $version in
    *[!0-9A-Za-z.+-]*) echo "not a version: $version" >&2; exit 1 ;;
esac
mkdir -p build
{
    echo '#!/bin/sh'
    echo "VERSION='$version'"
    cat src/*.sh
} > "$program"
chmod +x "$program"
bytes=$(wc -c < "$program")
echo "built $program"
printf '{"name": "program", "value": "%s"}\n' "$program" >> "$output_file"
printf '{"name": "bytes", "value": %d}\n' "$bytes" >> "$output_file"
