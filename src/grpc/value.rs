//! Makes the values of messages of JSON.

use prost_types::value::Kind as PbKind;
use prost_types::{ListValue, Struct, Value};
use serde_json::Value as Json;

/// Converts a value. Arrays and objects below `levels` levels become strings with their JSON text.
pub(super) fn of_json(value: &Json, levels: usize) -> Value {
    let within = levels.saturating_sub(1);
    let kind = match value {
        Json::Null => PbKind::NullValue(0),
        Json::Bool(b) => PbKind::BoolValue(*b),
        Json::Number(n) => PbKind::NumberValue(n.as_f64().unwrap_or_default()),
        Json::String(s) => PbKind::StringValue(s.clone()),
        Json::Array(_) | Json::Object(_) if levels == 0 => PbKind::StringValue(value.to_string()),
        Json::Array(items) => {
            PbKind::ListValue(ListValue { values: items.iter().map(|item| of_json(item, within)).collect() })
        }
        Json::Object(members) => PbKind::StructValue(Struct {
            fields: members.iter().map(|(k, v)| (k.clone(), of_json(v, within))).collect(),
        }),
    };
    Value { kind: Some(kind) }
}
