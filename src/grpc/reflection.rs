//! Server reflection, v1 and v1alpha: describes all services under all names that answer. The descriptions are made at the
//! first call: few daemons are ever asked, and making them is a tenth of a start.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use http::{Request, Response};
use prost::Message;
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_reflection::server::{Builder, Error};

use super::intake::{Intake, Room};
use super::names::{NAMES, REFLECTION, REFLECTION_ALPHA};
use crate::pb;

/// An additional name of a service, with the file that describes the service under it.
struct Alias {
    /// Name of the made-up file.
    file: &'static str,
    package: &'static str,
    /// File that defines the service.
    of: &'static str,
}

const ALIASES: [Alias; 2] = [
    Alias { file: "aliases/bare.proto", package: "", of: "steprunner/v1/step_runner.proto" },
    Alias { file: "aliases/step.proto", package: "step", of: "compatible/step_runner.proto" },
];

/// Both versions of the reflection service, made at the first call of either.
type Descriptions = Arc<OnceLock<Result<Routes, Error>>>;

/// One version of the reflection service, under the name at this index of [`NAMES`].
#[derive(Clone)]
struct OnFirstCall<const NAME: usize>(Descriptions);

impl<const NAME: usize> NamedService for OnFirstCall<NAME> {
    const NAME: &'static str = NAMES[NAME];
}

impl<const NAME: usize> tower::Service<Request<Body>> for OnFirstCall<NAME> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match self.0.get_or_init(describe) {
            Ok(routes) => Box::pin(tower::Service::call(&mut routes.clone(), request)),
            // Believed unreachable: the descriptions are compiled in, and a test makes them.
            Err(error) => {
                let status = Status::internal(format!("the services cannot be described: {error}"));
                Box::pin(std::future::ready(Ok(status.into_http())))
            }
        }
    }
}

/// Adds both versions of the reflection service to `routes`. Their large requests share `room`.
pub(super) fn add(routes: Routes, room: &Room) -> Routes {
    let descriptions = Descriptions::default();
    routes
        .add_service(Intake::of_streams(OnFirstCall::<REFLECTION>(Arc::clone(&descriptions)), room))
        .add_service(Intake::of_streams(OnFirstCall::<REFLECTION_ALPHA>(descriptions), room))
}

/// Makes both versions of the reflection service.
fn describe() -> Result<Routes, Error> {
    let definitions = FileDescriptorSet::decode(pb::DEFINITIONS)?;
    let aliases =
        FileDescriptorSet { file: ALIASES.iter().filter_map(|alias| alias.file(&definitions)).collect() };
    let builder = || {
        Builder::configure()
            .register_encoded_file_descriptor_set(pb::DEFINITIONS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // Tools ask reflection for the types of error details too.
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET)
            .register_file_descriptor_set(aliases.clone())
    };
    Ok(Routes::new(builder().build_v1()?).add_service(builder().build_v1alpha()?))
}

impl Alias {
    /// Makes a file that defines the same service again. Its messages stay in the original file.
    fn file(&self, definitions: &FileDescriptorSet) -> Option<FileDescriptorProto> {
        let original = definitions.file.iter().find(|file| file.name() == self.of)?;
        let dependency = original.dependency.iter().cloned().chain([self.of.to_owned()]).collect();
        Some(FileDescriptorProto {
            name: Some(self.file.to_owned()),
            package: Some(self.package.to_owned()).filter(|package| !package.is_empty()),
            dependency,
            service: original.service.clone(),
            syntax: original.syntax.clone(),
            ..FileDescriptorProto::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alias_is_described_by_the_service_it_stands_for() {
        let definitions = FileDescriptorSet::decode(pb::DEFINITIONS).unwrap();
        for alias in &ALIASES {
            let file = alias.file(&definitions).unwrap();
            let [service] = file.service.as_slice() else { panic!("{file:?}") };
            assert_eq!(service.name(), "StepRunner");
            assert!(service.method.iter().all(|method| method.input_type().starts_with('.')), "{service:?}");
        }
        assert!(describe().is_ok());
    }
}
