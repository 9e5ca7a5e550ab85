//! Compiles the service definitions under `proto/` with a compiler written in Rust: no `protoc` is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["steprunner/v1/step_runner.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".steprunner.v1.FollowLogsResponse")
        // Ordered maps: equal requests have equal bytes, which their digest relies on.
        .btree_map(".")
        .codec_path("crate::pb::Codec")
        .compile_fds(files)?;
    Ok(())
}
