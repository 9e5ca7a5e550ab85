//! Assembles the services that answer on the socket.

use std::task::{Context, Poll};

use http::Request;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::by_rights::ServicesByRights;
use super::calls::JobCalls;
use super::intake::{Intake, Room};
use super::names::{BARE, COMPATIBLE_TOO, HEALTH, NAMES};
use super::sizes::MAX_REQUEST;
use super::{compatible, draft, v1};
use crate::actors::handle::JobsHandle;
use crate::config::Reflection;
use crate::pb::compatible::service::step_runner_server::StepRunnerServer as CompatibleServer;
use crate::pb::v0::step_runner_server::StepRunnerServer as DraftServer;
use crate::pb::v1::step_runner_server::StepRunnerServer;

/// Maximum size of a response in bytes, above every limit of ours. The code that makes messages keeps them below the
/// clients' default limit (service.md §1.1).
const MAX_RESPONSE: usize = 64 << 20;

/// All services and their health.
pub(crate) struct Services {
    /// All services.
    pub(crate) answers: ServicesByRights,
    health: HealthReporter,
    end_streams: CancellationToken,
}

impl Services {
    /// Makes the services of `jobs`.
    pub(crate) async fn new(jobs: JobsHandle, reflection: Reflection) -> Self {
        let (health, health_service) = tonic_health::server::health_reporter();
        let end_streams = CancellationToken::new();
        let calls = JobCalls::new(jobs, end_streams.clone());
        let canonical = StepRunnerServer::new(v1::Service(calls.clone()))
            .max_decoding_message_size(MAX_REQUEST)
            .max_encoding_message_size(MAX_RESPONSE);
        let compatible = CompatibleServer::new(compatible::Service(calls.clone()))
            .max_decoding_message_size(MAX_REQUEST)
            .max_encoding_message_size(MAX_RESPONSE);
        let draft = DraftServer::new(draft::Service(calls))
            .max_decoding_message_size(MAX_REQUEST)
            .max_encoding_message_size(MAX_RESPONSE);
        let room = Room::default();
        let canonical = Intake::new(canonical, &room);
        let compatible = Intake::new(compatible, &room);
        let draft = Intake::new(draft, &room);
        let routes = Routes::new(Renamed::<_, BARE>(canonical.clone()))
            .add_service(canonical)
            .add_service(Renamed::<_, COMPATIBLE_TOO>(compatible.clone()))
            .add_service(compatible)
            .add_service(draft)
            .add_service(Intake::new(health_service, &room));
        let answers = ServicesByRights::new(routes, reflection, &room);
        let services = Self { answers, health, end_streams };
        services.serving(ServingStatus::Serving).await;
        services
    }

    /// Reports to health checks that the daemon takes no new jobs.
    pub(crate) async fn stopping(&self) {
        self.serving(ServingStatus::NotServing).await;
    }

    /// Ends the open streams with `UNAVAILABLE` (service.md §3.6).
    pub(crate) fn end_streams(&self) {
        self.end_streams.cancel();
    }

    async fn serving(&self, status: ServingStatus) {
        for name in NAMES.into_iter().take(HEALTH).chain([""]) {
            self.health.set_service_status(name, status).await;
        }
    }
}

/// A service under the name at this index of [`NAMES`].
#[derive(Clone)]
struct Renamed<S, const NAME: usize>(S);

impl<S, const NAME: usize> NamedService for Renamed<S, NAME> {
    const NAME: &'static str = NAMES[NAME];
}

impl<S, const NAME: usize> tower::Service<Request<Body>> for Renamed<S, NAME>
where
    S: tower::Service<Request<Body>> + NamedService,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default();
        if let Ok(uri) = format!("/{}/{method}", S::NAME).parse() {
            *request.uri_mut() = uri;
        }
        self.0.call(request)
    }
}
