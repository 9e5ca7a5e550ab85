//! Puts the services together: what answers on the socket.

use std::convert::Infallible;
use std::task::{Context, Poll};

use http::{Request, Response};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::calls::Calls;
use super::intake::Intake;
use super::{compatible, draft, v1};
use crate::actors::handle::JobsHandle;
use crate::model::{Reason, Refusal};
use crate::pb::compatible::service::step_runner_server::StepRunnerServer as CompatibleServer;
use crate::pb::v0::step_runner_server::StepRunnerServer as DraftServer;
use crate::pb::v1::step_runner_server::StepRunnerServer;

/// Largest request in bytes (service.md §1.1).
pub(super) const MAX_REQUEST: usize = 32 << 20;

/// Largest response in bytes: above every limit of ours, below what clients take by default is seen to where messages
/// are made (service.md §1.1).
const MAX_RESPONSE: usize = 64 << 20;

/// Names that are answered under.
const NAMES: [&str; 6] = [
    "steprunner.v1.StepRunner",
    // The published text of the canonical service names no package.
    "StepRunner",
    "proto.StepRunner",
    // Some clients of the compatible service may have another name for it (service.md §4.2).
    "step.StepRunner",
    "steprunner.v0.StepRunner",
    "grpc.health.v1.Health",
];
const CANONICAL: usize = 0;
const BARE: usize = 1;
const COMPATIBLE: usize = 2;
const COMPATIBLE_TOO: usize = 3;
const DRAFT: usize = 4;
const HEALTH: usize = 5;

/// What answers, and how its health is told.
pub struct Services {
    /// All services.
    pub routes: Routes,
    /// Answers everything with `PERMISSION_DENIED`.
    pub refusing: Routes,
    health: HealthReporter,
    end_streams: CancellationToken,
}

impl Services {
    /// The services of `jobs`.
    pub async fn new(jobs: JobsHandle) -> Self {
        let (health, health_service) = tonic_health::server::health_reporter();
        let end_streams = CancellationToken::new();
        let calls = Calls::new(jobs, end_streams.clone());
        let canonical = StepRunnerServer::new(v1::Service(calls.clone()))
            .max_decoding_message_size(MAX_REQUEST)
            .max_encoding_message_size(MAX_RESPONSE);
        let compatible = CompatibleServer::new(compatible::Service(calls.clone()))
            .max_decoding_message_size(MAX_REQUEST)
            .max_encoding_message_size(MAX_RESPONSE);
        let draft = DraftServer::new(draft::Service(calls))
            .max_decoding_message_size(MAX_REQUEST)
            .max_encoding_message_size(MAX_RESPONSE);
        let canonical = Intake::new(canonical);
        let compatible = canonical.beside(compatible);
        let draft = canonical.beside(draft);
        let routes = Routes::new(Renamed::<_, BARE>(canonical.clone()))
            .add_service(canonical)
            .add_service(Renamed::<_, COMPATIBLE_TOO>(compatible.clone()))
            .add_service(compatible)
            .add_service(draft)
            .add_service(health_service);
        let services = Self { routes, refusing: refusing(), health, end_streams };
        services.serving(ServingStatus::Serving).await;
        services
    }

    /// Tells clients that no new job is taken.
    pub async fn stopping(&self) {
        self.serving(ServingStatus::NotServing).await;
    }

    /// Ends the streams that are still open with `UNAVAILABLE` (service.md §3.6).
    pub fn end_streams(&self) {
        self.end_streams.cancel();
    }

    async fn serving(&self, status: ServingStatus) {
        for name in NAMES.into_iter().filter(|name| *name != NAMES[HEALTH]).chain([""]) {
            self.health.set_service_status(name, status).await;
        }
    }
}

/// `PERMISSION_DENIED` under every name.
fn refusing() -> Routes {
    Routes::new(Refuse::<CANONICAL>)
        .add_service(Refuse::<BARE>)
        .add_service(Refuse::<COMPATIBLE>)
        .add_service(Refuse::<COMPATIBLE_TOO>)
        .add_service(Refuse::<DRAFT>)
        .add_service(Refuse::<HEALTH>)
}

/// A service under the name with this number.
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

/// The answer to users who may not call, under the name with this number.
#[derive(Clone)]
struct Refuse<const NAME: usize>;

impl<const NAME: usize> NamedService for Refuse<NAME> {
    const NAME: &'static str = NAMES[NAME];
}

impl<const NAME: usize> tower::Service<Request<Body>> for Refuse<NAME> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        let text = "this user may not call: the daemon's own user, root and those of allow_uids may";
        let refusal = Refusal::new(Reason::Forbidden, text);
        std::future::ready(Ok(super::status::status(&refusal).into_http()))
    }
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn who_may_not_call_is_told_so_under_every_name() {
        for name in NAMES {
            let path = format!("/{name}/Status");
            let request = Request::post(&path).body(Body::empty()).unwrap();
            let answer = refusing().oneshot(request).await.unwrap();
            let code = answer.headers().get("grpc-status").and_then(|value| value.to_str().ok());
            assert_eq!(code, Some("7"), "{path}");
        }
    }
}
