//! Compiles the service definitions with a compiler written in Rust, so `protoc` is not needed.
//!
//! The definitions are in `proto/` at the root of the repository, where authors of clients look for them. A package made
//! of this crate alone would lack them.

use std::error::Error;
use std::path::PathBuf;

use tonic_prost_build::{Builder, Config};

/// Folder of the definitions, from the folder of this crate.
const DEFINITIONS: &str = "../../proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={DEFINITIONS}");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);

    let own = ["steprunner/v1/step_runner.proto", "steprunner/v0/step_runner.proto"];
    let compatible = "compatible/step_runner.proto";
    let mut all = protox::Compiler::new([DEFINITIONS])?;
    all.include_imports(true).open_files(own)?.open_file(compatible)?;
    std::fs::write(out.join("definitions.bin"), all.encode_file_descriptor_set())?;

    let own = protox::compile(own, [DEFINITIONS])?;
    builder().codec_path("crate::Codec").compile_fds_with_config(own, config())?;

    // First the messages of the compatible service, then the service itself. Its request to run a job is our own type,
    // which combines the certain part and the guessed part.
    let compatible = protox::compile([compatible], [DEFINITIONS])?;
    let (messages, service) = (out.join("messages"), out.join("service"));
    std::fs::create_dir_all(&messages)?;
    std::fs::create_dir_all(&service)?;
    let messages = builder().out_dir(messages).build_client(false).build_server(false);
    messages
        .extern_path(".steprunner.v1", "crate::v1")
        .compile_fds_with_config(compatible.clone(), config())?;
    builder()
        .out_dir(service)
        .build_client(false)
        .codec_path("crate::Codec")
        .extern_path(".steprunner.v1", "crate::v1")
        .extern_path(".proto", "crate::compatible::messages")
        .extern_path(".proto.guesses", "crate::compatible::messages::guesses")
        .extern_path(".proto.RunRequest", "crate::compatible::RunRequest")
        .compile_fds_with_config(compatible, config())?;
    Ok(())
}

fn builder() -> Builder {
    tonic_prost_build::configure()
        .bytes(".steprunner.v1.FollowLogsResponse")
        // Ordered maps: equal requests must have equal bytes, because their digests are compared.
        .btree_map(".")
}

fn config() -> Config {
    let mut config = Config::new();
    config.enable_type_names();
    config
}
