//! Code generated from the service definitions under `proto/`, and its codec. Used by `grpc/` and `client/` only.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated code; its messages are documented in the definition"
)]

pub mod compatible;

mod fields;

use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use prost::{DecodeError, Message, Name};
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf};
use tonic_prost::ProstEncoder;

/// The canonical service `steprunner.v1` (service.md §2).
pub mod v1 {
    tonic::include_proto!("steprunner.v1");
}

/// The first draft `steprunner.v0` (service.md §5).
pub mod v0 {
    tonic::include_proto!("steprunner.v0");
}

/// A message that comes from the other side.
pub trait Incoming: Send + Sized + 'static {
    /// Full name of its definition.
    fn name() -> String;

    /// Reads one.
    fn read(bytes: Bytes) -> Result<Self, DecodeError>;
}

impl<M: Name + Default + 'static> Incoming for M {
    fn name() -> String {
        M::full_name()
    }

    fn read(bytes: Bytes) -> Result<Self, DecodeError> {
        Self::decode(bytes)
    }
}

/// As the library's codec, but a message that cannot be decoded is the sender's mistake: `INVALID_ARGUMENT`
/// `malformed_request`, not `INTERNAL` (service.md §3.6). Fields that are not known are told to the operator.
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + Send + 'static, U: Incoming> tonic::codec::Codec for Codec<T, U> {
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

impl<U: Incoming> tonic::codec::Decoder for Decoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let bytes = from.copy_to_bytes(from.remaining());
        fields::report_unknown(U::name, &bytes);
        U::read(bytes).map(Some).map_err(|_| {
            Status::invalid_argument(
                "malformed_request: the message is no valid protobuf message of its type",
            )
        })
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::default()
    }
}
