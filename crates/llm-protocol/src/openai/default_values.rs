//! Default values of members that chat defines and other vendors do not support.

use crate::json::JsonValue;

/// Returns whether the value is the vendor's default.
pub(crate) fn is_default_value(name: &str, value: JsonValue<'_>) -> bool {
    match name {
        "n" => value.count() == Some(1),
        "logprobs" | "store" => value.bool() == Some(false),
        "logit_bias" => value.members().next().is_none(),
        "presence_penalty" | "frequency_penalty" => value
            .number()
            .is_some_and(|penalty| penalty.abs() < f64::EPSILON),
        "verbosity" => value.is("medium"),
        "modalities" => value.items().all(|modality| modality.is("text")),
        _ => false,
    }
}
