//! Fetches functions from Git repositories over HTTP and HTTPS (language.md §7.3, §7.7).
//!
//! Owns all steps from a repository's URL and a revision to a tree of files. Speaks Git's protocol through a library.
//! It starts no program, reads no configuration and keeps no work tree. Everything that a server sends may be hostile.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use gix::ObjectId;
use gix::hash::Prefix;
use gix::objs::Kind;
use gix::protocol::handshake::Ref;

use self::connection::{Connection, FetchError, FetchedObjects, WantedObjects};
use self::fault::Fault;
use self::http::{TransferState, Web};
use self::location::Location;
use self::revision::{Revision, RevisionMeaning};
use super::Remote;
use crate::fetch::order::{Order, Progress, Source, Stats};
use step_runner_core::job::event::FetchFailure;
use step_runner_web::retry::{self, Notice, Retries};

mod checkout;
mod connection;
mod fault;
mod http;
mod location;
mod login;
mod revision;
mod store;
#[cfg(test)]
mod tests;

/// A revision of a repository. Holds credentials, so there is no `Debug`.
pub struct Git {
    location: Location,
    revision: String,
    web: Web,
    wire: Rc<TransferState>,
    scratch: PathBuf,
    connection: Option<Connection>,
    /// The commit that the revision names.
    found: Option<ObjectId>,
    /// Objects that had to be fetched to find it.
    fetched: Option<FetchedObjects>,
    /// Begin of the task, for the time in which commands are tried again.
    begin: Instant,
    notice: Notice,
}

impl Git {
    /// Takes an order for a Git repository. Does not contact the server yet.
    ///
    /// # Errors
    /// Class `fetch`: the URL is not supported, or the variables for proxies and certificates are invalid.
    pub fn new(order: &Order) -> Result<Self, FetchFailure> {
        let client = order.network.blocking_client().map_err(|error| fault::no_client(&error))?;
        Self::with_client(order, client)
    }

    fn with_client(order: &Order, client: reqwest::blocking::Client) -> Result<Self, FetchFailure> {
        let Source::Git { url, revision } = &order.source else {
            return Err(fault::failure("the order is not for a Git repository".to_owned()));
        };
        let location = Location::parse(url).map_err(fault::wrong_url)?;
        let wire = Rc::<TransferState>::default();
        let sender = (&order.network, client);
        let web = Web::new(sender, location.clone(), order.credentials.clone(), Rc::clone(&wire));
        Ok(Self {
            location,
            revision: revision.clone(),
            web,
            wire,
            scratch: order.scratch.clone(),
            connection: None,
            found: None,
            fetched: None,
            begin: Instant::now(),
            notice: &|_| {},
        })
    }

    /// Has `notice` called with a line for each command that failed and is tried again.
    #[must_use]
    pub(crate) fn telling(self, notice: Notice) -> Self {
        Self { notice, ..self }
    }

    fn connection(&mut self) -> Result<&mut Connection, Fault> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(self.web.clone(), Rc::clone(&self.wire), self.location.base().as_str())?,
        };
        Ok(self.connection.insert(connection))
    }

    /// Does `command`, and does it again over a new connection if it fails in a way that may pass. All commands only read.
    fn retrying<T>(
        &mut self,
        mut command: impl FnMut(&mut Self) -> Result<T, FetchError>,
    ) -> Result<T, FetchError> {
        let mut retries = Retries::since(self.begin);
        loop {
            let fault = match command(self) {
                Err(FetchError::Fault(fault)) if fault.is_transient() => fault,
                end => return end,
            };
            self.connection = None;
            let Some(wait) = retries.next_wait(Instant::now(), fault.retry_after()) else {
                return Err(fault.into());
            };
            (self.notice)(&retry::notice(&fault, wait));
            std::thread::sleep(wait);
        }
    }

    /// Lists the references whose names begin with one of `prefixes`.
    fn references(&mut self, prefixes: &[String]) -> Result<Vec<Ref>, FetchFailure> {
        let listed = self.retrying(|git| Ok(git.connection()?.references(prefixes.to_vec())?));
        listed.map_err(|error| error.at(&self.location))
    }

    /// Fetches into a new folder of the scratch folder. Returns `None` if the server refuses.
    fn fetch(
        &mut self,
        wanted: &WantedObjects<'_>,
        folder: &str,
        report: &mut dyn FnMut(Progress),
    ) -> Result<Option<FetchedObjects>, FetchFailure> {
        let into = self.scratch.join(folder);
        let fetched = self.retrying(|git| {
            // What a broken transfer left is of no use.
            match fs::remove_dir_all(&into) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(Fault::Storage(error.kind()).into())
                }
                _ => git.connection()?.fetch(wanted, &into, report),
            }
        });
        match fetched {
            Ok(fetched) => Ok(Some(fetched)),
            Err(error) => {
                self.connection = None;
                match error {
                    FetchError::Refused => Ok(None),
                    error @ FetchError::Fault(_) => Err(error.at(&self.location)),
                }
            }
        }
    }

    /// Fetches everything reachable from tags and branches.
    fn fetch_history(
        &mut self,
        commits_only: bool,
        folder: &str,
        report: &mut dyn FnMut(Progress),
    ) -> Result<FetchedObjects, FetchFailure> {
        let references = self.references(&["refs/tags/", "refs/heads/"].map(str::to_owned))?;
        let mut ids: Vec<_> = revision::tips(&references).map(|(_, id)| id).collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() {
            return Err(self.unknown());
        }
        let wanted = WantedObjects { ids: &ids, alone: false, commits_only };
        self.fetch(&wanted, folder, report)?.ok_or_else(|| Fault::Withheld.at(&self.location))
    }

    /// Finds the commit whose hash begins with `prefix`, anywhere in the history.
    fn search(&mut self, prefix: Prefix, report: &mut dyn FnMut(Progress)) -> Result<ObjectId, FetchFailure> {
        let history = self.fetch_history(true, "history", report)?;
        let found = history.store.commits(prefix).map_err(|fault| fault.at(&self.location))?;
        self.fetched = Some(history);
        match found.as_slice() {
            [] => Err(self.unknown()),
            [id] => Ok(*id),
            _ => Err(fault::ambiguous(&self.revision, &self.location)),
        }
    }

    /// Returns objects that include `id` and its files.
    fn objects_of(
        &mut self,
        id: ObjectId,
        report: &mut dyn FnMut(Progress),
    ) -> Result<FetchedObjects, FetchFailure> {
        let is_known = match self.fetched.take() {
            Some(fetched) if !fetched.commits_only => return Ok(fetched),
            searched => searched.is_some(),
        };
        let wanted = WantedObjects { ids: &[id], alone: true, commits_only: false };
        if let Some(fetched) = self.fetch(&wanted, "commit", report)? {
            return Ok(fetched);
        }
        // Either the server serves tips only, or there is no such commit. The history without files shows which.
        if !is_known {
            let history = self.fetch_history(true, "history", report)?;
            if history.store.kind(&id).is_none() {
                return Err(self.unknown());
            }
            if !history.commits_only {
                return Ok(history);
            }
        }
        self.fetch_history(false, "all", report)
    }

    fn unknown(&self) -> FetchFailure {
        fault::unknown(&self.revision, &self.location)
    }
}

impl Remote for Git {
    /// Accepts a full commit hash as it is, once the server has let us in. The transfer shows if there is such a
    /// commit.
    fn resolve(&mut self, report: &mut dyn FnMut(Progress)) -> Result<String, FetchFailure> {
        let revision = Revision::parse(&self.revision).ok_or_else(|| self.unknown())?;
        let wanted = revision.wanted_references();
        let references = if wanted.is_empty() {
            let connected = self.retrying(|git| Ok(git.connection().map(drop)?));
            connected.map(|()| Vec::new()).map_err(|error| error.at(&self.location))?
        } else {
            self.references(&wanted)?
        };
        let id = match revision.meaning(&references) {
            RevisionMeaning::Commit(id) => id,
            RevisionMeaning::Search(prefix) => self.search(prefix, report)?,
            RevisionMeaning::Unknown => return Err(self.unknown()),
        };
        self.found = Some(id);
        Ok(id.to_string())
    }

    fn transfer(&mut self, into: &Path, report: &mut dyn FnMut(Progress)) -> Result<Stats, FetchFailure> {
        self.begin = Instant::now();
        let id = self.found.ok_or_else(|| self.unknown())?;
        let fetched = self.objects_of(id, report)?;
        match fetched.store.kind(&id) {
            Some(Kind::Commit) => checkout::write(&fetched.store, &id, &self.location, into),
            Some(_) => Err(fault::no_commit(&self.revision, &self.location)),
            None => Err(Fault::Damaged(format!("commit {id} is not among it")).at(&self.location)),
        }
    }
}
