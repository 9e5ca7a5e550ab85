//! The services that a caller gets, by the rights of its user (service.md §1).

use std::convert::Infallible;
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;

use super::intake::Room;
use super::names::{
    BARE, CANONICAL, COMPATIBLE, COMPATIBLE_TOO, DRAFT, HEALTH, NAMES, REFLECTION, REFLECTION_ALPHA,
};
use super::peer::CallerRights;
use super::{reflection, status};
use crate::config::Reflection;
use crate::model::{Reason, Refusal};

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
        std::future::ready(Ok(status::status(&refusal).into_http()))
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
