# Reads every shell file without running it.
set -eu
for file in src/*.sh tests/*.sh; do
    sh -n "$file"
    echo "ok $file"
done
