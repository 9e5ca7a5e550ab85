use step_runner_model::LogChannel;

use super::*;
use crate::job::effect::Effect;

/// Placeholder for a job's own texts and values.
const SECRET: &str = "swordfish";

fn shown(thing: &impl fmt::Debug, expected: &str) {
    let text = format!("{thing:?}");
    assert_eq!(text, expected);
    assert!(!text.contains(SECRET));
}

fn spec() -> JobSpec {
    JobSpec {
        id: "job-7".to_owned(),
        steps: format!("script: echo {SECRET}"),
        file: None,
        inputs: IndexMap::from([("key".to_owned(), Value::text(SECRET))]),
        vars: IndexMap::new(),
        base_env: Arc::new(vec![(b"TOKEN".to_vec(), SECRET.into())]),
        env: IndexMap::from([("TOKEN".to_owned(), SECRET.to_owned())]),
        work_dir: "/builds".to_owned(),
        tmp_dir: "/tmp".to_owned(),
        timeout: None,
        cancel_grace: None,
        default_grace: Duration::from_secs(1),
        cleanup_timeout: Duration::from_mins(1),
        members_at_a_time: 2,
        errexit: false,
        trace_sections: false,
    }
}

#[test]
fn fault_38_debug_output_of_what_happens_to_a_job_names_it_and_hides_its_texts() {
    shown(&spec(), "JobSpec { id: \"job-7\", .. }");
    shown(&Event::Accepted(Box::new(spec())), "Accepted(job-7)");
    shown(&FileContent::Bytes(SECRET.into()), "[9 bytes]");
    shown(&FileContent::Unreadable("a folder".to_owned()), "unreadable: a folder");
    let outputs = Some(FileContent::Bytes(SECRET.into()));
    let end = ProcessEnd::Exited(ExitStatus::Code(3));
    shown(
        &Event::Exited { process: 2, end, shell: None, outputs, exports: None, ran: None },
        "Exited(2, Exited(Code(3)))",
    );
}

#[test]
fn fault_38_debug_output_of_what_a_job_wants_done_hides_its_texts() {
    shown(&Effect::Log { kind: LogChannel::Out, text: SECRET.to_owned() }, "Log(Out, [9 bytes])");
    shown(&Effect::Phrases(vec![SECRET.into()]), "Phrases([1])");
    shown(&Effect::Stop { process: 2, grace: Duration::from_secs(2) }, "Stop(2s)");
}
