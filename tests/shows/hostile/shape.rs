//! Jobs that cost as much as their limits allow: shapes that once blocked the daemon, and random ones.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use prost_types::value::Kind;
use step_runner::pb::v1;

use super::groups;
use crate::random::Random;

/// Names of the shapes that are always tried.
pub(super) const SHAPES: [&str; 7] = [
    "evaluated secrets",
    "comparisons",
    "phrases",
    "blank lines",
    "open braces",
    "doubling",
    "control groups",
];

/// Number of functions `double-N`. Each calls the next one with its input twice.
const DOUBLINGS: usize = 24;

/// Time limit of a hostile job.
const LONGEST: Duration = Duration::from_secs(30);

/// Makes requests; `scale` divides their sizes.
#[derive(Clone, Copy)]
pub(super) struct Maker {
    pub(super) scale: usize,
}

/// The functions that hostile jobs call: `double-0` calls `double-1` with its input twice.
pub(super) fn write_functions(folder: &Path) -> std::io::Result<()> {
    for at in 0..DOUBLINGS {
        let own = folder.join(format!("double-{at}"));
        fs::create_dir_all(&own)?;
        let spec = "spec:\n  inputs: {x: {type: string}}\n  outputs: {y: {type: string}}\n---\n";
        let body = if at + 1 == DOUBLINGS {
            "exec: {command: [sh, -c, 'echo \"{\\\"name\\\": \\\"y\\\", \\\"value\\\": \\\"z\\\"}\" > \"$1\"', sh, \
             \"${{ output_file }}\"]}\n"
                .to_owned()
        } else {
            format!(
                "run:\n  - {{name: d, func: ../double-{}, inputs: {{x: \"${{{{ inputs.x }}}}${{{{ inputs.x }}}}\"}}}}\n\
                 outputs: {{y: \"${{{{ steps.d.outputs.y }}}}${{{{ steps.d.outputs.y }}}}\"}}\n",
                at + 1
            )
        };
        fs::write(own.join("func.yml"), format!("{spec}{body}"))?;
    }
    Ok(())
}

fn script(text: impl Into<String>) -> String {
    let text: String = text.into();
    serde_json::json!([{"name": "s", "script": text}]).to_string()
}

fn variable(key: String, value: String, file: bool, masked: bool) -> v1::Variable {
    v1::Variable { key, value, file, masked }
}

fn request(id: &str, steps: String) -> v1::RunRequest {
    let timeout = LONGEST.try_into().ok();
    v1::RunRequest { id: id.into(), steps, timeout, ..v1::RunRequest::default() }
}

fn text(text: String) -> prost_types::Value {
    prost_types::Value { kind: Some(Kind::StringValue(text)) }
}

fn object(members: impl Iterator<Item = (String, prost_types::Value)>) -> prost_types::Value {
    prost_types::Value { kind: Some(Kind::StructValue(prost_types::Struct { fields: members.collect() })) }
}

impl Maker {
    fn of(self, size: usize) -> usize {
        (size / self.scale).max(1)
    }

    /// Returns a request of a shape in [`SHAPES`]. `folder` holds the functions.
    pub(super) fn shape(self, shape: usize, id: &str, folder: &Path) -> v1::RunRequest {
        match shape {
            0 => self.evaluated_secrets(id),
            1 => self.comparisons(id),
            2 => {
                let phrases = (0..self.of(4_000)).map(|n| format!("{n:0>1000}")).collect();
                let masking = Some(v1::Masking { phrases, ..v1::Masking::default() });
                v1::RunRequest { masking, ..request(id, script("exit 3")) }
            }
            3 => {
                let lines = self.of(16 << 20);
                let write = format!("head -c {lines} /dev/zero | tr '\\0' '\\n' > ${{{{ export_file }}}}");
                request(id, script(write))
            }
            4 => {
                let value = "${".repeat(self.of(1_000_000));
                let job = v1::Job {
                    variables: vec![variable("F".into(), value, true, false)],
                    ..v1::Job::default()
                };
                v1::RunRequest { job: Some(job), ..request(id, script("exit 0")) }
            }
            6 => {
                let seed =
                    id.bytes().fold(0, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
                request(id, script(groups::script(&mut Random::new(seed))))
            }
            _ => {
                let depth = DOUBLINGS.saturating_sub(self.scale.ilog2() as usize).max(2);
                let func = folder.join(format!("double-{}", DOUBLINGS - depth));
                let steps = serde_json::json!([{"name": "d", "func": func, "inputs": {"x": "xx"}}]);
                request(id, steps.to_string())
            }
        }
    }

    /// Returns a job with 48 MB of text in which 4,000 secrets are searched.
    fn evaluated_secrets(self, id: &str) -> v1::RunRequest {
        let count = self.of(4_000);
        let secrets = (0..count).map(|n| variable(format!("T{n}"), format!("secret-{n:0>20}"), false, true));
        let long = variable("LONG".into(), "secret-0".repeat(self.of(120_000) / 8 + 1), false, true);
        let job = v1::Job { variables: secrets.chain([long]).collect(), ..v1::Job::default() };
        let steps = script(format!("exit 0\n# {}", "${{ vars.LONG }}".repeat(400)));
        v1::RunRequest { job: Some(job), ..request(id, steps) }
    }

    /// Returns a job that makes 1,000 comparisons of two objects with 20,000 keys each.
    fn comparisons(self, id: &str) -> v1::RunRequest {
        let same = format!("({})", vec!["inputs.a == inputs.b"; 50].join(" && "));
        let steps = format!(
            "spec:\n  inputs: {{a: {{type: struct}}, b: {{type: struct}}}}\n---\nrun:\n{}",
            (0..20).fold(String::new(), |mut steps, n| {
                writeln!(steps, "  - {{name: s{n}, script: \"exit 0 # ${{{{ {same} }}}}\"}}").unwrap();
                steps
            })
        );
        let wide = || {
            object((0..self.of(20_000)).map(|n| {
                (format!("key-{n}"), prost_types::Value { kind: Some(Kind::NumberValue(n as f64)) })
            }))
        };
        let inputs = [("a".to_owned(), wide()), ("b".to_owned(), wide())].into_iter().collect();
        v1::RunRequest { inputs, ..request(id, steps) }
    }

    /// Returns a random job.
    pub(super) fn made_up(self, id: &str, random: &mut Random, folder: &Path) -> v1::RunRequest {
        if random.one_in(8) {
            return self.shape(random.below(SHAPES.len() as u64) as usize, id, folder);
        }
        let (steps, inputs) = self.steps(random);
        let mut made = v1::RunRequest { inputs, ..request(id, steps) };
        made.masking = Some(v1::Masking { phrases: self.phrases(random), ..v1::Masking::default() });
        if random.one_in(4) {
            let count = self.of(*pick(random, &[1, 100, 4_000]));
            made.env = (0..count).map(|n| (format!("E{n}"), Self::value(random, 1_000))).collect();
        } else {
            made.job = Some(v1::Job { variables: self.variables(random), ..v1::Job::default() });
        }
        made
    }

    fn phrases(self, random: &mut Random) -> Vec<String> {
        let count = self.of(*pick(random, &[1, 1, 20, 1_000, 4_000]));
        let longest = (self.of(3 << 20) / count).max(8);
        let length = (*pick(random, &[8, 30, 200, 1_000, 100_000])).min(longest);
        let shape = random.below(4);
        let one = |n: usize| match shape {
            0 => format!("{}{n}", "0".repeat(length.saturating_sub(n.to_string().len()))),
            1 => format!("{}{n}", "a".repeat(length)),
            2 => format!("\"quoted\" \\ {n}\nsecond line {n} of {}", "x".repeat(length)),
            _ => "ab".repeat(1 + n % length),
        };
        (0..count).map(one).collect()
    }

    fn variables(self, random: &mut Random) -> Vec<v1::Variable> {
        let count = self.of(*pick(random, &[1, 10, 150, 1_000, 4_000]));
        let longest = self.of(7 << 20) / count;
        let (files, masked, same) = (random.one_in(3), random.one_in(3), random.one_in(4));
        let one = |n: usize, random: &mut Random| {
            let length = if files { longest } else { longest.min(100_000) };
            let value = Self::value(random, length);
            let name = if same { "SAME".to_owned() } else { format!("V{n}") };
            variable(name, value, files, masked)
        };
        (0..count).map(|n| one(n, random)).collect()
    }

    /// Returns a text of about `length` bytes.
    fn value(random: &mut Random, length: usize) -> String {
        let length = random.below(length as u64 + 1) as usize;
        let unit =
            *pick(random, &["${", "$SAME", "${V0}", "}", "$", "x", "a\n", "\\", "ä", "$$", "secret-0"]);
        unit.repeat(length / unit.len())
    }

    /// Returns steps, and the inputs that their interface requires.
    fn steps(self, random: &mut Random) -> (String, std::collections::BTreeMap<String, prost_types::Value>) {
        let mut text = String::from(
            "spec:\n  inputs: {w: {type: struct}, t: {type: string}, n: {type: array}}\n---\nrun:\n",
        );
        for n in 0..*pick(random, &[1, 1, 3, 20]) {
            let name = if random.one_in(8) { "n".repeat(self.of(1 << 16)) } else { format!("s{n}") };
            let script = self.script(random);
            let step = serde_json::json!({"name": name, "script": script});
            writeln!(text, "  - {step}").unwrap();
        }
        match random.below(8) {
            0 => text.push_str(&"# comment\n".repeat(self.of(1 << 20))),
            1 => text.push_str(&"\n".repeat(self.of(10 << 20))),
            2 => text.push_str(&"  - {name: t, script: 'true', unknown: 1}\n".repeat(self.of(900))),
            3 => {
                let deep = "[".repeat(100) + &"]".repeat(100);
                writeln!(text, "outputs: {{deep: {deep}}}").unwrap();
            }
            4 => text.push_str(&"  - {nam: t, script: 1}\n".repeat(self.of(100_000))),
            _ => {}
        }
        let keys = self.of(*pick(random, &[1, 100, 20_000]));
        let wide = object((0..keys).map(|n| (format!("key-{n}"), text_of(n))));
        let long = text_of_length(self.of(*pick(random, &[1, 1_000, 1 << 20, 8 << 20])));
        let count = self.of(*pick(random, &[1, 1_000, 200_000]));
        let values = (0..count).map(|n| prost_types::Value { kind: Some(Kind::NumberValue(n as f64)) });
        let list = prost_types::ListValue { values: values.collect() };
        let list = prost_types::Value { kind: Some(Kind::ListValue(list)) };
        let inputs = [("w", wide), ("t", long), ("n", list)];
        (text, inputs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// Returns a script that evaluates or prints much.
    fn script(self, random: &mut Random) -> String {
        let operator = *pick(random, &["+", "==", "<", "||", "&&", "!="]);
        let operand = *pick(
            random,
            &[
                "inputs.w",
                "inputs.t",
                "str(inputs.n)",
                "str(env)",
                "env",
                "vars",
                "vars.V0",
                "inputs.w['none']",
            ],
        );
        let times = self.of(*pick(random, &[1, 10, 500, 3_000]));
        let expression = match random.below(3) {
            0 => format!("${{{{ {} }}}}", vec![operand; times].join(operator)),
            1 => format!("${{{{ {operand} }}}}").repeat(times),
            _ => String::new(),
        };
        let lines = self.of(*pick(random, &[1, 1_000, 300_000]));
        let bytes = self.of(*pick(random, &[1, 1 << 20, 16 << 20]));
        let behind = match random.below(8) {
            0 => format!("head -c {bytes} /dev/zero | tr '\\0' '\\n' > ${{{{ export_file }}}}"),
            1 => format!(
                "seq {lines} | sed 's/.*/{{\"name\": \"N&\", \"value\": \"v&\"}}/' > ${{{{ export_file }}}}"
            ),
            2 => format!(
                "(printf '{{\"name\": \"L\", \"value\": \"'; head -c {} /dev/zero | tr '\\0' x; echo '\"}}') > \
                 ${{{{ export_file }}}}",
                bytes.min(self.of(120_000))
            ),
            3 => format!("(seq {} | tr '0-9\\n' '['; echo) > ${{{{ export_file }}}}", lines.min(100_000)),
            4 => format!(
                "mkdir -p $STEP_RUNNER_JOB && cd $STEP_RUNNER_JOB && seq {} | xargs touch",
                lines.min(5_000)
            ),
            5 => format!("head -c {bytes} /dev/zero | tr '\\0' y; exit 3"),
            6 => groups::script(random),
            _ => String::new(),
        };
        format!("{behind}\nexit\n# {expression}")
    }
}

fn text_of(n: usize) -> prost_types::Value {
    text(format!("value-{n}"))
}

fn text_of_length(length: usize) -> prost_types::Value {
    text("t".repeat(length))
}

fn pick<'a, T>(random: &mut Random, all: &'a [T]) -> &'a T {
    &all[random.below(all.len() as u64) as usize]
}
