//! Any text is either a function or a list of errors with positions. Evaluating a function can fail but must not panic.

#![no_main]

use indexmap::IndexMap;
use libfuzzer_sys::fuzz_target;
use step_runner::lang::ast::Body;
use step_runner::lang::diagnostic::Severity;
use step_runner::lang::document::{parse_function, parse_request};
use step_runner::lang::eval::{evaluate_env, evaluate_inputs};
use step_runner::lang::value::Value;

fuzz_target!(|text: &str| {
    for result in [parse_function(text, "f"), parse_request(text, "f")] {
        let function = match result {
            Ok(function) => function,
            Err(errors) => {
                assert!(
                    errors.iter().any(|error| error.severity == Severity::Error),
                    "refused without an error"
                );
                assert!(errors.iter().all(|error| error.at.line >= 1 && error.at.column >= 1), "no place");
                continue;
            }
        };
        let scope = IndexMap::from([("inputs".to_owned(), Value::text("x"))]);
        if let Body::Run(run) = &function.definition.body {
            for step in &run.steps {
                drop(evaluate_inputs(&step.inputs, |_| None, &scope));
                drop(evaluate_env(&step.env, &scope));
            }
        }
    }
});
