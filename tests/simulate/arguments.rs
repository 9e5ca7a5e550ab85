//! The command line of the simulator.

#[derive(Clone, Debug, Default)]
pub(crate) struct Arguments {
    pub(crate) seeds: Option<u64>,
    pub(crate) from: u64,
    pub(crate) seed: Option<u64>,
    pub(crate) seconds: Option<u64>,
    pub(crate) jobs: Option<u64>,
    /// Adds failing seeds to the file of seeds.
    pub(crate) keep: bool,
    /// Failpoint to enable in every run, written as in `FAILPOINTS`. The simulator must detect it.
    pub(crate) fault: Option<String>,
    /// True for one of several processes that share the seeds.
    pub(crate) worker: bool,
    /// Runs only the races of a cancel with an end, this many.
    pub(crate) races: Option<u64>,
    /// Runs only the proof of abandoned jobs, with this many.
    pub(crate) abandoned: Option<u64>,
    /// True if none of our options was given. The arguments then belong to the test harness.
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
