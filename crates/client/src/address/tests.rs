//! Tests of addresses: every form, every mistake, and that no part becomes an option.

use proptest::prelude::*;

use super::*;

fn words(text: &str) -> Vec<String> {
    match text.parse::<Address>().unwrap() {
        Address::Process(connector) => connector.words().to_vec(),
        Address::Unix(socket) => panic!("{socket:?}"),
    }
}

fn refusal(text: &str) -> String {
    match text.parse::<Address>() {
        Ok(address) => panic!("{text} is read as {address:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn unix_forms_mean_the_same_path() {
    for text in ["unix:/run/s.sock", "unix:///run/s.sock", "/run/s.sock"] {
        assert_eq!(text.parse::<Address>().unwrap().to_string(), "unix:/run/s.sock", "{text}");
    }
    assert_eq!("./a:b".parse::<Address>().unwrap().to_string(), "unix:./a:b");
    let slashes: Address = "//kube://c@d/t".parse().unwrap();
    assert_eq!(slashes.to_string().parse::<Address>().unwrap(), slashes, "{slashes}");
}

#[test]
fn each_form_is_one_command_line() {
    for (text, line) in [
        ("ssh://build7", "ssh -T -o BatchMode=yes -- build7 'step-runner' 'proxy'"),
        (
            "ssh://ci@build7:2222/run/s.sock",
            "ssh -T -o BatchMode=yes -p 2222 -- ci@build7 'step-runner' 'proxy' '--socket' '/run/s.sock'",
        ),
        ("ssh://ci@[::1]:22", "ssh -T -o BatchMode=yes -p 22 -- ci@::1 'step-runner' 'proxy'"),
        (
            "ssh://h?command=/opt/helper%20steps&socket=/s",
            "ssh -T -o BatchMode=yes -- h '/opt/helper' 'steps' 'proxy' '--socket' '/s'",
        ),
        ("docker://job", "docker exec -i job step-runner proxy"),
        (
            "docker://job/s.sock?user=1000:1000&host=unix:///run/d.sock",
            "docker -H unix:///run/d.sock exec -i --user 1000:1000 job step-runner proxy --socket /s.sock",
        ),
        ("podman://job?user=_apt", "podman exec -i --user _apt job step-runner proxy"),
        ("kube://ci/pod-1", "kubectl -n ci exec -i pod-1 -- step-runner proxy"),
        (
            "kube://kubernetes-admin@kubernetes@ci/pod-1/build?socket=/s",
            "kubectl --context kubernetes-admin@kubernetes -n ci exec -i pod-1 -c build -- step-runner proxy --socket /s",
        ),
        (
            "kube://arn:aws:eks:x%2Fc@ci/p",
            "kubectl --context arn:aws:eks:x/c -n ci exec -i p -- step-runner proxy",
        ),
        ("cmd:ssh 'build 7' step-runner proxy", "ssh build 7 step-runner proxy"),
    ] {
        assert_eq!(words(text).join(" "), line, "{text}");
    }
}

#[test]
fn every_word_for_the_shell_of_ssh_is_one_word_there() {
    let words = words("ssh://h/a%27b%20$(x);%60y%60?command=%22A=b%20c%22%20~%20*");
    assert_eq!(words[6..], [r"'A=b c'", "'~'", "'*'", "'proxy'", "'--socket'", r"'/a'\''b $(x);`y`'"]);
}

#[test]
fn what_is_no_address_is_named() {
    for (text, part) in [
        ("", "no path"),
        ("unix:", "no path"),
        ("unix://host/s.sock", "no host"),
        ("unix:/a\0b", "path"),
        ("gopher://x", "unknown scheme `gopher`"),
        ("SSH://x", "unknown scheme `SSH`"),
        ("ssh:host", "scheme of the address is not followed by `//`"),
        ("ssh://", "no host"),
        ("ssh://ci@", "no host"),
        ("ssh://@h", "no user"),
        ("ssh://-oProxyCommand=x", "host"),
        ("ssh://-v@h", "user"),
        ("ssh://%2Dv", "host"),
        ("ssh://a b", "host"),
        ("ssh://h:", "port"),
        ("ssh://h:0", "port"),
        ("ssh://h:+1", "port"),
        ("ssh://h:65536", "port"),
        ("ssh://::1", "host"),
        ("ssh://[::1", "host"),
        ("ssh://[::g]", "host"),
        ("ssh://[::1]x", "port"),
        ("ssh://h/", "socket"),
        ("ssh://h?socket=s", "socket"),
        ("ssh://h/s?socket=/s", "socket of the address is named twice"),
        ("ssh://h?socket=/a&socket=/b", "socket of the address is given twice"),
        ("ssh://h?user=x", "unknown key `user`"),
        ("ssh://h?", "unknown key ``"),
        ("ssh://h?command", "no command"),
        ("ssh://h?command=%20", "no command"),
        ("ssh://h?command=-x", "command of the address begins with an option"),
        ("ssh://h?command=%27", "quote"),
        ("ssh://h#x", "`#`"),
        ("ssh://h/%zz", "socket of the address holds a `%`"),
        ("ssh://h/%ff", "UTF-8"),
        ("ssh://h/a%0ab", "control"),
        ("docker://", "no container"),
        ("docker://-evil", "container"),
        ("docker://a?user=-x", "user"),
        ("docker://a?host=-x", "host"),
        ("docker://a?api=1", "unknown key `api`"),
        ("kube://ci", "no pod"),
        ("kube:///pod", "no namespace"),
        ("kube://ci/-p", "pod"),
        ("kube://-c@ci/p", "context"),
        ("kube://ci/p/", "no container"),
        ("kube://ci/p/c/s.sock", "behind the container"),
        ("cmd:", "no command"),
        ("cmd:-x", "begins with an option"),
        ("cmd:'a", "quote"),
    ] {
        let message = refusal(text);
        assert!(message.contains(part), "{text}: {message}");
    }
}

#[test]
fn a_password_is_refused_and_not_repeated() {
    for text in ["ssh://ci:hunter2@h", "ssh://ci%3Ahunter2@h", "docker://c?host=ssh://ci:hunter2@h"] {
        let message = refusal(text);
        assert!(message.contains("password") && !message.contains("hunter2"), "{message}");
    }
}

#[test]
fn a_socket_too_long_for_the_far_side_is_refused_here() {
    let message = refusal(&format!("docker://c/{}", "a".repeat(100)));
    assert!(message.contains("101 bytes"), "{message}");
}

/// Checks that an address survives writing and parsing, and that none of its parts becomes an option.
fn check(text: &str) {
    let Ok(address) = text.parse::<Address>() else { return };
    assert_eq!(address.to_string().parse::<Address>().ok().as_ref(), Some(&address), "{text}");
    let Address::Process(connector) = address else { return };
    assert!(!connector.words()[0].is_empty() && !connector.words()[0].starts_with('-'), "{text}");
    if connector.kind() == ConnectorKind::Command {
        return;
    }
    let ours = ["-T", "-o", "-p", "--", "-H", "-i", "--user", "--context", "-n", "-c", "--socket"];
    for word in connector.words() {
        assert!(
            !word.starts_with('-') || ours.contains(&word.as_str()) || text.contains("command="),
            "{text}: {word}"
        );
        assert!(!word.chars().any(char::is_control), "{text}: {word:?}");
    }
}

proptest! {
    #[test]
    fn any_text_is_an_address_or_an_error(text in ".{0,60}") {
        check(&text);
    }

    #[test]
    fn whatever_stands_in_the_parts_no_option_comes_of_it(
        scheme in "ssh|docker|podman|kube",
        authority in "[-a-z0-9@:%2D\\[\\]. ]{0,12}",
        path in "(/[-a-z0-9%2F$'; ]{0,8}){0,3}",
        query in "(\\?(socket|command|user|host)=[-a-z/%20'@:]{0,12}){0,1}",
    ) {
        check(&format!("{scheme}://{authority}{path}{query}"));
    }

    #[test]
    fn words_of_a_command_come_back_as_they_were(words in prop::collection::vec("[^\0]{0,8}", 1..5)) {
        let address = Address::via(&shell_words::join(&words));
        if words[0].is_empty() || words[0].starts_with('-') {
            prop_assert!(address.is_err());
        } else {
            let Ok(Address::Process(connector)) = address else { panic!("{words:?}") };
            prop_assert_eq!(connector.words(), words);
        }
    }
}
