//! Jobs, templates and files like those of real pipelines, equal in each run.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use step_runner::job::effect::Effect;
use step_runner::job::event::{Event, Fetched, JobSpec, ProcessEnd};
use step_runner::job::machine::Machine;
use step_runner::lang::ast::{Reference, Template};
use step_runner::lang::diagnostic::Position;
use step_runner::lang::environment::Environment;
use step_runner::lang::eval::{Context, EndedStep, Steps, StepsAhead};
use step_runner::lang::template;
use step_runner::lang::value::{EvaluatedText, Value};
use step_runner::model::ExitStatus;

/// The template whose speed has an aim.
pub(crate) const TEMPLATE: &str = "${{ vars.A }}-${{ steps.b.outputs.c }}";

/// Function that the steps of [`steps`] call.
const FUNCTION: &str = "spec:\n  inputs:\n    number: {type: number}\n    name: {type: string}\n    \
                        text: {type: string, default: none}\n---\nexec:\n  command: [build, '${{ inputs.name }}', \
                        '${{ inputs.number }}', --flag]\n";

/// A `run` list of alternating function calls and scripts. The calls have inputs and environment from expressions.
pub(crate) fn steps(count: usize) -> String {
    let mut text = String::new();
    for number in 0..count {
        if number % 2 == 0 {
            // Writing to a string cannot fail.
            write!(
                text,
                "- name: step_{number}\n  func: ./build\n  inputs:\n    number: {number}\n    \
                 name: \"${{{{ vars.A }}}}-{number}\"\n    text: a line of text\n  env:\n    \
                 LEVEL: \"${{{{ vars.B }}}}\"\n"
            )
            .ok();
        } else {
            write!(
                text,
                "- name: step_{number}\n  script: |\n    echo \"${{{{ vars.A }}}} {number}\"\n    make\n"
            )
            .ok();
        }
    }
    text
}

/// A request with these steps and as many variables as a typical pipeline.
pub(crate) fn request(steps: String) -> JobSpec {
    JobSpec {
        id: "1".into(),
        steps,
        file: None,
        inputs: IndexMap::new(),
        vars: variables(100).into_iter().map(|(name, text)| (name, Value::text(text))).collect(),
        base_env: Arc::new(base()),
        env: variables(100),
        work_dir: "/builds/group/project".into(),
        tmp_dir: "/var/lib/step-runner/jobs/1/tmp".into(),
        timeout: None,
        cancel_grace: None,
        default_grace: Duration::from_secs(5),
        cleanup_timeout: Duration::from_mins(5),
        members_at_a_time: 4,
        errexit: false,
        trace_sections: false,
    }
}

/// Base environment, as inherited by a daemon.
fn base() -> Vec<(Vec<u8>, Vec<u8>)> {
    (0..40).map(|n| (format!("HOST_{n}").into_bytes(), format!("value of {n}").into_bytes())).collect()
}

/// `A`, `B` and the variables that a pipeline adds.
fn variables(count: usize) -> IndexMap<String, String> {
    let named = ["A", "B"].map(|name| (name.to_owned(), format!("text of {name}")));
    let numbered = (0..count).map(|n| (format!("CI_VARIABLE_{n}"), format!("value {n} of the pipeline")));
    named.into_iter().chain(numbered).collect()
}

/// Makes the machine of a request. Returns it with its first effects.
pub(crate) fn plan(spec: &JobSpec) -> (Machine, Vec<Effect>) {
    let Ok(mut machine) = Machine::new(spec) else { panic!("the steps of the benchmark are wrong") };
    let effects = machine.handle(&Event::Admitted { at: 0 }, 0);
    (machine, effects)
}

/// Drives a job to its end, with every process succeeding. Returns the number of processes.
pub(crate) fn drive(mut machine: Machine, mut effects: Vec<Effect>) -> usize {
    let mut processes = 0;
    loop {
        let Some(event) = effects.iter().find_map(answer) else { return processes };
        processes += usize::from(matches!(event, Event::Exited { .. }));
        effects = machine.handle(&event, 0);
    }
}

fn answer(effect: &Effect) -> Option<Event> {
    match effect {
        Effect::Fetch { process, reference, .. } => {
            let Reference::Local { path, .. } = &**reference else { return None };
            let (dir, text) = (path.clone(), FUNCTION.to_owned());
            let found = Fetched { path: format!("{dir}/step.yml"), dir, text, tree: None, version: None };
            Some(Event::Fetched { process: *process, result: Ok(found) })
        }
        Effect::Spawn(spawn) => Some(Event::Exited {
            process: spawn.process,
            end: ProcessEnd::Exited(ExitStatus::Code(0)),
            shell: None,
            outputs: None,
            exports: None,
            ran: None,
        }),
        Effect::Clear { call, .. } => Some(Event::Cleared { call: *call }),
        _ => None,
    }
}

/// Values that the expressions of a step can use.
pub(crate) struct World {
    env: Environment,
    vars: IndexMap<String, Value>,
    inputs: IndexMap<String, Value>,
    steps: Steps,
    numbers: std::cell::RefCell<Vec<f64>>,
}

impl World {
    pub(crate) fn new() -> Self {
        let spec = request(String::new());
        let outputs = |step: &str| {
            let named = ["c", "path", "digest"]
                .map(|name| (name.to_owned(), Value::text(format!("{name} of {step}"))));
            (step.to_owned(), EndedStep::plain(IndexMap::from(named)))
        };
        Self {
            env: Environment::new(spec.base_env, spec.env),
            vars: spec.vars,
            inputs: variables(8).into_iter().map(|(name, text)| (name, Value::text(text))).collect(),
            steps: ["a", "b", "build", "test"].map(outputs).into_iter().collect(),
            numbers: std::cell::RefCell::default(),
        }
    }

    /// Environment of a step that sets variables of its own.
    pub(crate) fn environment(&self) -> Environment {
        let frame = variables(5).into_iter().map(|(name, text)| (name, EvaluatedText::plain(text))).collect();
        self.env.clone().with_exports(Arc::new(variables(10))).within(frame)
    }

    pub(crate) fn context(&self) -> Context<'_> {
        Context {
            env: &self.env,
            vars: &self.vars,
            inputs: &self.inputs,
            steps: &self.steps,
            ahead: StepsAhead::default(),
            run: None,
            matrix: None,
            func_dir: "/builds/group/project/build",
            work_dir: "/builds/group/project",
            output_file: "/var/lib/step-runner/jobs/1/tmp/2/output",
            export_file: "/var/lib/step-runner/jobs/1/tmp/2/export",
            files_used: std::cell::Cell::new(false),
            numbers: &self.numbers,
        }
    }
}

/// Parses a template as if it were in a file.
pub(crate) fn parsed(text: &str) -> Template {
    let Ok(template) = template::parse_inline(text, &Arc::from("step.yml"), Position::START) else {
        panic!("a template of the benchmark is wrong")
    };
    template
}
