//! A view under test, and the job that it is shown.

use crate::cli::view::model::Model;
use crate::cli::view::rows::{Rows, Size, Style, Times, ViewMode};
use crate::pb::v1;
use crate::pb::v1::step_result::{Outcome, Status};

/// Makes the events of steps by their paths.
#[derive(Default)]
pub(super) struct Told(Vec<Vec<String>>);

impl Told {
    pub(super) fn call(&mut self, path: &[&str]) -> u32 {
        let path: Vec<String> = path.iter().map(|&name| name.to_owned()).collect();
        if path.is_empty() {
            return 0;
        }
        let known = self.0.iter().rposition(|known| *known == path);
        let at = known.unwrap_or_else(|| {
            self.0.push(path);
            self.0.len() - 1
        });
        at as u32 + 1
    }

    pub(super) fn event(
        &mut self,
        path: &[&str],
        log_at: u64,
        result: v1::StepResult,
    ) -> v1::FollowStepsResponse {
        let parent = path.split_last().map_or(0, |(_, outer)| self.call(outer));
        let step = path.last().map(|&name| v1::Step { name: name.into(), ..v1::Step::default() });
        let time = |tenths: i64| {
            Some(prost_types::Timestamp { seconds: tenths / 10, nanos: (tenths % 10) as i32 * 100_000_000 })
        };
        let is_over = result.outcome() != Outcome::Unspecified;
        let result = v1::StepResult {
            step,
            number: 1,
            total: 2,
            start_time: time(0),
            end_time: time(12).filter(|_| is_over),
            ..result
        };
        let log_bytes = log_at as i64;
        let call = self.call(path);
        let event = v1::StepEvent { call, parent, result: Some(result), log_bytes, stream: 1, member: false };
        v1::FollowStepsResponse { event: Some(event), log_bytes, result: None }
    }

    pub(super) fn started(&mut self, path: &[&str], log_at: u64) -> v1::FollowStepsResponse {
        let result = v1::StepResult { status: Status::Running.into(), ..v1::StepResult::default() };
        self.event(path, log_at, result)
    }

    pub(super) fn ended(&mut self, path: &[&str], log_at: u64) -> v1::FollowStepsResponse {
        let (status, outcome) = (Status::Success.into(), Outcome::Success.into());
        self.event(path, log_at, v1::StepResult { status, outcome, ..v1::StepResult::default() })
    }

    pub(super) fn failed(&mut self, path: &[&str], exit_code: i32, log_at: u64) -> v1::FollowStepsResponse {
        let (status, outcome) = (Status::Failure.into(), Outcome::Failure.into());
        let exec_result =
            Some(v1::step_result::ExecResult { exit_code, ..v1::step_result::ExecResult::default() });
        self.event(path, log_at, v1::StepResult { status, outcome, exec_result, ..v1::StepResult::default() })
    }
}

/// Rows of a screen with symbols and without colours and times.
pub(in crate::cli::view) fn rows(columns: usize) -> Rows {
    Rows { style: style(ViewMode::Live), size: Size { columns, rows: 24 }, job_start: None }
}

pub(super) fn style(mode: ViewMode) -> Style {
    Style { mode, times: Times::None, color: false, unicode: true, offset: chrono::Offset::fix(&chrono::Utc) }
}

pub(super) const SIZE: Size = Size { columns: 60, rows: 24 };

/// View under test, and the log bytes that it was given.
pub(super) struct Scene {
    pub(super) model: Model,
    pub(super) told: Told,
    pub(super) log: Vec<u8>,
    second: u32,
}

impl Scene {
    pub(super) fn new(mode: ViewMode, size: Size) -> Self {
        let mut model = Model::new(style(mode), size, false, 0);
        model.tick(START, size);
        let mut told = Told::default();
        model.message(&told.started(&[], 0));
        Self { model, told, log: Vec::new(), second: 0 }
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.log.extend_from_slice(bytes);
        self.model.log(bytes);
        let log_bytes = self.log.len() as i64;
        self.model.message(&v1::FollowStepsResponse { log_bytes, ..v1::FollowStepsResponse::default() });
    }

    pub(super) fn line(&mut self, source: &str, body: &[u8]) {
        self.second = (self.second + 1) % 60;
        let header = format!("2026-11-20T10:00:{:02}.000000Z {source}", self.second);
        self.raw(&[header.as_bytes(), body, b"\n"].concat());
    }

    pub(super) fn grows(&mut self, source: &str, body: &str) {
        self.model.unfinished_entry(format!("2026-11-20T10:01:00.000000Z {source}{body}").as_bytes());
    }

    pub(super) fn start(&mut self, path: &[&str]) {
        let message = self.told.started(path, self.log.len() as u64);
        self.model.message(&message);
    }

    pub(super) fn runs(&mut self, path: &[&str]) {
        self.start(path);
        self.line("00O ", format!("Running step name={}", path.last().unwrap()).as_bytes());
    }

    pub(super) fn ends(&mut self, path: &[&str]) {
        let message = self.told.ended(path, self.log.len() as u64);
        self.end(path, &message);
    }

    pub(super) fn fails(&mut self, path: &[&str], exit_code: i32) {
        let message = self.told.failed(path, exit_code, self.log.len() as u64);
        self.end(path, &message);
    }

    /// Tells an end, and the result if the step has one.
    pub(super) fn end(&mut self, path: &[&str], ended: &v1::FollowStepsResponse) {
        self.model.message(ended);
        if path.len() < 2 {
            let result = ended.event.clone().and_then(|event| event.result);
            self.model.message(&v1::FollowStepsResponse { result, ..v1::FollowStepsResponse::default() });
        }
    }

    pub(super) fn permanent(&mut self) -> String {
        self.model.take_permanent()
    }

    pub(super) fn live(&self) -> String {
        self.model.live().join("\n")
    }
}

/// 2026-11-20T10:00:00Z.
pub(super) const START: i64 = 1_795_168_800_000_000;
