# What people run; `.ci/run` is the gate and calls the same commands.

# Format, lint, test: before every commit.
check: fmt lint test

fmt:
    cargo fmt --all --check

lint:
    cargo clippy --all-targets -- --deny warnings

test:
    cargo test

# The vectors of the specification only.
vectors:
    cargo test --test vectors

docs:
    RUSTDOCFLAGS="--deny warnings" cargo doc --no-deps --document-private-items

# Licences, bans and sources of everything in the tree (needs cargo-deny).
deny:
    cargo deny check bans licenses sources

# Kill the daemon at random moments and prove that nothing is lost.
crash points="500":
    scripts/crash --points {{points}}

bench:
    scripts/bench
