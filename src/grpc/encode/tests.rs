use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::actors::view::CurrentStep;
use crate::model::JobId;

fn nested(levels: usize, wrap: impl Fn(Value) -> Value) -> Value {
    (0..levels).fold(json!("core"), |inner, _| wrap(inner))
}

fn decoded(result: &StepResult) -> v1::StepResult {
    stored(&step_result_bytes(result)).unwrap().unwrap().result.unwrap()
}

#[test]
fn the_deepest_values_in_the_deepest_result_can_be_decoded() {
    let deep = nested(100, |inner| json!({ "a": [inner] }));
    let definition = json!({"spec": {"spec": {"inputs": {"i": {"default": deep}}}},
        "definition": {"run": [{"name": "s", "step": ".", "inputs": {"i": deep}}]}});
    let info = StepInfo { inputs: [("i".to_owned(), deep.clone())].into(), ..StepInfo::default() };
    let mut result = StepResult::default();
    for _ in 0..64 {
        result = StepResult {
            step: Some(info.clone()),
            outputs: [("o".to_owned(), deep.clone())].into(),
            definition: Some(Arc::new(definition.clone())),
            sub_steps: vec![result],
            ..StepResult::default()
        };
    }
    let mut message = &decoded(&result);
    let mut depth = 1;
    while let Some(sub) = message.sub_step_results.first() {
        (message, depth) = (sub, depth + 1);
    }
    assert_eq!(depth, 65);
    let message = v1::FollowStepsResponse { result: Some(decoded(&result)), ..Default::default() };
    let bytes = message.encode_to_vec();
    v1::FollowStepsResponse::decode(&*bytes).unwrap();
}

#[test]
fn what_lies_too_deep_is_shown_as_its_json_text() {
    let mut shown = value::of_json(&nested(18, |inner| json!([inner])), MAX_LEVELS);
    for _ in 0..MAX_LEVELS {
        let Some(PbKind::ListValue(mut list)) = shown.kind else { panic!("an array") };
        shown = list.values.remove(0);
    }
    assert_eq!(shown.kind, Some(PbKind::StringValue("[[\"core\"]]".into())));
}

#[test]
fn whatever_makes_a_result_too_large_it_fits_and_keeps_what_it_can() {
    let big = "x".repeat(MAX_RESULT + 1);
    let texts: indexmap::IndexMap<String, String> = [("n".to_owned(), big.clone())].into();
    let values: indexmap::IndexMap<String, Value> = [("n".to_owned(), json!(big))].into();
    let step = |env: bool, inputs: bool| {
        Some(StepInfo {
            name: "s".into(),
            env: if env { texts.clone() } else { indexmap::IndexMap::new() },
            inputs: if inputs { values.clone() } else { indexmap::IndexMap::new() },
            ..StepInfo::default()
        })
    };
    let exec = ExecResult { command: vec![big.clone()], exit_code: 3, ..ExecResult::default() };
    let definition = Arc::new(json!({"definition": {"exec": {"command": [big]}}}));
    let base =
        || StepResult { step: step(false, false), status: StepStatus::Failure, ..StepResult::default() };
    let large = [
        StepResult { outputs: values.clone(), ..base() },
        StepResult { exports: texts.clone(), ..base() },
        StepResult { env: texts.clone(), ..base() },
        StepResult { definition: Some(definition.clone()), ..base() },
        StepResult { exec: Some(exec.clone()), ..base() },
        StepResult { step: step(true, false), ..base() },
        StepResult { step: step(false, true), ..base() },
        StepResult {
            step: step(true, true),
            definition: Some(definition),
            outputs: values.clone(),
            exports: texts.clone(),
            env: texts.clone(),
            exec: Some(exec),
            sub_steps: vec![StepResult { env: texts.clone(), ..base() }],
            ..base()
        },
    ];
    for result in large {
        let cut = decoded(&result);
        assert!(cut.encoded_len() <= MAX_RESULT);
        assert_eq!((cut.status(), cut.step.unwrap().name.as_str()), (v1::step_result::Status::Failure, "s"));
        assert_eq!(cut.outputs.len(), result.outputs.len(), "names stay");
        assert_eq!(cut.exec_result.map(|exec| exec.exit_code), result.exec.map(|_| 3));
    }
}

#[test]
fn fault_107_no_text_of_a_result_keeps_it_from_fitting() {
    let big = "é".repeat(MAX_RESULT);
    let reference = |text: &str| ReferenceInfo {
        protocol: "git".into(),
        url: text.into(),
        path: vec![text.into()],
        filename: text.into(),
        version: text.into(),
    };
    let many = (0..200_000).map(|n| (format!("name_of_an_output_{n}"), json!(1))).collect();
    let named = |name: &str| Some(StepInfo { name: name.into(), ..StepInfo::default() });
    let of = |reference| Some(StepInfo { name: "s".into(), reference, ..StepInfo::default() });
    for result in [
        StepResult { step: named(&big), ..StepResult::default() },
        StepResult { step: of(reference(&big)), ..StepResult::default() },
        StepResult { step: named("s"), outputs: many, ..StepResult::default() },
        StepResult {
            step: named("s"),
            facts: StepFacts { place: big.clone(), ..StepFacts::default() },
            ..StepResult::default()
        },
        StepResult {
            exec: Some(ExecResult { work_dir: big.clone(), ..ExecResult::default() }),
            ..StepResult::default()
        },
    ] {
        assert!(decoded(&result).encoded_len() <= MAX_RESULT);
    }
}

#[test]
fn the_states_of_ten_thousand_jobs_fit_into_one_answer() {
    let job = |n: usize| JobStatus {
        registered: 1,
        id: JobId::parse(&format!("{n:0>64}")).unwrap(),
        state: JobState::Ended(EndClass::Failure),
        exit_code: 1,
        is_defect: false,
        cancel_cause: None,
        message: "é".repeat(n % 4096),
        start_time: Some(1_700_000_000_000_000 + n as i64),
        end_time: Some(1_700_000_000_000_000 + n as i64),
        log_bytes: 1 << 40,
        steps_done: 1000,
        allowed_failures: 1000,
        cpu_time: Some(std::time::Duration::from_micros(1_234_567)),
        peak_memory: Some(1 << 40),
        current: CurrentStep { names: vec!["é".repeat(n % 4096)].into(), number: 1000, total: 1000 },
        queue_position: 10_000,
        is_paused: true,
        usage: Some(StepUsage { read: Some(1 << 40), written: Some(1 << 40), ..StepUsage::default() }),
    };
    let answer = statuses((0..10_000).map(job).collect(), (vec![], 0));
    assert!(answer.encoded_len() < 4 << 20, "{}", answer.encoded_len());
    assert_eq!(answer.jobs.len(), 10_000);
    assert!(answer.jobs[3000].message.ends_with("é…"));
    let few = statuses((4000..4010).map(job).collect(), (vec![], 0));
    assert_eq!(few.jobs[0].message.len(), 8000, "nothing is cut without need");
}

#[test]
fn no_message_of_a_log_is_a_short_frame_and_long_ones_are_not_filled_up() {
    for length in [1, 100, SHORT_FRAME - 1, SHORT_FRAME, 64 << 10] {
        let message = log_piece(Bytes::from(vec![b'x'; length]));
        assert_eq!(message.data.len(), length);
        assert!(message.encoded_len() >= SHORT_FRAME, "{length}");
        assert_eq!(message.padding.is_empty(), length >= SHORT_FRAME);
    }
}

#[test]
fn what_is_stored_of_steps_tells_what_it_is() {
    let named = |name: &str| Some(StepInfo { name: name.into(), ..StepInfo::default() });
    let running = StepResult { step: named("a"), status: StepStatus::Running, ..StepResult::default() };
    let event = |call| StepEvent {
        call,
        parent: 0,
        is_member: call == 3,
        slot: 2,
        log_bytes: 7,
        result: running.clone(),
    };
    for call in [0, 3] {
        let bytes = step_event_bytes(&event(call));
        assert_eq!(stored_kind(&bytes), StoredKind::Event);
        let message = stored(&bytes).unwrap().unwrap();
        let told = message.event.unwrap();
        assert_eq!((told.call, told.stream, told.log_bytes, message.log_bytes), (call, 2, 7, 7));
        assert_eq!(told.member, call == 3);
        assert_eq!(told.result.unwrap().step.unwrap().name, "a");
    }
    let ended = StepResult { status: StepStatus::Success, ..running.clone() };
    for (result, kind) in [
        (&ended, StoredKind::Step),
        (&StepResult { step: None, ..ended.clone() }, StoredKind::Root),
        (&running, StoredKind::News),
    ] {
        assert_eq!(stored_kind(&step_result_bytes(result)), kind);
    }
    assert!(stored(&step_result_bytes(&running)).unwrap().is_none(), "an earlier version stored it");
}
