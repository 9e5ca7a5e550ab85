//! What a router reads in tokens: the cell and other numbers (agent.md §2.1).
//!
//! A runner's token has them as text in base64url, a job's token as claims of a JWT. Neither checksum nor signature is
//! looked at: a router only chooses an address, and the server behind it checks the token.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value as Json;

use super::is_instance_prefix;

/// Random bytes before the text of a runner's token.
const RANDOM: usize = 16;

/// Lengths of the payload that routers accept, in characters.
const PAYLOAD: std::ops::RangeInclusive<usize> = 27..=300;

/// Longest claims of a job's token that are looked at. Tokens themselves end at 4 KiB.
const MAX_CLAIMS: usize = 4 << 10;

/// The numbers in a token, each as far as it is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Routable {
    /// `c`: the cell.
    pub cell: Option<u64>,
    /// `o`: the organization.
    pub organization: Option<u64>,
    /// `g`: the group.
    pub group: Option<u64>,
    /// `p`: the project.
    pub project: Option<u64>,
    /// `u`: the user.
    pub user: Option<u64>,
    /// `t`: the type of the runner. Shown to people, and nothing else.
    pub runner_type: Option<u64>,
}

impl Routable {
    /// Reads a runner's token. `None`: it has another form, or names no cell.
    pub fn of_runner_token(token: &str) -> Option<Self> {
        let rest = token.strip_prefix("glrt-").or_else(|| token.strip_prefix("glrtr-"))?;
        let (payload, check) = rest.split_once(".01.")?;
        let is_check = check.len() == 9 && check.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_check || !PAYLOAD.contains(&payload.len()) {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(payload).ok()?;
        let (last, bytes) = bytes.split_last()?;
        let text = bytes.get(RANDOM..).filter(|_| usize::from(*last) == RANDOM)?;
        let mut found = Self::default();
        for line in std::str::from_utf8(text).ok()?.split('\n') {
            let (key, value) = line.split_once(':')?;
            found.set(key, value)?;
        }
        found.cell.map(|_| found)
    }

    /// Reads a job's token: `glcbt-`, behind a prefix of the instance perhaps, and a JWT. `None`: it has another form,
    /// or names no cell.
    pub fn of_job_token(token: &str) -> Option<Self> {
        let (prefix, jwt) = token.split_once("glcbt-")?;
        let has_prefix = prefix.is_empty() || prefix.strip_suffix('-').is_some_and(is_instance_prefix);
        let mut parts = jwt.split('.');
        let (_header, claims, _signature) = (parts.next()?, parts.next()?, parts.next()?);
        if !has_prefix || parts.next().is_some() || claims.len() > MAX_CLAIMS {
            return None;
        }
        let claims: Json = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
        let mut found = Self::default();
        for key in ["c", "o", "g", "p", "u"] {
            if let Some(value) = claims.get(key) {
                found.set(key, value.as_str()?)?;
            }
        }
        found.cell.map(|_| found)
    }

    /// Stores a number. Unknown keys are ignored: later servers may add some.
    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        let number = base_36(value)?;
        let place = match key {
            "c" => &mut self.cell,
            "o" => &mut self.organization,
            "g" => &mut self.group,
            "p" => &mut self.project,
            "u" => &mut self.user,
            "t" => &mut self.runner_type,
            _ => return Some(()),
        };
        *place = Some(number);
        Some(())
    }

    /// Returns the type of the runner in the words of GitLab.
    pub const fn runner_type_name(&self) -> Option<&'static str> {
        match self.runner_type {
            Some(1) => Some("instance_type"),
            Some(2) => Some("group_type"),
            Some(3) => Some("project_type"),
            _ => None,
        }
    }
}

/// Parses a number of base 36 in lower case. A sign is no digit.
fn base_36(text: &str) -> Option<u64> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase());
    is_number.then(|| u64::from_str_radix(text, 36).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Encodes a number with `width` digits of base 36.
    fn digits(mut number: u64, width: usize) -> String {
        let mut found = Vec::new();
        while number > 0 || found.len() < width {
            found.push(char::from_digit((number % 36) as u32, 36).unwrap());
            number /= 36;
        }
        found.iter().rev().collect()
    }

    /// Makes a token as the server does.
    fn token(text: &str) -> String {
        let random: Vec<u8> = (0..RANDOM as u8).collect();
        let payload = URL_SAFE_NO_PAD.encode([&random[..], text.as_bytes(), &[RANDOM as u8]].concat());
        let before = format!("glrt-{payload}.01.{}", digits(payload.len() as u64, 2));
        let check = digits(u64::from(crc32fast::hash(before.as_bytes())), 7);
        before + &check
    }

    #[test]
    fn c13_tokens_of_the_table_name_their_cells() {
        for (cell, text, payload, length, check) in [
            (1, "c:1", "AAECAwQFBgcICQoLDA0OD2M6MQpnOjgKbzpyehA", "13", "0rjclzj"),
            (2, "c:2", "AAECAwQFBgcICQoLDA0OD2M6MgpnOjgKbzpyehA", "13", "08364l0"),
            (36, "c:10", "AAECAwQFBgcICQoLDA0OD2M6MTAKZzo4Cm86cnoQ", "14", "1as6e5e"),
        ] {
            let whole = format!("glrt-{payload}.01.{length}{check}");
            assert_eq!(whole, token(&format!("{text}\ng:8\no:rz")));
            let found = Routable::of_runner_token(&whole).unwrap();
            assert_eq!((found.cell, found.group, found.organization), (Some(cell), Some(8), Some(1007)));
            let registered = whole.replace("glrt-", "glrtr-");
            assert_eq!(Routable::of_runner_token(&registered), Some(found));
        }
    }

    #[test]
    fn c13_tokens_of_other_forms_name_no_cell() {
        let good = token("c:1\ng:8\no:rz");
        let long = token(&format!("c:1\nx:{}", "1".repeat(300)));
        for text in [
            "",
            "glrt-",
            "glrt-t1_A1FakeRunner0001",
            &good.replace("glrt-", "GLRT-"),
            &good.replace("glrt-", "xglrt-"),
            &good.replace(".01.", ".02."),
            &good.replace("AAEC", "AA+C"),
            good.strip_suffix(|_: char| true).unwrap(),
            &format!("{good}0"),
            &format!("{good} "),
            &token("g:8\no:rz"),
            &token("c:1\nnothing"),
            &token("c:-1"),
            &token("c:A"),
            &token("c:zzzzzzzzzzzzzz"),
            &long,
            "glrt-AAAAAAAAAAAAAAAAAAAAAAAAAAA.01.0r0000000",
        ] {
            assert_eq!(Routable::of_runner_token(text), None, "{text}");
        }
    }

    /// A job's token with these claims.
    fn job_token(prefix: &str, claims: &str) -> String {
        format!(
            "{prefix}glcbt-{}.{}.sig-nature_",
            URL_SAFE_NO_PAD.encode("{}"),
            URL_SAFE_NO_PAD.encode(claims)
        )
    }

    #[test]
    fn c13_a_jobs_token_names_its_cell_in_claims_that_nobody_verifies() {
        for prefix in ["", "xy-", "a-b-"] {
            let found = Routable::of_job_token(&job_token(prefix, r#"{"c":"10","p":"5","u":"z","x":[]}"#));
            let wanted = Routable { cell: Some(36), project: Some(5), user: Some(35), ..Routable::default() };
            assert_eq!(found, Some(wanted), "{prefix}");
        }
        for text in [
            "glcbt-64_fakejobtoken1001abcdef".to_owned(),
            job_token("", r#"{"p":"5"}"#),
            job_token("", r#"{"c":1}"#),
            job_token("", "garbage"),
            job_token("", r#"{"c":"1"}"#).replace("glcbt", "GLCBT"),
            job_token("", r#"{"c":"1"}"#) + ".more",
            job_token("xy", r#"{"c":"1"}"#),
            "glcbt-a.%%%.c".to_owned(),
            "glcbt-..".to_owned(),
        ] {
            assert_eq!(Routable::of_job_token(&text), None, "{text}");
        }
    }

    #[test]
    fn the_type_of_a_runner_has_a_name() {
        for (text, name) in [("c:1\nt:3", Some("project_type")), ("c:1\nt:9", None), ("c:1", None)] {
            assert_eq!(Routable::of_runner_token(&token(text)).unwrap().runner_type_name(), name);
        }
    }

    proptest! {
        #[test]
        fn numbers_of_a_token_come_back(cell: u32, group: Option<u32>, kind in 1..4_u64) {
            let group_line = group.map(|group| format!("g:{}\n", digits(u64::from(group), 1)));
            let text = format!("c:{}\n{}t:{kind}", digits(u64::from(cell), 1), group_line.unwrap_or_default());
            let found = Routable::of_runner_token(&token(&text)).unwrap();
            prop_assert_eq!(found.cell, Some(u64::from(cell)));
            prop_assert_eq!(found.group, group.map(u64::from));
            prop_assert_eq!(found.runner_type, Some(kind));
        }

        #[test]
        fn no_text_breaks_the_reader(text: String, bytes in "glrt-[A-Za-z0-9_-]{20,310}\\.01\\.[a-z0-9]{9}") {
            prop_assert!(Routable::of_runner_token(&text).is_none() && Routable::of_job_token(&text).is_none());
            prop_assert!(Routable::of_runner_token(&bytes).is_none_or(|found| found.cell.is_some()));
        }
    }
}
