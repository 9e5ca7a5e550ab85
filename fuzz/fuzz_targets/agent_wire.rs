//! What a server, an engine or a job sends to the agent: tokens, headers, jobs, error texts, logins, logs. None of it
//! breaks anything, what is shown is short and on one line, and a trace depends on the bytes of its log alone.

#![no_main]

use libfuzzer_sys::fuzz_target;
use step_runner_agent::answer::{Answer, text};
use step_runner_agent::environment::{Address, AuthFile, Rules, aliases, image, is_reference, pull_failure};
use step_runner_agent::payload;
use step_runner_agent::routing::{Base, Ticket};
use step_runner_agent::time::{date, http_date};
use step_runner_agent::tokens::Token;
use step_runner_agent::tokens::routable::Routable;
use step_runner_agent::trace::{Form, Text};

fuzz_target!(|bytes: &[u8]| {
    if let Err(message) = payload::take(bytes) {
        assert!(message.len() < 2_048 && !message.contains('\n'), "{message}");
    }
    for form in [Form::Entries, Form::Lines] {
        let cut = bytes.len() / 3;
        assert_eq!(trace(form, &[bytes]), trace(form, &[&bytes[..cut], &bytes[cut..]]));
    }
    let Ok(input) = std::str::from_utf8(bytes) else { return };
    let shown = text::message(input, &[]);
    assert!(shown.len() < 1_024 && !shown.chars().any(char::is_control), "{shown:?}");
    let pairs = input.lines().filter_map(|line| line.split_once(':'));
    drop(Answer::read(202, pairs));
    let tokens = [Routable::of_runner_token(input), Routable::of_job_token(input)];
    assert!(
        tokens.iter().flatten().all(|found| found.cell.is_some()),
        "a token that names no cell is not routable"
    );
    assert!(http_date(input).is_none() || date(input).is_none(), "a date has one form");
    if let Ok(token) = Token::new(input) {
        assert!(token.expose().bytes().all(|byte| byte.is_ascii_graphic()));
    }
    assert!(Ticket::new(input).is_none_or(|ticket| ticket.as_str() == input));
    if let Ok(base) = Base::new(input) {
        assert_eq!(Base::new(base.as_str()), Ok(base));
    }
    if let Ok(address) = Address::parse(Some(input)) {
        assert_eq!(Address::parse(Some(&address.to_string())), Ok(address));
    }
    let logins = [AuthFile::parse(input).unwrap_or_default()];
    assert!(AuthFile::first(&logins, "").is_none() && !pull_failure(input).hint().is_empty());
    assert!(
        image(Some(input), &Rules::default()).is_ok_and(|name| is_reference(&name))
            || !is_reference(input.trim())
    );
    let (free, _) = aliases(input, Some(input), &[]);
    assert!(free.iter().all(|name| !name.starts_with('-') && name.is_ascii()));
});

/// Makes a trace of at most 200 bytes of a log that comes in pieces.
fn trace(form: Form, pieces: &[&[u8]]) -> Vec<u8> {
    let (mut text, mut out) = (Text::new(form, 200), Vec::new());
    for piece in pieces {
        text.log(piece, &mut out);
    }
    text.end_of_log(&mut out);
    text.tail("end\n", &mut out);
    assert!(std::str::from_utf8(&out).is_ok() && text.len() == out.len() as u64);
    out
}
