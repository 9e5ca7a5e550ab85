//! Values, mistakes and changes of the file.

use proptest::prelude::*;

use super::edit::{EditError, Value, append, remove, set};
use super::*;
use crate::environment::{Address, ImagePolicy, PullPolicy};
use crate::time::WallTime;

fn read(text: &str) -> Result<Config, ConfigErrors> {
    Config::read("agent.toml", text)
}

const FULL: &str = r#"concurrent = 4
check_interval = 5
shutdown_timeout = "1m"
connection_max_age = "15m0s"
on_stop = "fail"

# The shell.
[[runners]]
  name = "one"
  url = "https://gitlab.test/"
  id = 11
  token = "glrt-t1_A1FakeRunner0001"
  token_obtained_at = 2026-11-22T22:20:51Z
  token_expires_at = 0001-01-01T00:00:00Z
  limit = 2
  output_limit = 8
  environment = ["A=b=c", "FF_TIMESTAMPS=false"]
  labels = {a = "b"}
  unhealthy_interval = "120s"

# Containers.
[[runners]]
  name = "two" # a comment
  url = "https://gitlab.test"
  token = "glrt-t1_B2FakeRunner0002"
  address = "docker-run://"
  image_policy = "ignore"
  rotate = false
  [runners.docker]
    image = "alpine:3"
    pull_policy = ["always", "if-not-present"]
    network = "shared"
    wait_for_services_timeout = -1
    [[runners.docker.services]]
      name = "postgres:16"
      alias = "db"
"#;

#[test]
fn a_file_gives_all_settings_and_defaults() {
    let config = read(FULL).unwrap();
    assert_eq!((config.limits.concurrent, config.limits.check_interval.as_secs()), (4, 5));
    assert_eq!(
        (config.limits.shutdown_timeout, config.limits.on_stop),
        (Duration::from_mins(1), OnStop::Fail)
    );
    let [one, two] = &config.entries[..] else { panic!() };
    assert_eq!((one.name.as_str(), one.url.as_str(), one.id), ("one", "https://gitlab.test", Some(11)));
    assert_eq!((one.token_obtained_at, one.token_expires_at), (Some(WallTime(1_795_386_051_000)), None));
    assert_eq!((one.limits.limit, one.limits.request_concurrency, one.output_limit), (Some(2), 1, 8_192));
    assert_eq!(one.limits.unhealthy_interval, Duration::from_mins(2));
    assert_eq!(one.environment[0], ("A".to_owned(), "b=c".to_owned()));
    assert_eq!((&one.address, one.image_policy, one.rotate), (&Address::Own, ImagePolicy::Fail, true));
    assert_eq!(
        (&two.address, two.image_policy, two.rotate),
        (&Address::DockerRun, ImagePolicy::Ignore, false)
    );
    assert_eq!(two.docker.rules.pull_policies, [PullPolicy::Always, PullPolicy::IfNotPresent]);
    assert!(two.docker.is_shared && two.docker.wait_for_services.is_none());
    assert_eq!(two.docker.services[0].alias.as_deref(), Some("db"));
    assert_eq!(two.prepare_timeout, Duration::from_mins(10));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
}

#[test]
fn an_empty_file_has_defaults_and_no_entry() {
    let config = read("").unwrap();
    assert_eq!((config.limits.concurrent, config.limits.check_interval.as_secs()), (1, 3));
    assert!(config.entries.is_empty() && config.limits.on_stop == OnStop::Detach);
}

#[test]
fn all_mistakes_come_at_once_with_their_lines_and_without_values() {
    let errors = read(
        r#"concurrent = 0
check_interval = "soon"
on_stop = "secret-word"
[[runners]]
  url = "gitlab.test"
  token = "secret token"
  limit = "many"
[[runners]]
  url = "https://gitlab.test"
  token = "glrt-a"
  address = "docker-run://x"
  tls-cert-file = "/x"
  environment = ["=b"]
  [runners.docker]
    image = "--x"
    pull_policy = "sometimes"
[[runners]]
  url = "https://gitlab.test/"
  token = "glrt-a"
[[runners]]
"#,
    )
    .unwrap_err();
    let shown = errors.to_string();
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(
        lines,
        [
            "agent.toml:1: concurrent: expected a whole number from 1 to 1000000, found another number",
            "agent.toml:2: check_interval: expected a number of seconds or a time such as `10m`, at most a year, found another text",
            "agent.toml:3: on_stop: expected one of `detach`, `fail`",
            "agent.toml:5: url: the address must begin with http:// or https://",
            "agent.toml:6: token: byte 7 of the token is a blank or no printable ASCII character: copy the token alone",
            "agent.toml:7: limit: expected a whole number from 0 to 1000000, found another text",
            "agent.toml:8: `tls-cert-file` and `tls-key-file` belong together: give both or none",
            "agent.toml:11: address: `docker-run://` stands alone: the engine's address is `host` in `[runners.docker]`",
            "agent.toml:13: environment: expected texts of the form `NAME=VALUE`",
            "agent.toml:15: image: expected a reference such as `alpine:3`",
            "agent.toml:16: pull_policy: expected `always`, `if-not-present`, `never`, or a list of them",
            "agent.toml:17: this entry has the `url` and `token` of line 8: remove one of them",
            "agent.toml:20: the entry has no `url`: `register` writes whole entries",
            "agent.toml:20: the entry has no `token`: `register` writes whole entries",
        ],
        "{shown}"
    );
    assert!(!shown.contains("secret"));
}

#[test]
fn a_file_that_was_written_half_is_one_error_with_its_line() {
    let half = FULL.get(..FULL.find("B2Fake").unwrap()).unwrap();
    let errors = read(half).unwrap_err();
    assert_eq!(errors.messages().len(), 1);
    assert!(errors.to_string().starts_with("agent.toml:25: not TOML: "), "{errors}");
}

#[test]
fn unknown_keys_and_needless_tables_are_warned_about() {
    let text = "concurent = 2\n[[runners]]\nurl = \"https://a.test\"\ntoken = \"x\"\nLimit = 3\nfoo = 1\n[runners.docker]\nimgae = \"a\"\n";
    let config = read(text).unwrap();
    assert_eq!(
        config.warnings,
        [
            "agent.toml:1: unknown key `concurent`, write `concurrent`: it has no effect",
            "agent.toml:5: unknown key `Limit`, write `limit`: it has no effect",
            "agent.toml:6: unknown key `foo`: it has no effect",
            "agent.toml:7: `[runners.docker]` has no effect: `address` is own daemon",
            "agent.toml:8: unknown key `docker.imgae`, write `image`: it has no effect",
        ]
    );
}

#[test]
fn a_token_in_the_place_of_a_key_is_not_shown() {
    let text = "glrt-s3cret_abc = \"x\"\n[[runners]]\nurl = \"https://a.test\"\ntoken = \"x\"\nacme-glrtr-s3cret = 1\n\
                GR1348941s3cret = 1\n[glcbt-s3cret]\na = 1\n";
    assert_eq!(
        read(text).unwrap().warnings,
        [
            "agent.toml:1: unknown key `glrt-[MASKED]`: it has no effect",
            "agent.toml:5: unknown key `acme-glrtr-[MASKED]`: it has no effect",
            "agent.toml:6: unknown key `GR1348941[MASKED]`: it has no effect",
            "agent.toml:7: unknown key `glcbt-[MASKED]`: it has no effect",
        ]
    );
}

#[test]
fn a20_a_new_token_changes_its_value_and_nothing_else() {
    let changed = set(FULL, 1, "token", &Value::Text("new\"one".to_owned())).unwrap();
    assert_eq!(changed, FULL.replace("\"glrt-t1_B2FakeRunner0002\"", "'new\"one'"));
    let changed =
        set(&changed, 1, "token_expires_at", &Value::Date("2027-01-01T00:00:00Z".to_owned())).unwrap();
    let config = read(&changed).unwrap();
    assert_eq!(config.entries[1].token.expose(), "new\"one");
    assert!(
        config.entries[1].token_expires_at.is_some() && config.entries[0] == read(FULL).unwrap().entries[0]
    );
    assert_eq!(set(FULL, 2, "token", &Value::Number(1)), Err(EditError::NoEntry));
}

#[test]
fn a01_an_entry_is_added_and_removed_without_a_trace() {
    let values = [
        ("name", Value::Text("three".to_owned())),
        ("url", Value::Text("https://c.test".to_owned())),
        ("token", Value::Text("glrt-c".to_owned())),
        ("address", Value::Text("docker-run://".to_owned())),
    ];
    let tables = [("docker", vec![("volumes", Value::Texts(vec!["/a:/b".to_owned()]))])];
    let more = append(FULL, &values, &tables).unwrap();
    let config = read(&more).unwrap();
    assert_eq!((config.entries.len(), config.entries[2].docker.volumes.len()), (3, 1));
    assert!(more.starts_with(FULL));
    assert_eq!(remove(&more, 2).unwrap().trim_end(), FULL.trim_end());
    let less = remove(&more, 0).unwrap();
    assert!(
        less.contains("# Containers.") && less.contains("# The shell.") && !less.contains("A1Fake"),
        "{less}"
    );
    assert_eq!(read(&less).unwrap().entries.len(), 2);
    assert_eq!(read(&append("", &values, &[]).unwrap()).unwrap().entries.len(), 1);
}

#[test]
fn an_entry_ends_where_another_table_begins() {
    let text = "[[runners]]\nurl = \"https://a.test\"\ntoken = \"x\"\n[session_server]\nlisten = \"y\"\n";
    assert_eq!(remove(text, 0).unwrap(), "[session_server]\nlisten = \"y\"\n");
    let inline = "runners = [{url = \"https://a.test\", token = \"x\"}]\n";
    assert_eq!(remove(inline, 0), Err(EditError::Form));
    assert_eq!(append("runners = 3\n", &[], &[]), Err(EditError::Form));
}

#[test]
fn a_file_that_is_no_toml_is_not_changed_and_the_mistake_is_told_with_its_line() {
    let text = "[[runners]]\nurl = \"https://a.test\"\ntoken = glrt-s3cret\n";
    let error = append(text, &[], &[]).unwrap_err();
    assert!(matches!(error, EditError::NotToml { line: 3, .. }), "{error:?}");
    assert!(!error.to_string().contains("s3cret"), "{error}");
    assert!(matches!(remove("[[", 0), Err(EditError::NotToml { line: 1, .. })));
}

proptest! {
    #[test]
    fn a17_any_text_is_a_configuration_or_errors_with_lines(text: String, cut: prop::sample::Index, with: String) {
        let at = FULL.char_indices().map(|(at, _)| at).nth(cut.index(FULL.chars().count())).unwrap();
        let (before, behind) = FULL.split_at(at);
        for text in [text, format!("{before}{with}{behind}"), before.to_owned()] {
            if let Err(errors) = read(&text) {
                prop_assert!(!errors.messages().is_empty());
                prop_assert!(errors.messages().iter().all(|message| message.starts_with("agent.toml:")));
            }
        }
    }

    #[test]
    fn a_set_value_is_read_back(value: String, key in "[a-z]{1,8}x") {
        let value = value.replace('\0', "");
        let changed = set(FULL, 0, &key, &Value::Text(value.clone())).unwrap();
        let table: toml::Table = changed.parse().unwrap();
        prop_assert_eq!(table["runners"][0][&key].as_str(), Some(value.as_str()));
        prop_assert_eq!(set(&changed, 0, &key, &Value::Number(1)).unwrap(), set(FULL, 0, &key, &Value::Number(1)).unwrap());
    }
}

#[test]
fn a_token_is_replaced_at_three_quarters_of_its_life() {
    let entry = |more: &str| {
        let text = format!("[[runners]]\nurl = \"https://gitlab.test\"\ntoken = \"glrt-a\"\n{more}");
        Config::read("agent.toml", &text).unwrap().entries.remove(0)
    };
    let dates = "token_obtained_at = 1970-01-01T00:00:00Z\ntoken_expires_at = 1970-01-01T00:00:40Z\n";
    assert_eq!(entry(dates).rotates_at(), Some(WallTime(30_000)));
    assert_eq!(entry(&format!("{dates}rotate = false\n")).rotates_at(), None);
    assert_eq!(entry("token_obtained_at = 1970-01-01T00:00:00Z\n").rotates_at(), None);
    let never = "token_obtained_at = 1970-01-01T00:00:40Z\ntoken_expires_at = 0001-01-01T00:00:00Z\n";
    assert_eq!(entry(never).rotates_at(), None);
}
