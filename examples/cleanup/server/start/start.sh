# start.sh NAME FOLDER OUTPUT_FILE: starts a server, and ends when it is ready.
set -eu
name=$1 folder=$2 output_file=$3
mkdir -p "$folder"
mkfifo "$folder/requests" "$folder/answers" "$folder/ready"
# The output of the server goes to a file: a step is over when its process has ended and its output is closed.
sh "${0%/*}/server.sh" "$folder" > "$folder/log" 2>&1 &
echo "$!" > "$folder/pid"
# Readiness is waited for, not slept for.
read -r ready < "$folder/ready"
echo "server $name is $ready"
printf '{"name": "folder", "value": "%s"}\n' "$folder" >> "$output_file"
