# login.sh USER OUTPUT_FILE: gets a ticket for USER with $PASSWORD (here: computes one).
set -eu
echo "user $1, password $PASSWORD"
ticket=$(printf '%s:%s' "$1" "$PASSWORD" | sha256sum)
printf '{"name": "ticket", "value": "%s"}\n' "${ticket%% *}" >> "$2"
