//! A double of a router in front of the cells of a GitLab instance: stateless, streaming, plain HTTP.
//!
//! It reads neither bodies nor tickets, remembers nothing between requests, and changes no token. The cell of a token is
//! preferred over that of the path. A cell that is down gets no substitute: the client sees 502 or 503.

#![allow(dead_code, reason = "each program uses a part")]
#![allow(clippy::allow_attributes, reason = "as above: `expect` would fail in a program that uses all")]
#![allow(clippy::unwrap_used, reason = "for tests only")]

mod head;
pub(crate) mod options;
mod relay;
pub(crate) mod route;

use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Where a cell is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Host and port.
    host: String,
    /// Path before that of each request, without `/` at its end.
    path: String,
}

impl Target {
    /// Reads the address of a cell.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let Some(rest) = url.strip_prefix("http://") else {
            let why = if url.starts_with("https://") {
                "this router speaks no TLS"
            } else {
                "not http://HOST:PORT"
            };
            return Err(format!("address of a cell {url}: {why}"));
        };
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.is_empty() || host.starts_with(':') || rest.contains(['?', '#', '@', ' ']) {
            return Err(format!("address of a cell {url}: not http://HOST:PORT"));
        }
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let host = if has_port { host.to_owned() } else { format!("{host}:80") };
        let path = path.trim_end_matches('/');
        let separator = if path.is_empty() { "" } else { "/" };
        Ok(Self { host, path: format!("{separator}{path}") })
    }
}

/// Rules, and the address of each cell.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    pub(crate) rules: route::Rules,
    pub(crate) targets: BTreeMap<u64, Target>,
}

/// A request that was routed. Nothing of its headers is here.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) cell: u64,
    /// Method and path.
    pub(crate) request: String,
    /// Status of the answer; 0 for a note alone.
    pub(crate) status: u16,
    pub(crate) note: Option<String>,
}

struct Shared {
    routes: Routes,
    report: Box<dyn Fn(Exchange) + Send + Sync>,
    open: Mutex<Open>,
}

/// Connections that end with the router.
#[derive(Default)]
struct Open {
    is_over: bool,
    made: u64,
    streams: BTreeMap<u64, TcpStream>,
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a connection with the router, while the returned value is there.
    fn keep(&self, stream: &TcpStream) -> Kept<'_> {
        let mut open = self.open();
        open.made += 1;
        let number = open.made;
        if open.is_over {
            stream.shutdown(Shutdown::Both).ok();
        }
        open.streams.extend(stream.try_clone().ok().map(|stream| (number, stream)));
        Kept { shared: self, number }
    }
}

struct Kept<'s> {
    shared: &'s Shared,
    number: u64,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.shared.open().streams.remove(&self.number);
    }
}

/// A running router. Dropped, it ends as a killed process does: every connection is cut, new ones are refused.
pub(crate) struct CellRouter {
    shared: Arc<Shared>,
    address: SocketAddr,
    accepting: Option<JoinHandle<()>>,
}

impl CellRouter {
    /// Starts a router that accepts at `listener`. `report` hears of every request.
    pub(crate) fn start(
        listener: TcpListener,
        routes: Routes,
        report: impl Fn(Exchange) + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { routes, report: Box::new(report), open: Mutex::default() });
        let accepting = Arc::clone(&shared);
        let accepting = std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accepting.open().is_over {
                    return;
                }
                let shared = Arc::clone(&accepting);
                std::thread::spawn(move || {
                    let _open = shared.keep(&client);
                    relay::serve(&shared, &client);
                });
            }
        });
        Self { shared, address, accepting: Some(accepting) }
    }

    /// Returns the address for clients.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Serves until the process ends.
    pub(crate) fn wait(mut self) {
        self.accepting.take().map(JoinHandle::join);
    }
}

impl Drop for CellRouter {
    fn drop(&mut self) {
        {
            let mut open = self.shared.open();
            open.is_over = true;
            for stream in open.streams.values() {
                stream.shutdown(Shutdown::Both).ok();
            }
        }
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
        self.accepting.take().map(JoinHandle::join);
    }
}
