//! Options of the program `cell-router`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::route::Rules;
use super::{Routes, Target};

/// The options, as the program prints them after a mistake.
pub(crate) const USAGE: &str =
    "usage: cell-router --listen ADDRESS:PORT --cell N=URL [--cell N=URL …] --default N
       [--path /PREFIX=N …] [--unknown-cell default|404]";

/// Settings of a router.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) listen: SocketAddr,
    pub(crate) routes: Routes,
}

impl Options {
    /// Reads arguments. The error says which of them is wrong and what it must be.
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self, String> {
        let (mut listen, mut default, mut refuses_unknown) = (None, None, false);
        let (mut targets, mut paths) = (BTreeMap::new(), Vec::new());
        let mut words = arguments.iter();
        while let Some(option) = words.next() {
            let value = *words.next().ok_or_else(|| format!("{option}: a value must follow"))?;
            match *option {
                "--listen" => {
                    let address = value.parse().map_err(|_| format!("--listen {value}: not ADDRESS:PORT"))?;
                    listen = Some(address);
                }
                "--cell" => {
                    let (number, url) =
                        value.split_once('=').ok_or_else(|| format!("--cell {value}: not N=URL"))?;
                    if targets.insert(cell("--cell", number)?, Target::parse(url)?).is_some() {
                        return Err(format!("--cell {value}: cell {number} is there already"));
                    }
                }
                "--path" => {
                    let (prefix, number) = value
                        .rsplit_once('=')
                        .filter(|(prefix, _)| prefix.starts_with('/'))
                        .ok_or_else(|| format!("--path {value}: not /PREFIX=N"))?;
                    paths.push((prefix.to_owned(), cell("--path", number)?));
                }
                "--default" => default = Some(cell("--default", value)?),
                "--unknown-cell" => {
                    refuses_unknown = match value {
                        "default" => false,
                        "404" => true,
                        _ => return Err(format!("--unknown-cell {value}: neither `default` nor `404`")),
                    };
                }
                _ => return Err(format!("{option}: no such option")),
            }
        }
        let listen = listen.ok_or("--listen is missing: the address for clients")?;
        let default: u64 = default.ok_or("--default is missing: the cell of requests that name none")?;
        let cells: BTreeSet<u64> = targets.keys().copied().collect();
        let named = paths.iter().map(|(_, cell)| cell).chain([&default]);
        if let Some(absent) = named.into_iter().find(|number| !cells.contains(number)) {
            return Err(format!("cell {absent} is named, but has no --cell {absent}=URL"));
        }
        Ok(Self {
            listen,
            routes: Routes { rules: Rules { cells, paths, default, refuses_unknown }, targets },
        })
    }
}

fn cell(option: &str, text: &str) -> Result<u64, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| text.parse().ok()).flatten();
    number.ok_or_else(|| format!("{option} {text}: a cell is a decimal number such as 1"))
}
