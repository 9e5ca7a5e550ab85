//! Invalid ids and offsets.

use super::Beside;
use crate::support::{Daemon, refused, request, script, tree};
use tonic::Code;

#[tokio::test]
async fn fault_70_ids_never_shape_a_path() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let client = daemon.client().await;
    let victim = daemon.file("victim");
    std::fs::create_dir_all(victim.join("deep")).unwrap();
    std::fs::write(victim.join("deep/file"), "precious").unwrap();
    let before = tree(&victim);
    let long = "a".repeat(129);
    let longer = "../".repeat(10 << 10);
    let ids = [
        "",
        ".",
        "..",
        "../victim",
        "x/../../victim",
        "../../../victim",
        "/etc",
        "a/b",
        "a\\b",
        "a\0b",
        "\0",
        "a b",
        " a",
        "a\n",
        "-a",
        "_a",
        ".a",
        "ä",
        "a\u{202e}b",
        "😀",
        "a*",
        "$(id)",
        "~",
        &long,
        &longer,
    ];
    for id in ids {
        let invalid = Code::InvalidArgument;
        refused(client.try_run(request(id, &script("true"))).await, invalid, "invalid_id");
        refused(client.try_follow(id, 0).await, invalid, "invalid_id");
        refused(client.try_steps(id).await, invalid, "invalid_id");
        refused(client.try_cancel(id).await, invalid, "invalid_id");
        refused(client.try_finish(id).await, invalid, "invalid_id");
        if !id.is_empty() {
            refused(client.try_status(id).await, invalid, "invalid_id");
        }
    }
    assert_eq!(tree(&victim), before);
    beside.unaffected(&daemon).await;
}

#[tokio::test]
async fn every_allowed_id_works() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let long = "b".repeat(128);
    let ids = ["1", "a..b", "A", "a", "0._-:@+Z", "42-run", &long];
    for id in ids {
        client.run(id, "echo x").await;
    }
    for id in ids {
        assert_eq!(client.ended(id).await.exit_code, 0);
        assert_eq!(client.output(id).await, "x\n");
    }
    assert_eq!(client.jobs().await.len(), ids.len(), "case matters");
    for id in ids {
        client.finish(id).await;
    }
    assert_eq!(daemon.folders(), Vec::<String>::new());
}

#[tokio::test]
async fn fault_20_unknown_ids_are_not_found() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let client = daemon.client().await;
    refused(client.try_follow("no", 0).await, Code::NotFound, "unknown_job");
    refused(client.try_follow("no", 7).await, Code::NotFound, "unknown_job");
    refused(client.try_steps("no").await, Code::NotFound, "unknown_job");
    refused(client.try_status("no").await, Code::NotFound, "unknown_job");
    refused(client.try_cancel("no").await, Code::NotFound, "unknown_job");
    client.finish("no").await;
    beside.unaffected(&daemon).await;
}

#[tokio::test]
async fn fault_20_offsets_outside_the_log_are_refused() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let client = daemon.client().await;
    let running = i32::try_from(client.status("beside").await.log_bytes).unwrap();
    for offset in [-1, i32::MIN] {
        refused(client.try_follow("beside", offset).await, Code::InvalidArgument, "offset_negative");
    }
    for offset in [running + 1, i32::MAX] {
        refused(client.try_follow("beside", offset).await, Code::OutOfRange, "offset_past_end");
    }
    let status = client.run_to_end("1", &script("echo x")).await;
    let end = i32::try_from(status.log_bytes).unwrap();
    refused(client.try_follow("1", end + 1).await, Code::OutOfRange, "offset_past_end");
    refused(client.try_follow("1", -1).await, Code::InvalidArgument, "offset_negative");
    assert_eq!(client.follow("1", end).await.rest().await.unwrap(), b"");
    client.finish("1").await;
    beside.unaffected(&daemon).await;
}
