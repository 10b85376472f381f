//! Embeddings, as the chat vendor serves them: one JSON answer to one JSON request. The first text
//! of the request may begin with a marker; of its keys, those about the usage, errors and the wire
//! have their effect.
//!
//! It must not know that the answer is billed.

use base64::Engine;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::behaviour::Behaviour;
use super::count;
use super::errors::{FixedError, SimulatedError};
use super::json::{pretty, quote};
use super::usage::SimUsage;

/// Numbers of a vector, if the request does not say.
const DIMENSIONS: usize = 8;
const MAX_DIMENSIONS: usize = 3_072;
const MAX_INPUTS: usize = 2_048;

/// A request that passed the vendor's checks.
pub struct MeteredCall {
    pub behaviour: Behaviour,
    /// The body of the answer.
    pub answer: String,
    pub usage: SimUsage,
}

/// The parameters of an embeddings request. Source: `EmbeddingCreateParams` of openai 3.57 for
/// Python.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EmbeddingParams {
    model: String,
    input: EmbeddingInput,
    #[serde(default)]
    dimensions: Option<usize>,
    #[serde(default)]
    encoding_format: EncodingFormat,
    #[serde(default, rename = "user")]
    _user: Option<String>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EncodingFormat {
    #[default]
    Float,
    Base64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum EmbeddingInput {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

impl EmbeddingInput {
    /// Each input as text, with its number of tokens.
    fn inputs(self) -> Vec<(String, u64)> {
        let text = |text: String| {
            let tokens = count::tokens(text.len());
            (text, tokens)
        };
        let ids = |ids: Vec<u32>| (format!("{ids:?}"), ids.len() as u64);
        match self {
            Self::Text(one) => vec![text(one)],
            Self::Texts(texts) => texts.into_iter().map(text).collect(),
            Self::Tokens(one) => vec![ids(one)],
            Self::TokenLists(lists) => lists.into_iter().map(ids).collect(),
        }
    }
}

/// Answers an embeddings request.
///
/// # Errors
/// Returns the vendor's refusal.
pub fn embeddings(body: &[u8]) -> Result<MeteredCall, SimulatedError> {
    let params: EmbeddingParams = read(body)?;
    let inputs = params.input.inputs();
    if inputs.is_empty() || inputs.iter().any(|(text, _)| text.is_empty()) {
        let message = "Invalid 'input': input cannot be an empty string.";
        return Err(SimulatedError::from_param(message, "input", None));
    }
    if inputs.len() > MAX_INPUTS {
        let message = format!("Invalid 'input': array too long, at most {MAX_INPUTS}.");
        return Err(SimulatedError::from_param(message, "input", None));
    }
    let dimensions = params.dimensions.unwrap_or(DIMENSIONS);
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
        let message = format!("Invalid 'dimensions': expected 1 to {MAX_DIMENSIONS}.");
        return Err(SimulatedError::from_param(message, "dimensions", None));
    }
    let first = inputs.first().map_or("", |(text, _)| text);
    let (behaviour, usage) = behaviour(first, inputs.iter().map(|(_, tokens)| tokens).sum())?;
    let items = (0..).zip(&inputs).map(|(index, (text, _)): (usize, _)| {
        let vector = vector(text, dimensions, params.encoding_format);
        format!(r#"{{"object":"embedding","index":{index},"embedding":{vector}}}"#)
    });
    let items: Vec<_> = items.collect();
    let answer = format!(
        r#"{{"object":"list","data":[{}],"model":{}{}{}}}"#,
        items.join(","),
        behaviour.model_field(&params.model),
        usage_member(&usage),
        behaviour.unknown_field(),
    );
    Ok(MeteredCall {
        // A large answer is not broken into lines.
        answer: match answer.len() {
            ..65_536 => pretty(&answer, 2),
            _ => answer,
        },
        behaviour,
        usage,
    })
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, SimulatedError> {
    let value: Value = serde_json::from_slice(body).map_err(|_| FixedError::ChatNotJson)?;
    let Some(model) = value["model"].as_str() else {
        return Err(FixedError::ChatWithoutModel.into());
    };
    if model.starts_with("missing-") {
        return Err(SimulatedError::chat_no_such_model(model));
    }
    serde_json::from_slice(body)
        .map_err(|error| SimulatedError::new(400, format!("Invalid request: {error}")))
}

/// The behaviour that the text selects, and the usage of an input of this many tokens.
fn behaviour(text: &str, tokens: u64) -> Result<(Behaviour, SimUsage), SimulatedError> {
    let behaviour =
        Behaviour::parse(text).map_err(|fault| SimulatedError::from_bad_marker(&fault))?;
    let usage = SimUsage {
        mode: behaviour.usage,
        input: behaviour.input.unwrap_or(tokens),
        ..SimUsage::default()
    };
    Ok((behaviour, usage))
}

fn usage_member(usage: &SimUsage) -> String {
    let Some(tokens) = usage.count(usage.input) else {
        return String::new();
    };
    format!(r#","usage":{{"prompt_tokens":{tokens},"total_tokens":{tokens}}}"#)
}

/// A vector that depends on the text alone.
fn vector(text: &str, dimensions: usize, format: EncodingFormat) -> String {
    let hash = Sha256::digest(text.as_bytes());
    let numbers = (0..dimensions).map(|index| {
        let byte = hash.get(index % hash.len()).copied().unwrap_or_default();
        // From 0.5 to 1, as the bits of the byte say.
        f32::from_bits(0x3f00_0000 | u32::from(byte) << 15)
    });
    match format {
        EncodingFormat::Float => {
            let numbers: Vec<_> = numbers.map(|number| number.to_string()).collect();
            format!("[{}]", numbers.join(","))
        }
        EncodingFormat::Base64 => {
            let bytes: Vec<_> = numbers.flat_map(f32::to_le_bytes).collect();
            quote(&base64::engine::general_purpose::STANDARD.encode(bytes))
        }
    }
}
