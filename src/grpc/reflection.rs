//! Server reflection, v1 and v1alpha: describes all services under all names that answer.

use prost::Message;
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use tonic::service::Routes;
use tonic_reflection::server::{Builder, Error};

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

/// Adds both versions of the reflection service to `routes`.
pub(super) fn add(routes: Routes) -> Result<Routes, Error> {
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
    Ok(routes.add_service(builder().build_v1()?).add_service(builder().build_v1alpha()?))
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
        assert!(add(Routes::default()).is_ok());
    }
}
