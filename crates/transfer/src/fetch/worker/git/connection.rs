//! A connection to a Git server: lists references and fetches packs of objects into a folder. Uses protocol version 2,
//! or 0 and 1 if the server supports no other.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::num::NonZeroU32;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use gix::ObjectId;
use gix::odb::pack::Bundle;
use gix::odb::pack::bundle::write;
use gix::progress::Discard;
use gix::protocol::fetch::{Arguments, Context, Negotiate, Options, Response, Shallow, Tags, negotiate};
use gix::protocol::handshake::Ref;
use gix::protocol::handshake::refs::from_v1_refs_received_as_part_of_handshake_and_capabilities;
use gix::protocol::ls_refs::RefPrefixes;
use gix::protocol::{Handshake, LsRefsCommand};
use gix_transport::client::blocking_io::http::Transport;
use gix_transport::client::blocking_io::{SetServiceResponse, Transport as _};
use gix_transport::{Protocol, Service, packetline};

use super::fault::Fault;
use super::http::{TransferState, Web};
use super::location::Location;
use super::store::{MAX_OBJECT_BYTES, Store};
use crate::fetch::order::{MAX_TREE_BYTES, Progress};
use step_runner_core::job::event::FetchFailure;
use step_runner_web::TransferRate;

/// Most bytes of a list of references, enough for some hundred thousand.
const MAX_LIST_BYTES: u64 = 64 << 20;

/// Most bytes of a pack. A larger one has a tree over its limit, or a history too long to search.
const MAX_PACK_BYTES: u64 = MAX_TREE_BYTES;

/// Agent name of this program in Git's protocol.
const AGENT: &str = concat!("git/step-runner-", env!("CARGO_PKG_VERSION"));

/// Never set: the daemon ends this process by a signal.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// An open connection, after the handshake.
pub(super) struct Connection {
    wire: Rc<TransferState>,
    transport: Transport<Web>,
    handshake: Handshake,
}

/// Objects to fetch.
pub(super) struct WantedObjects<'a> {
    /// These objects and all that they need.
    pub(super) ids: &'a [ObjectId],
    /// Fetch only these commits, not their ancestors.
    pub(super) alone: bool,
    /// Leave out files and folders if the server can.
    pub(super) commits_only: bool,
}

/// Result of a fetch.
pub(super) struct FetchedObjects {
    /// The objects.
    pub(super) store: Store,
    /// True if files and folders were left out.
    pub(super) commits_only: bool,
}

/// Reasons why there is no pack.
#[derive(Debug)]
pub(super) enum FetchError {
    /// The server does not serve these objects.
    Refused,
    /// Any other fault.
    Fault(Fault),
}

impl From<Fault> for FetchError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl FetchError {
    /// Converts it to the failure that the worker reports.
    pub(super) fn at(self, location: &Location) -> FetchFailure {
        let fault = match self {
            Self::Refused => Fault::Withheld,
            Self::Fault(fault) => fault,
        };
        fault.at(location)
    }
}

impl Connection {
    /// Connects to the server that `web` reaches.
    pub(super) fn open(web: Web, wire: Rc<TransferState>, url: &str) -> Result<Self, Fault> {
        wire.begin_list(MAX_LIST_BYTES);
        let url = gix::url::parse(url).map_err(|error| Fault::of_url(&error))?;
        let mut transport = Transport::new_http(web, url, Protocol::V2, false);
        let handshake = shake_hands(&mut transport, &wire)?;
        Ok(Self { wire, transport, handshake })
    }

    /// Lists the references whose names begin with one of `prefixes`, perhaps others too.
    pub(super) fn references(&mut self, prefixes: Vec<String>) -> Result<Vec<Ref>, Fault> {
        if let Some(references) = &self.handshake.refs {
            return Ok(references.clone());
        }
        self.wire.begin_list(MAX_LIST_BYTES);
        let mut wanted = RefPrefixes::new();
        wanted.extend(prefixes.into_iter().map(Into::into));
        LsRefsCommand::new(Some(wanted), &self.handshake.capabilities, ("agent", Some(AGENT.to_owned())))
            .invoke_blocking(&mut self.transport, &mut Discard, false)
            .map_err(|error| list_fault(&self.wire, &error))
    }

    /// Fetches into the new folder `into`. After an error the connection is unusable.
    pub(super) fn fetch(
        &mut self,
        wanted: &WantedObjects<'_>,
        into: &Path,
        report: &mut dyn FnMut(Progress),
    ) -> Result<FetchedObjects, FetchError> {
        self.wire.begin_pack(MAX_PACK_BYTES);
        let packs = into.join("pack");
        fs::create_dir_all(&packs).map_err(|error| FetchError::Fault(Fault::Storage(error.kind())))?;
        let shallow = match NonZeroU32::new(1).filter(|_| wanted.alone && self.can_be_shallow()) {
            Some(depth) => Shallow::DepthAtRemote(depth),
            None => Shallow::NoChange,
        };
        let mut negotiation = Negotiation { wanted, commits_only: false };
        let wire = Rc::clone(&self.wire);
        let mut begun = false;
        let fetched = gix::protocol::fetch(
            &mut negotiation,
            |pack, progress, interrupted| {
                // The library takes any answer for a pack. A real one begins with `P`.
                begun = pack.fill_buf().map_err(gix::Error::from_error)?.first() == Some(&b'P');
                let pace = TransferRate::default();
                let mut pack = BufReader::new(Counted { pack, wire: &wire, pace, bytes: 0, report });
                let options = write::Options {
                    // Each further thread would hold objects of its own in memory.
                    thread_limit: Some(1),
                    alloc_limit_bytes: Some(MAX_OBJECT_BYTES),
                    ..Default::default()
                };
                let none = None::<gix::objs::find::Never>;
                Bundle::write_to_directory(
                    &mut pack,
                    Some(&packs),
                    progress,
                    interrupted,
                    none,
                    gix::hash::Kind::Sha1,
                    options,
                )?;
                Ok(true)
            },
            Discard,
            &INTERRUPTED,
            Context {
                handshake: &mut self.handshake,
                transport: &mut self.transport,
                user_agent: ("agent", Some(AGENT.to_owned())),
                trace_packetlines: false,
            },
            Options {
                shallow_file: into.join("shallow"),
                shallow: &shallow,
                tags: Tags::None,
                reject_shallow_remote: false,
            },
        );
        match fetched {
            Ok(Some(_)) => {}
            Ok(None) => return Err(FetchError::Refused),
            Err(error) => {
                return Err(match known_fault(&wire, &error) {
                    Some(fault) => FetchError::Fault(fault),
                    None if !begun => FetchError::Refused,
                    None if is_early_end(&error) => FetchError::Fault(Fault::CUT),
                    None => FetchError::Fault(Fault::damaged(&error)),
                });
            }
        }
        let store = Store::open(into).map_err(|error| FetchError::Fault(Fault::Storage(error.kind())))?;
        Ok(FetchedObjects { store, commits_only: negotiation.commits_only })
    }

    /// True if the server can leave out the history.
    fn can_be_shallow(&self) -> bool {
        let capabilities = &self.handshake.capabilities;
        match self.handshake.server_protocol_version {
            Protocol::V2 => {
                capabilities.capability("fetch").and_then(|fetch| fetch.supports("shallow")).unwrap_or(false)
            }
            Protocol::V0 | Protocol::V1 => capabilities.contains("shallow"),
        }
    }
}

/// Reads the server's greeting. The library's own function for this handles credentials, which is [`Web`]'s task, and
/// parses hashes before their length is known.
fn shake_hands(transport: &mut Transport<Web>, wire: &TransferState) -> Result<Handshake, Fault> {
    let fault = |error: gix::Error| list_fault(wire, &error);
    let SetServiceResponse { actual_protocol, capabilities, refs } = transport
        .handshake(Service::UploadPack, &[])
        .map_err(|error| fault(gix::Error::from_error(error)))?;
    let format = capabilities.capability("object-format");
    if format.and_then(|format| format.value().map(|value| value != "sha1")).unwrap_or(false) {
        return Err(Fault::Sha256);
    }
    let listed = refs.map(|mut lines| {
        from_v1_refs_received_as_part_of_handshake_and_capabilities(&mut lines, capabilities.iter())
    });
    let (refs, v1_shallow_updates) = listed.transpose().map_err(fault)?.unzip();
    Ok(Handshake { server_protocol_version: actual_protocol, refs, v1_shallow_updates, capabilities })
}

/// Translates an error that came while a list was read.
fn list_fault(wire: &TransferState, error: &gix::Error) -> Fault {
    let early = is_early_end(error).then_some(Fault::CUT);
    known_fault(wire, error).or_else(|| refusal(error)).or(early).unwrap_or(Fault::NotGit)
}

/// Translates a line `ERR REASON`, with which a server refuses in the middle of the protocol.
fn refusal(error: &gix::Error) -> Option<Fault> {
    let line = error.downcast_any_ref::<io::Error>()?.get_ref()?.downcast_ref::<packetline::read::Error>()?;
    Some(Fault::said(line.message.as_ref()))
}

/// Translates an error of Git's protocol if `wire` noted its cause or it is a disk's error.
fn known_fault(wire: &TransferState, error: &gix::Error) -> Option<Fault> {
    wire.fault().or_else(|| match error.downcast_any_ref::<io::Error>()?.kind() {
        kind @ (io::ErrorKind::StorageFull
        | io::ErrorKind::QuotaExceeded
        | io::ErrorKind::FileTooLarge
        | io::ErrorKind::ReadOnlyFilesystem
        | io::ErrorKind::PermissionDenied) => Some(Fault::Storage(kind)),
        _ => None,
    })
}

fn is_early_end(error: &gix::Error) -> bool {
    error.downcast_any_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::UnexpectedEof)
}

/// Sends the wanted objects. There is nothing to negotiate, because the store is empty.
struct Negotiation<'a> {
    wanted: &'a WantedObjects<'a>,
    /// True if the server will leave out files and folders.
    commits_only: bool,
}

impl Negotiate for Negotiation<'_> {
    fn mark_complete_and_common_ref(&mut self) -> gix::Result<negotiate::Action> {
        Ok(negotiate::Action::MustNegotiate { remote_ref_target_known: Vec::new() })
    }

    fn add_wants(&mut self, arguments: &mut Arguments, _known: &[bool]) -> bool {
        self.commits_only = self.wanted.commits_only && arguments.can_use_filter();
        for id in self.wanted.ids {
            arguments.want(id);
        }
        if self.commits_only {
            arguments.filter("tree:0");
        }
        !self.wanted.ids.is_empty()
    }

    fn one_round(
        &mut self,
        _state: &mut negotiate::one_round::State,
        _arguments: &mut Arguments,
        _previous: Option<&Response>,
    ) -> gix::Result<(negotiate::Round, bool)> {
        let round = negotiate::Round {
            haves_sent: 0,
            in_vain: 0,
            haves_to_send: 0,
            previous_response_had_at_least_one_in_common: false,
        };
        Ok((round, true))
    }
}

/// Reader of a pack. Reports progress, and fails if the pack comes too slowly.
struct Counted<'a> {
    pack: &'a mut dyn BufRead,
    wire: &'a TransferState,
    pace: TransferRate,
    bytes: u64,
    report: &'a mut dyn FnMut(Progress),
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let begin = Instant::now();
        let read = self.pack.read(buffer)?;
        self.wire.check_pace(&mut self.pace, begin.elapsed(), read)?;
        self.bytes += read as u64;
        (self.report)(Progress { bytes: self.bytes, total: None });
        Ok(read)
    }
}
