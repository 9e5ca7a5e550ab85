//! The command line.

#[derive(Clone, Debug, Default)]
pub(crate) struct Arguments {
    pub(crate) seeds: Option<u64>,
    pub(crate) from: u64,
    pub(crate) seed: Option<u64>,
    pub(crate) seconds: Option<u64>,
    pub(crate) jobs: Option<u64>,
    /// Keep what fails in the file of seeds.
    pub(crate) keep: bool,
    /// A place at which every run has a fault, as `FAILPOINTS` would name it: the simulator must find it.
    pub(crate) fault: Option<String>,
    /// One of several processes that share the seeds.
    pub(crate) worker: bool,
    /// Only races of a cancel with an end.
    pub(crate) races: Option<u64>,
    /// Only jobs that nobody finishes.
    pub(crate) abandoned: Option<u64>,
    /// Nothing of ours was asked for: the words are the test harness's.
    pub(crate) tests: bool,
}

impl Arguments {
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Self { from: 1, keep: true, ..Self::default() };
        let all: Vec<String> = words.collect();
        let ours = [
            "--seeds",
            "--from",
            "--seed",
            "--seconds",
            "--jobs",
            "--races",
            "--abandoned",
            "--fault",
            "--worker",
        ];
        if !all.iter().any(|word| ours.contains(&word.as_str())) {
            return Ok(Self { tests: true, ..arguments });
        }
        let mut words = all.into_iter();
        while let Some(word) = words.next() {
            let mut number = || {
                let value = words.next().ok_or_else(|| format!("{word} wants a number"))?;
                value.parse::<u64>().map_err(|_| format!("{word} {value}: not a number"))
            };
            match word.as_str() {
                "--seeds" => arguments.seeds = Some(number()?),
                "--from" => arguments.from = number()?,
                "--seed" => arguments.seed = Some(number()?),
                "--seconds" => arguments.seconds = Some(number()?),
                "--jobs" => arguments.jobs = Some(number()?),
                "--no-keep" => arguments.keep = false,
                "--fault" => arguments.fault = Some(words.next().ok_or("--fault wants a name")?),
                "--worker" => arguments.worker = true,
                "--races" => arguments.races = Some(number()?),
                "--abandoned" => arguments.abandoned = Some(number()?),
                "--quiet" => {}
                other => return Err(format!("{other}: unknown")),
            }
        }
        Ok(arguments)
    }
}
