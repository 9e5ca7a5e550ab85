//! The names under which services answer.

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
pub(super) const CANONICAL: usize = 0;
pub(super) const BARE: usize = 1;
pub(super) const COMPATIBLE: usize = 2;
pub(super) const COMPATIBLE_TOO: usize = 3;
pub(super) const DRAFT: usize = 4;
pub(super) const HEALTH: usize = 5;
pub(super) const REFLECTION: usize = 6;
pub(super) const REFLECTION_ALPHA: usize = 7;
