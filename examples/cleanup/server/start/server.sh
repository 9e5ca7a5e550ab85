# server.sh FOLDER: answers each line of FOLDER/requests with a line in FOLDER/answers.
set -eu
cd "$1"
trap 'echo "server stopped"' EXIT
trap 'exit 0' TERM
exec 3<> requests
echo listening > ready
while read -r request <&3; do
    echo "you said: $request" > answers
done
