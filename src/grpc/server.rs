//! Assembles the services that answer on the socket.

use std::convert::Infallible;
use std::task::{Context, Poll};

use http::{Request, Response};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::calls::JobCalls;
use super::intake::{Intake, Room};
use super::peer::CallerRights;
use super::sizes::MAX_REQUEST;
use super::{compatible, draft, reflection, v1};
use crate::actors::handle::JobsHandle;
use crate::config::Reflection;
use crate::model::{Reason, Refusal};
use crate::pb::compatible::service::step_runner_server::StepRunnerServer as CompatibleServer;
use crate::pb::v0::step_runner_server::StepRunnerServer as DraftServer;
use crate::pb::v1::step_runner_server::StepRunnerServer;

/// Maximum size of a response in bytes, above every limit of ours. The code that makes messages keeps them below the
/// clients' default limit (service.md §1.1).
const MAX_RESPONSE: usize = 64 << 20;

/// Names of all services.
pub(super) const NAMES: [&str; 8] = [
    "steprunner.v1.StepRunner",
    // The published definition of the canonical service has no package.
    "StepRunner",
    "proto.StepRunner",
    // Some clients of the compatible service may use another name for it (service.md §4.2).
    "step.StepRunner",
    "steprunner.v0.StepRunner",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
];
const CANONICAL: usize = 0;
const BARE: usize = 1;
const COMPATIBLE: usize = 2;
const COMPATIBLE_TOO: usize = 3;
const DRAFT: usize = 4;
const HEALTH: usize = 5;
pub(super) const REFLECTION: usize = 6;
pub(super) const REFLECTION_ALPHA: usize = 7;

/// Messages of `PERMISSION_DENIED`.
const NO_CALLER: &str = "this user may not call: the daemon's own user, root and those of allow_uids may";
const NO_READER: &str = "reflection is for the daemon's own user and root: see setting reflection";

/// The services for each kind of caller. Clones share them.
#[derive(Clone)]
pub(crate) struct ServicesByRights {
    owner: Routes,
    allowed: Routes,
    refused: Routes,
}

impl ServicesByRights {
    /// Combines `routes` with reflection as the setting says. Refused callers get `PERMISSION_DENIED` under every name.
    pub(super) fn new(routes: Routes, reflection: Reflection, room: &Room) -> Self {
        let owner = match reflection {
            Reflection::Off => routes.clone(),
            Reflection::Owner | Reflection::On => reflection::add(routes.clone(), room),
        };
        let allowed =
            match reflection {
                Reflection::Off | Reflection::On => owner.clone(),
                Reflection::Owner => routes
                    .add_service(Refuse::<REFLECTION>(NO_READER))
                    .add_service(Refuse::<REFLECTION_ALPHA>(NO_READER)),
            };
        Self { owner, allowed, refused: refused() }
    }

    /// Returns the services for callers with these rights.
    pub(crate) fn of(&self, rights: CallerRights) -> Routes {
        match rights {
            CallerRights::Owner => self.owner.clone(),
            CallerRights::Allowed => self.allowed.clone(),
            CallerRights::Refused => self.refused.clone(),
        }
    }
}

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

/// Makes services that answer `PERMISSION_DENIED` under every name.
fn refused() -> Routes {
    Routes::new(Refuse::<CANONICAL>(NO_CALLER))
        .add_service(Refuse::<BARE>(NO_CALLER))
        .add_service(Refuse::<COMPATIBLE>(NO_CALLER))
        .add_service(Refuse::<COMPATIBLE_TOO>(NO_CALLER))
        .add_service(Refuse::<DRAFT>(NO_CALLER))
        .add_service(Refuse::<HEALTH>(NO_CALLER))
        .add_service(Refuse::<REFLECTION>(NO_CALLER))
        .add_service(Refuse::<REFLECTION_ALPHA>(NO_CALLER))
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

/// Answers `PERMISSION_DENIED` with this text, under the name at this index of [`NAMES`].
#[derive(Clone)]
struct Refuse<const NAME: usize>(&'static str);

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
        let refusal = Refusal::new(Reason::Forbidden, self.0);
        std::future::ready(Ok(super::status::status(&refusal).into_http()))
    }
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt;

    use super::*;

    /// Returns the code of the answer to a caller who asks for reflection; `None` if the call is let through.
    async fn asked(setting: Reflection, rights: CallerRights, version: usize) -> Option<String> {
        let answers = ServicesByRights::new(Routes::default(), setting, &Room::default());
        let path = format!("/{}/ServerReflectionInfo", NAMES[version]);
        let request = Request::post(&path).header("content-type", "application/grpc");
        let answer = answers.of(rights).oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        Some(answer.headers().get("grpc-status")?.to_str().unwrap().to_owned())
    }

    #[tokio::test]
    async fn reflection_answers_whom_the_setting_names() {
        const FORBIDDEN: Option<&str> = Some("7");
        const UNIMPLEMENTED: Option<&str> = Some("12");
        for version in [REFLECTION, REFLECTION_ALPHA] {
            for (setting, owner, allowed) in [
                (Reflection::Owner, None, FORBIDDEN),
                (Reflection::On, None, None),
                (Reflection::Off, UNIMPLEMENTED, UNIMPLEMENTED),
            ] {
                assert_eq!(
                    asked(setting, CallerRights::Owner, version).await.as_deref(),
                    owner,
                    "{setting:?}"
                );
                assert_eq!(
                    asked(setting, CallerRights::Allowed, version).await.as_deref(),
                    allowed,
                    "{setting:?}"
                );
                assert_eq!(asked(setting, CallerRights::Refused, version).await.as_deref(), FORBIDDEN);
            }
        }
    }

    #[tokio::test]
    async fn who_may_not_call_is_told_so_under_every_name() {
        for name in NAMES {
            let path = format!("/{name}/Status");
            let request = Request::post(&path).body(Body::empty()).unwrap();
            let answer = refused().oneshot(request).await.unwrap();
            let code = answer.headers().get("grpc-status").and_then(|value| value.to_str().ok());
            assert_eq!(code, Some("7"), "{path}");
        }
    }
}
