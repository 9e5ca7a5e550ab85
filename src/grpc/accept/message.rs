//! Headers of a status that every client library reads alike.

use http::header::{HeaderMap, HeaderValue};

/// Header of a status's message, in headers and trailers.
const MESSAGE: &str = "grpc-message";

/// Unescapes `?` and `#` in the message. The library escapes them although gRPC does not ask for it, and clients that decode
/// with `decodeURI`, such as grpc-js, leave these two escaped.
pub(super) fn unescape_message(headers: &mut HeaderMap) {
    let Some(message) = headers.get_mut(MESSAGE) else { return };
    if let Some(Ok(unescaped)) = unescaped(message.as_bytes()).map(|bytes| HeaderValue::from_bytes(&bytes)) {
        *message = unescaped;
    }
}

/// Returns `None` if nothing is to change. A percent sign of the text itself is `%25` and stays.
fn unescaped(message: &[u8]) -> Option<Vec<u8>> {
    let is_needed =
        memchr::memmem::find(message, b"%3F").is_some() || memchr::memmem::find(message, b"%23").is_some();
    if !is_needed {
        return None;
    }
    let mut bytes = Vec::with_capacity(message.len());
    let mut rest = message;
    while let Some((&first, after)) = rest.split_first() {
        let (byte, after) = match rest {
            [b'%', b'3', b'F', after @ ..] => (b'?', after),
            [b'%', b'2', b'3', after @ ..] => (b'#', after),
            _ => (first, after),
        };
        bytes.push(byte);
        rest = after;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tonic::Status;

    use super::*;

    proptest! {
        #[test]
        fn a_message_is_the_same_for_a_client_that_decodes_it(text in "[?#%23F \"éa]{0,20}") {
            let mut headers = HeaderMap::new();
            Status::unknown(&text).add_header(&mut headers).unwrap();
            unescape_message(&mut headers);
            let sent = headers.get(MESSAGE).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
            prop_assert!(!sent.contains("%3F") && !sent.contains("%23"), "{sent}");
            let read = Status::from_header_map(&headers).unwrap();
            prop_assert_eq!(read.message(), text);
        }
    }
}
