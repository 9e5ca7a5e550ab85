# Short names of the commands in CONTRIBUTING.md. `.ci/run` is the gate.

# Format, lint, test: before every commit.
check: fmt lint test

fmt:
    cargo fmt --all --check

lint:
    cargo clippy --locked --all-targets --test shows -- --deny warnings

test:
    cargo test --features failpoints

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
