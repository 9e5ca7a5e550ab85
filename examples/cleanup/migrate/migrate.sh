# Migrates a database under a lock. Cancelled, it ends its work and gives the lock back.
set -eu
work=
unlock() {
    [ -z "$work" ] || kill "$work" 2>/dev/null || :
    wait
    rm -f migration.lock
    echo "lock given back"
}
trap unlock EXIT
trap 'exit 143' TERM
echo "migrating"
# The work takes the lock itself: whoever sees the lock can end the work.
sh -c 'echo "$$" > migration.lock; exec sleep 600' & work=$!
# A shell runs a trap between two commands, but leaves `wait` at once. (Some shells say "Terminated" there.)
wait "$work" 2>/dev/null
