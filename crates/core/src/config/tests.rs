use proptest::prelude::*;

use super::*;

fn file(text: &str) -> Layers {
    Layers { file: Some((PathBuf::from("c.toml"), text.to_owned())), ..Layers::default() }
}

fn load_file(text: &str) -> Result<Config, String> {
    Config::load(&file(text)).map(|loaded| loaded.config).map_err(|errors| errors.to_string())
}

fn load_option(name: &'static str, value: &str) -> Result<Config, String> {
    let layers = Layers { options: vec![(name, vec![value.to_owned()])], ..Layers::default() };
    Config::load(&layers).map(|loaded| loaded.config).map_err(|errors| errors.to_string())
}

/// Rows of the table of settings in docs/spec/cli.md: name, default, and true if a reload applies it.
fn documented() -> Vec<(&'static str, String, bool)> {
    let page = include_str!("../../../../docs/spec/cli.md");
    let rows = page.lines().skip_while(|line| !line.starts_with("| setting |")).skip(2);
    let cells = |row: &'static str| -> Option<(&'static str, String, bool)> {
        let mut cells = row.strip_prefix("| `")?.split('|').map(str::trim);
        let name = cells.next()?.trim_matches('`');
        let default = cells.next()?.replace('`', "");
        Some((name, default, cells.nth(1)? == "live"))
    };
    rows.map_while(cells).collect()
}

#[test]
fn the_specification_lists_every_setting_with_its_default() {
    let documented = documented();
    let names: Vec<_> = documented.iter().map(|(name, ..)| *name).collect();
    assert_eq!(names, SETTINGS.iter().map(|setting| setting.name).collect::<Vec<_>>());
    for ((name, default, live), setting) in documented.iter().zip(SETTINGS) {
        assert_eq!(*live, LIVE.contains(name), "{name}");
        let expected = match setting.show(&Config::default()) {
            // The default depends on the environment.
            None => continue,
            Some(list) if list == "[]" => "none".to_owned(),
            Some(value) => value.trim_matches('"').to_owned(),
        };
        assert_eq!(*default, expected, "{name}");
    }
}

#[test]
fn help_names_no_file_that_users_lack_and_every_default() {
    for setting in SETTINGS {
        let help = setting.help();
        assert!(!help.contains(".md") && !help.contains('§'), "{help}");
        let has_default = setting.show(&Config::default()).is_some_and(|default| default != "[]");
        assert_eq!(help.contains("[default: "), has_default, "{help}");
    }
    let help = |name| SETTINGS.iter().find(|setting| setting.name == name).unwrap().help();
    assert!(
        help("queue_policy").contains("[default: fair] [env: STEP_RUNNER_QUEUE_POLICY]"),
        "{}",
        help("queue_policy")
    );
}

#[test]
fn print_is_a_settings_file_that_gives_the_same_settings() {
    let loaded = Config::load(&Layers {
        options: vec![
            ("env_pass", vec!["A,B".to_owned(), "C".to_owned()]),
            ("max_queued", vec!["none".to_owned()]),
            ("socket_mode", vec!["0660".to_owned()]),
            ("limit_cpus", vec!["1.5".to_owned()]),
        ],
        ..Layers::default()
    })
    .unwrap();
    let printed = loaded.print(&Config::default());
    assert_eq!(load_file(&printed), Ok(loaded.config));
    assert!(printed.contains("max_jobs = 10000  # default\n"), "{printed}");
    assert!(printed.contains("env_pass = [\"A\", \"B\", \"C\"]  # --env-pass\n"), "{printed}");
    assert!(printed.contains("# socket is not set  # default\n"), "{printed}");
}

#[test]
fn option_wins_over_variable_over_file_over_default() {
    let mut layers = file("# first\nmax_jobs = 1\nmax_followers = 2\nmax_connections = 3");
    layers.env = vec![
        ("STEP_RUNNER_MAX_JOBS".to_owned(), "4".to_owned()),
        ("STEP_RUNNER_MAX_FOLLOWERS".to_owned(), "5".to_owned()),
        ("STEP_RUNNER_LOG_LEVEL".to_owned(), String::new()),
        ("STEP_RUNNER_JOB".to_owned(), "not ours to read".to_owned()),
    ];
    layers.options = vec![("max_jobs", vec!["6".to_owned()])];
    let loaded = Config::load(&layers).unwrap();
    let of = |name: &str| {
        let at = SETTINGS.iter().position(|setting| setting.name == name).unwrap();
        (SETTINGS[at].show(&loaded.config).unwrap_or_default(), loaded.sources[at].to_string())
    };
    assert_eq!(of("max_jobs"), ("6".to_owned(), "--max-jobs".to_owned()));
    assert_eq!(of("max_followers"), ("5".to_owned(), "STEP_RUNNER_MAX_FOLLOWERS".to_owned()));
    assert_eq!(of("max_connections"), ("3".to_owned(), "c.toml:4".to_owned()));
    assert_eq!(of("log_level"), (String::new(), "default".to_owned()));
}

#[test]
fn errors_name_file_line_key_and_remedy_all_at_once() {
    let text = "max_jobs = \"many\"\n\nmax-running = 1\n[section]\na = 1\n";
    let expected = "c.toml:1: max_jobs: expected a whole number, at least 1, found a text\n\
        c.toml:3: unknown key `max-running`: write `max_running`\n\
        c.toml:4: unknown key `section`: `serve --print-config` shows all of them";
    let mut errors: Vec<_> = load_file(text).unwrap_err().lines().map(str::to_owned).collect();
    errors.sort();
    assert_eq!(errors.join("\n"), expected);
    let error = load_file("max_jobs = 1\nstale_after = ").unwrap_err();
    assert!(error.starts_with("c.toml:2: not TOML: "), "{error}");
    let error = load_option("stale_after", "5").unwrap_err();
    assert_eq!(
        error,
        "--stale-after: stale_after: bad value, expected a time such as `90s` or `1h 30m`, at most 100 years"
    );
}

#[test]
fn rules_hold_at_their_edges() {
    for (name, value, good) in [
        ("socket_mode", "0666", true),
        ("socket_mode", "0667", false),
        ("log_limit", "2147000000", true),
        ("log_limit", "2147000001", false),
        ("log_limit", "64KiB", true),
        ("log_limit", "65535", false),
        ("max_jobs", "1", true),
        ("max_jobs", "0", false),
        ("max_running", "0", true),
        ("max_running_per_project", "0", false),
        ("max_running_per_project", "none", true),
        ("reap_interval", "999ms", false),
        ("reap_interval", "1s", true),
        ("stale_after", "0", true),
        ("limit_cpus", "-1", false),
        ("limit_cpus", "nan", false),
        ("env_pass", "A=B", false),
        ("allow_uids", "1000, 1001", true),
        ("allow_uids", "root", false),
        ("queue_policy", "Fair", false),
        ("socket", "", false),
    ] {
        assert_eq!(load_option(name, value).is_ok(), good, "{name} = {value}");
    }
}

#[test]
fn types_of_the_file_are_strict_where_a_mistake_could_hide() {
    for (text, good) in [
        ("mask_forms = true", true),
        ("mask_forms = \"true\"", false),
        ("stale_after = 0", true),
        ("stale_after = 60", false),
        ("socket_mode = 0o660", true),
        ("state_limit = 1_024", true),
        ("state_limit = -1", false),
        ("env_pass = [\"A\", \"B\"]", true),
        ("env_pass = \"A\"", false),
        ("allow_uids = [1000]", true),
        ("max_jobs = [1]", false),
        ("max_jobs = 0x10", true),
        ("limit_cpus = 2", true),
        ("log_file = 1979-05-27", false),
    ] {
        assert_eq!(load_file(text).is_ok(), good, "{text}");
    }
}

#[test]
fn sizes_print_as_they_are_written() {
    for (text, size) in [("64MiB", 64 << 20), ("1GiB", 1 << 30), ("1000", 1_000), ("0", 0), ("1KiB", 1_024)] {
        assert_eq!(Bytes::from_text(text), Some(Bytes(size)));
        assert_eq!(Bytes(size).to_string(), text);
    }
    assert_eq!(Bytes::from_text("1 GB"), Some(Bytes(1_000_000_000)));
    for bad in ["", "MiB", "1.5GiB", "-1", "17000000TiB", "1Mib"] {
        assert_eq!(Bytes::from_text(bad), None, "{bad}");
    }
}

proptest! {
    #[test]
    fn sizes_come_back(size: u64) {
        prop_assert_eq!(Bytes::from_text(&Bytes(size).to_string()), Some(Bytes(size)));
    }

    #[test]
    fn no_file_panics(text in "[a-z_=\\[\\]\"0-9\n .#-]{0,80}") {
        drop(Config::load(&file(&text)));
    }
}

#[test]
fn a_reload_takes_what_a_running_daemon_can_change_and_names_the_rest() {
    let old = Config { max_connections: 7, ..Config::default() };
    let fresh = Config {
        max_running: 3,
        max_connections: 9,
        reap_interval: Duration::from_secs(1),
        ..Config::default()
    };
    let Reloaded { config, changed, waiting } = old.reloaded(&fresh);
    assert_eq!((config.max_running, config.max_connections), (3, 7));
    assert_eq!(changed, ["max_running"]);
    assert_eq!(waiting, ["max_connections", "reap_interval"]);
}

#[test]
fn settings_that_can_be_reloaded_are_settings() {
    for name in super::LIVE {
        assert!(SETTINGS.iter().any(|setting| setting.name == name), "{name}");
    }
}
