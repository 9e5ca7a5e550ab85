//! The program of a step: this binary again, which writes known bytes with plain write calls.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use step_runner::pb::v1;

use crate::random::Random;
use crate::verdict::Check;

/// First argument that makes this binary a writer.
const WORD: &str = "writer";

/// Largest block generated at a time. It is shortened to whole lines.
const BLOCK: usize = 64 << 10;

/// Description of the output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Writing {
    /// Bytes of a line with its line feed. 0: no line feed anywhere.
    pub(crate) width: usize,
    /// Total bytes, a multiple of the width.
    pub(crate) bytes: u64,
    pub(crate) seed: u64,
    pub(crate) pace: Pace,
    /// File for the report.
    pub(crate) report: PathBuf,
}

/// Speed and pattern of the writes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Pace {
    /// New bytes all the time, in writes of any size up to [`BLOCK`].
    Varied,
    /// One line whenever `every` has passed. A gate holds back the lines after that many bytes until its file exists.
    /// So an event in the middle of the output happens there, however late it comes.
    Lines { every: Duration, gates: Vec<(u64, PathBuf)> },
    /// Repeats one block, so that only writing costs time. Writes `first` bytes, waits until the file `go`
    /// exists, then writes the rest, which is timed.
    Fast { first: u64, go: PathBuf },
}

/// Report of the writer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Digest of all bytes. Empty for [`Pace::Fast`].
    pub(crate) sha256: String,
    /// Time of the timed part.
    pub(crate) took: Duration,
}

impl Writing {
    /// Returns a job with one step that writes this output.
    pub(crate) fn job(&self, id: &str) -> Check<v1::RunRequest> {
        let this = std::env::current_exe().map_err(|error| error.to_string())?;
        let plan = serde_json::to_string(self).map_err(|error| error.to_string())?;
        let steps = serde_json::json!({ "exec": { "command": [this, WORD, plan] } }).to_string();
        Ok(v1::RunRequest { id: id.to_owned(), steps, ..v1::RunRequest::default() })
    }

    /// Reads the writer's report.
    pub(crate) fn report(&self) -> Check<Report> {
        let text = fs::read_to_string(&self.report).map_err(|error| format!("no report: {error}"))?;
        serde_json::from_str(&text).map_err(|error| format!("report {text:?}: {error}"))
    }

    fn write(&self) -> std::io::Result<Report> {
        let mut out = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
        let mut blocks = Blocks::new(self.width, self.seed);
        let mut sizes = Random::new(self.seed).fork(1);
        let mut digest = Sha256::new();
        let mut begun = Instant::now();
        let mut left = self.bytes;
        match &self.pace {
            Pace::Varied => {
                while left > 0 {
                    let block = blocks.next(left);
                    digest.update(block);
                    left -= block.len() as u64;
                    let mut rest = block;
                    while !rest.is_empty() {
                        let (piece, after) =
                            rest.split_at(rest.len().min(1 + sizes.below(BLOCK as u64) as usize));
                        out.write_all(piece)?;
                        rest = after;
                    }
                }
            }
            Pace::Lines { every, gates } => {
                let mut written = 0;
                let mut gates = gates.iter().peekable();
                while left > 0 {
                    let block = blocks.next(left);
                    digest.update(block);
                    left -= block.len() as u64;
                    for line in block.chunks(self.width) {
                        let bytes = u64::from(written) * self.width as u64;
                        if let Some((_, go)) = gates.next_if(|(gate, _)| bytes >= *gate) {
                            wait_for(go);
                        }
                        let due = *every * written;
                        std::thread::sleep(due.saturating_sub(begun.elapsed()));
                        out.write_all(line)?;
                        written += 1;
                    }
                }
            }
            Pace::Fast { first, go } => {
                let block = blocks.next(left).to_vec();
                let mut waits = true;
                while left > 0 {
                    if waits && self.bytes - left >= *first {
                        wait_for(go);
                        begun = Instant::now();
                        waits = false;
                    }
                    let piece = &block[..block.len().min(left as usize)];
                    out.write_all(piece)?;
                    left -= piece.len() as u64;
                }
            }
        }
        let took = begun.elapsed();
        let sha256 =
            if matches!(self.pace, Pace::Fast { .. }) { String::new() } else { hex(&digest.finalize()) };
        Ok(Report { sha256, took })
    }
}

/// Generates blocks of random bytes in lines.
struct Blocks {
    width: usize,
    random: Random,
    block: Vec<u8>,
    /// Maps a random byte to the byte written.
    table: [u8; 256],
}

impl Blocks {
    fn new(width: usize, seed: u64) -> Self {
        // Line feeds only end lines, CR would cut entries, and without `-` and `=` nothing looks like a token.
        let plain = |byte: u8| if b"\n\r-=".contains(&byte) { byte ^ 0x40 } else { byte };
        // Whole lines only, so that a block never ends within a line.
        let length = BLOCK - BLOCK.checked_rem(width).unwrap_or(0);
        Self {
            width,
            random: Random::new(seed),
            block: vec![0; length],
            table: std::array::from_fn(|at| plain(at as u8)),
        }
    }

    /// Returns the next block, at most `most` bytes long.
    fn next(&mut self, most: u64) -> &[u8] {
        for bytes in self.block.chunks_mut(8) {
            let random = self.random.next().to_le_bytes();
            for (byte, from) in bytes.iter_mut().zip(random) {
                *byte = self.table[usize::from(from)];
            }
        }
        if self.width > 0 {
            self.block.iter_mut().skip(self.width - 1).step_by(self.width).for_each(|byte| *byte = b'\n');
        }
        &self.block[..self.block.len().min(most as usize)]
    }
}

fn wait_for(file: &Path) {
    while !file.exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn hex(digest: &[u8]) -> String {
    digest.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// True if this process is to be the writer.
pub(crate) fn is_asked() -> bool {
    std::env::args().nth(1).is_some_and(|word| word == WORD)
}

/// Runs the writer.
pub(crate) fn main() -> ExitCode {
    let plan = std::env::args().nth(2).unwrap_or_default();
    let written =
        serde_json::from_str::<Writing>(&plan).map_err(|error| error.to_string()).and_then(|writing| {
            let report = writing.write().map_err(|error| error.to_string())?;
            let text = serde_json::to_string(&report).map_err(|error| error.to_string())?;
            fs::write(&writing.report, text).map_err(|error| error.to_string())
        });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("writer: {error}");
            ExitCode::FAILURE
        }
    }
}
