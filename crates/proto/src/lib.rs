//! Code generated from the service definitions under `proto/`, and its codec.
//!
//! Owns the messages and calls on the wire, the details of a refusal, and the limits of decoding. `grpc/` and `client/`
//! translate between these messages and the project's own types; no other module names one. The crate may use only
//! `model` of the project, for errors. It opens no connection.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated code; its messages are documented in the definition"
)]

pub mod compatible;
pub mod details;

mod fields;

use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use prost::{DecodeError, Message, Name};
use tonic::codec::{BufferSettings, DecodeBuf};
use tonic::{Code, Status};
use tonic_prost::ProstEncoder;

use self::details::Details;

/// Definitions of all services, an encoded `FileDescriptorSet`.
pub const DEFINITIONS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/definitions.bin"));

/// The canonical service `steprunner.v1` (service.md §2).
pub mod v1 {
    tonic::include_proto!("steprunner.v1");
}

/// The first draft `steprunner.v0` (service.md §5).
pub mod v0 {
    tonic::include_proto!("steprunner.v0");
}

/// A message received from the peer.
pub trait Decodable: Send + Sized + 'static {
    /// Returns the full name of its definition.
    fn name() -> String;

    /// Decodes one message.
    fn read(bytes: Bytes) -> Result<Self, DecodeError>;
}

impl<M: Name + Default + 'static> Decodable for M {
    fn name() -> String {
        M::full_name()
    }

    fn read(bytes: Bytes) -> Result<Self, DecodeError> {
        Self::decode(bytes)
    }
}

/// The library's codec, except that a message that cannot be decoded is the sender's error: `INVALID_ARGUMENT`
/// `malformed_request`, not `INTERNAL` (service.md §3.6). Also logs unknown fields for the operator.
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + Send + 'static, U: Decodable> tonic::codec::Codec for Codec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = Decoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        Decoder(PhantomData)
    }
}

/// See [`Codec`].
pub struct Decoder<U>(PhantomData<U>);

impl<U: Decodable> tonic::codec::Decoder for Decoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let bytes = from.copy_to_bytes(from.remaining());
        if fields::are_too_many(U::name, &bytes) {
            let most = fields::MAX_FIELDS;
            let text = format!("the message has more than {most} fields: hand large values over in files");
            return Err(details::status(Code::InvalidArgument, "too_large", &text, Details::default()));
        }
        fields::report_unknown(U::name, &bytes);
        U::read(bytes).map(Some).map_err(|_| {
            details::status(
                Code::InvalidArgument,
                "malformed_request",
                "the message is no valid protobuf message of its type",
                Details::default(),
            )
        })
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::default()
    }
}

/// Removes the fields that GitLab's step runner does not have, from a result and from all results below it.
pub fn without_facts(mut result: v1::StepResult) -> v1::StepResult {
    let sub_step_results = std::mem::take(&mut result.sub_step_results);
    v1::StepResult {
        start_time: None,
        end_time: None,
        usage: None,
        number: 0,
        total: 0,
        steps: None,
        place: String::new(),
        log_start: None,
        log_end: None,
        outcome: 0,
        reason: String::new(),
        error_class: String::new(),
        attempts: Vec::new(),
        sub_step_results: sub_step_results.into_iter().map(without_facts).collect(),
        ..result
    }
}
