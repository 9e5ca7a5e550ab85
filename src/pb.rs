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

use std::marker::PhantomData;

use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf};
use tonic_prost::{ProstDecoder, ProstEncoder};

/// The canonical service `steprunner.v1` (service.md §2).
pub mod v1 {
    tonic::include_proto!("steprunner.v1");
}

/// The first draft `steprunner.v0` (service.md §5).
pub mod v0 {
    tonic::include_proto!("steprunner.v0");
}

/// As the library's codec, but a message that cannot be decoded is the sender's mistake: `INVALID_ARGUMENT`
/// `malformed_request`, not `INTERNAL` (service.md §3.6).
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: prost::Message + Send + 'static,
    U: prost::Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = Decoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        Decoder(ProstDecoder::new(BufferSettings::default()))
    }
}

/// See [`Codec`].
pub struct Decoder<U>(ProstDecoder<U>);

impl<U: prost::Message + Default> tonic::codec::Decoder for Decoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        self.0.decode(from).map_err(|_| malformed())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::default()
    }
}

fn malformed() -> Status {
    Status::invalid_argument("malformed_request: the message is no valid protobuf message of its type")
}
