//! Embeddings and moderations as OpenAI serves them, embeddings and reranking as Cohere and Voyage
//! do: one JSON answer to one JSON request. The first text of the request may have a marker; of
//! its keys, those about the usage, errors and the wire have their effect.
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

const JSON: &str = "application/json";

/// A request that passed the vendor's checks.
pub struct MeteredCall {
    pub behaviour: Behaviour,
    /// The body of the answer.
    pub answer: Vec<u8>,
    pub content_type: &'static str,
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

/// Answers an embeddings request: as Voyage for its own models, as OpenAI for all others.
///
/// # Errors
/// Returns the vendor's refusal.
pub fn embeddings(body: &[u8]) -> Result<MeteredCall, SimulatedError> {
    let value: Value = serde_json::from_slice(body).map_err(|_| FixedError::ChatNotJson)?;
    if value["model"].as_str().unwrap_or("").starts_with("voyage-") {
        return voyage_embeddings(body);
    }
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
        let vector = vector(text, dimensions, "float", params.encoding_format);
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
        }
        .into_bytes(),
        content_type: JSON,
        behaviour,
        usage,
    })
}

/// The parameters of Voyage's embeddings, alone (`input`) and in the context of a list (`inputs`).
/// Source: `Client.embed` and `Client.contextualized_embed` of voyageai 0.5.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VoyageEmbeddingParams {
    model: String,
    #[serde(default)]
    input: Vec<String>,
    #[serde(default)]
    inputs: Vec<Vec<String>>,
    #[serde(default, rename = "input_type")]
    _input_type: Option<String>,
    #[serde(default, rename = "truncation")]
    _truncation: Option<bool>,
    #[serde(default)]
    output_dtype: Option<String>,
    #[serde(default)]
    output_dimension: Option<usize>,
    #[serde(default)]
    encoding_format: Option<EncodingFormat>,
    /// The vendor cuts each text into pieces, and returns them.
    #[serde(default)]
    enable_auto_chunking: bool,
    #[serde(default, rename = "chunk_size")]
    _chunk_size: Option<u64>,
    #[serde(default, rename = "chunk_overlap")]
    _chunk_overlap: Option<u64>,
}

/// Answers a request for embeddings as Voyage does.
///
/// # Errors
/// Returns the vendor's refusal.
pub fn voyage_embeddings(body: &[u8]) -> Result<MeteredCall, SimulatedError> {
    let params: VoyageEmbeddingParams = read(body)?;
    let is_flat = params.inputs.is_empty();
    let lists = match is_flat {
        true => vec![params.input],
        false => params.inputs,
    };
    let texts = || lists.iter().flatten();
    let first = texts().next().ok_or_else(no_input)?;
    let tokens = texts().map(|text| count::tokens(text.len())).sum();
    let (behaviour, usage) = behaviour(first, tokens)?;
    let dimensions = params.output_dimension.unwrap_or(DIMENSIONS);
    let kind = params.output_dtype.as_deref().unwrap_or("float");
    let format = params.encoding_format.unwrap_or_default();
    let items = |list: &[String]| {
        let items = (0..).zip(list).map(|(index, text): (usize, _)| {
            let vector = vector(text, dimensions, kind, format);
            let piece = match params.enable_auto_chunking {
                true => format!(r#","text":{}"#, quote(text)),
                false => String::new(),
            };
            format!(r#"{{"object":"embedding","index":{index},"embedding":{vector}{piece}}}"#)
        });
        items.collect::<Vec<_>>().join(",")
    };
    let data: Vec<_> = match is_flat {
        true => lists.iter().map(|list| items(list)).collect(),
        false => {
            let list = |(index, list): (usize, &Vec<String>)| {
                let items = items(list);
                format!(r#"{{"object":"list","index":{index},"data":[{items}]}}"#)
            };
            (0..).zip(&lists).map(list).collect()
        }
    };
    let total = usage.count(usage.input);
    let total = total.map(|tokens| format!(r#","usage":{{"total_tokens":{tokens}}}"#));
    let answer = format!(
        r#"{{"object":"list","data":[{}],"model":{}{}}}"#,
        data.join(","),
        behaviour.model_field(&params.model),
        total.unwrap_or_default(),
    );
    Ok(MeteredCall {
        answer: answer.into_bytes(),
        content_type: JSON,
        behaviour,
        usage,
    })
}

fn no_input() -> SimulatedError {
    SimulatedError::from_param("invalid request: there is no input", "input", None)
}

/// The parameters of Cohere's own embeddings. Source: `ClientV2.embed` and `Client.embed` of cohere
/// 7.3 for Python.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CohereEmbeddingParams {
    #[serde(rename = "model")]
    _model: String,
    texts: Vec<String>,
    #[serde(default, rename = "input_type")]
    _input_type: Option<String>,
    #[serde(default)]
    output_dimension: Option<usize>,
    #[serde(default)]
    embedding_types: Vec<String>,
    #[serde(default, rename = "max_tokens")]
    _max_tokens: Option<u64>,
    #[serde(default, rename = "truncate")]
    _truncate: Option<String>,
    #[serde(default, rename = "priority")]
    _priority: Option<i64>,
}

/// Answers a request for embeddings at Cohere's own paths. Without types, the first version gives a
/// list of vectors alone.
///
/// # Errors
/// Returns the vendor's refusal.
pub fn cohere_embeddings(body: &[u8], version: &str) -> Result<MeteredCall, SimulatedError> {
    let params: CohereEmbeddingParams = read(body)?;
    let first = params.texts.first().ok_or_else(no_input)?;
    let tokens = params.texts.iter().map(|text| count::tokens(text.len()));
    let (behaviour, usage) = behaviour(first, tokens.sum())?;
    let dimensions = params.output_dimension.unwrap_or(DIMENSIONS);
    let vectors = |kind: &str| {
        let format = match kind {
            "base64" => EncodingFormat::Base64,
            _ => EncodingFormat::Float,
        };
        let vectors = params.texts.iter();
        let vectors: Vec<_> = vectors
            .map(|text| vector(text, dimensions, kind, format))
            .collect();
        format!("[{}]", vectors.join(","))
    };
    let mut types = params.embedding_types;
    let (form, embeddings) = match types.is_empty() && version == "1" {
        true => ("embeddings_floats", vectors("float")),
        false => {
            if types.is_empty() {
                types.push("float".to_owned());
            }
            let types = types
                .iter()
                .map(|kind| format!("{}:{}", quote(kind), vectors(kind)));
            let types: Vec<_> = types.collect();
            ("embeddings_by_type", format!("{{{}}}", types.join(",")))
        }
    };
    let texts: Vec<_> = params.texts.iter().map(|text| quote(text)).collect();
    let billed = usage.count(usage.input);
    let billed = billed.map(|tokens| format!(r#","billed_units":{{"input_tokens":{tokens}.0}}"#));
    let answer = format!(
        r#"{{"id":"emb-sim","response_type":"{form}","embeddings":{embeddings},"texts":[{}],"meta":{{"api_version":{{"version":"{version}"}}{}}}}}"#,
        texts.join(","),
        billed.unwrap_or_default(),
    );
    Ok(MeteredCall {
        answer: answer.into_bytes(),
        content_type: JSON,
        behaviour,
        usage,
    })
}

/// The parameters of a rerank request. Source: `ClientV2.rerank` and `Client.rerank` of cohere 7.3
/// for Python.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CohereParams {
    model: String,
    query: String,
    documents: Vec<CohereDocument>,
    #[serde(default)]
    top_n: Option<usize>,
    #[serde(default, rename = "return_documents")]
    _return_documents: Option<bool>,
    #[serde(default, rename = "rank_fields")]
    _rank_fields: Option<Vec<String>>,
    #[serde(default, rename = "max_chunks_per_doc")]
    _max_chunks: Option<u64>,
    #[serde(default, rename = "max_tokens_per_doc")]
    _max_tokens: Option<u64>,
    #[serde(default, rename = "relevant_spans")]
    _relevant_spans: Option<Value>,
    #[serde(default, rename = "priority")]
    _priority: Option<i64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum CohereDocument {
    Text(String),
    Fields { text: String },
}

/// The parameters of Voyage's rerank requests. Source: `Reranking.create` of voyageai 0.5.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VoyageParams {
    model: String,
    query: String,
    documents: Vec<String>,
    #[serde(default)]
    top_k: Option<usize>,
    #[serde(default, rename = "truncation")]
    _truncation: Option<bool>,
    #[serde(default, rename = "return_documents")]
    _return_documents: Option<bool>,
}

/// Answers a rerank request: as Voyage for its own models, as Cohere for all others.
///
/// # Errors
/// Returns the vendor's refusal.
pub fn rerank(body: &[u8]) -> Result<MeteredCall, SimulatedError> {
    let value: Value = serde_json::from_slice(body).map_err(|_| FixedError::ChatNotJson)?;
    let is_voyage = matches!(
        value["model"].as_str(),
        Some("rerank-2.5" | "rerank-2.5-lite")
    );
    let (model, query, documents, top) = if is_voyage {
        let params: VoyageParams = read(body)?;
        (params.model, params.query, params.documents, params.top_k)
    } else {
        let params: CohereParams = read(body)?;
        let texts = params.documents.into_iter().map(|document| match document {
            CohereDocument::Text(text) | CohereDocument::Fields { text } => text,
        });
        (params.model, params.query, texts.collect(), params.top_n)
    };
    if query.is_empty() || documents.is_empty() {
        let message = "invalid request: query and documents must not be empty";
        return Err(SimulatedError::from_param(message, "documents", None));
    }
    let read_tokens = documents
        .iter()
        .map(|text| count::tokens(text.len()).saturating_add(count::tokens(query.len())));
    let (behaviour, usage) = behaviour(&query, read_tokens.clone().sum())?;
    let mut scores: Vec<_> = documents
        .iter()
        .map(|text| score(text))
        .enumerate()
        .collect();
    scores.sort_by_key(|(_, score)| std::cmp::Reverse(*score));
    let items: Vec<_> = scores
        .into_iter()
        .take(top.unwrap_or(usize::MAX))
        .map(|(index, score)| format!(r#"{{"index":{index},"relevance_score":0.{score:03}}}"#))
        .collect();
    let items = items.join(",");
    let answer = if is_voyage {
        let total = usage.count(usage.input);
        let total = total.map(|tokens| format!(r#","usage":{{"total_tokens":{tokens}}}"#));
        format!(
            r#"{{"object":"list","data":[{items}],"model":{}{}}}"#,
            behaviour.model_field(&model),
            total.unwrap_or_default(),
        )
    } else {
        let pieces: u64 = read_tokens.map(|tokens| tokens.div_ceil(500).max(1)).sum();
        let units = behaviour.input.unwrap_or(pieces.div_ceil(100));
        let units = usage.count(units);
        let billed = units.map(|units| format!(r#","billed_units":{{"search_units":{units}.0}}"#));
        format!(
            r#"{{"id":"rr-sim","results":[{items}],"meta":{{"api_version":{{"version":"2"}}{}}}}}"#,
            billed.unwrap_or_default(),
        )
    };
    Ok(MeteredCall {
        answer: answer.into_bytes(),
        content_type: JSON,
        behaviour,
        usage,
    })
}

/// A relevance in thousandths that depends on the text alone.
fn score(text: &str) -> u16 {
    let hash = Sha256::digest(text.as_bytes());
    hash.iter()
        .take(4)
        .map(|byte| u16::from(*byte))
        .sum::<u16>()
        % 1_000
}

/// The parameters of a moderation request. Source: `ModerationCreateParams` of openai 3.57 for
/// Python.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModerationParams {
    #[serde(default = "default_moderation_model")]
    model: String,
    input: ModerationInput,
}

fn default_moderation_model() -> String {
    "omni-moderation-latest".to_owned()
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ModerationInput {
    Text(String),
    Texts(Vec<String>),
    Parts(Vec<ModerationPart>),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum ModerationPart {
    Text {
        text: String,
    },
    ImageUrl {
        #[serde(rename = "image_url")]
        _image: ModerationImage,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModerationImage {
    #[serde(rename = "url")]
    _url: String,
}

/// The categories of a moderation.
const CATEGORIES: [&str; 13] = [
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
];

/// Answers a moderation request. The vendor reports no usage.
///
/// # Errors
/// Returns the vendor's refusal.
pub fn moderations(body: &[u8]) -> Result<MeteredCall, SimulatedError> {
    let params: ModerationParams = serde_json::from_slice(body)
        .map_err(|error| SimulatedError::new(400, format!("Invalid request: {error}")))?;
    // The parts of one input get one result.
    let texts = match params.input {
        ModerationInput::Text(text) => vec![text],
        ModerationInput::Texts(texts) => texts,
        ModerationInput::Parts(parts) => {
            let texts = parts.into_iter().map(|part| match part {
                ModerationPart::Text { text } => text,
                ModerationPart::ImageUrl { .. } => String::new(),
            });
            vec![texts.collect()]
        }
    };
    let tokens = texts.iter().map(|text| count::tokens(text.len())).sum();
    let (behaviour, usage) = behaviour(texts.first().map_or("", String::as_str), tokens)?;
    let each = |value: &str| {
        let all = CATEGORIES.map(|category| format!("{}:{value}", quote(category)));
        all.join(",")
    };
    let result = format!(
        r#"{{"flagged":false,"categories":{{{}}},"category_scores":{{{}}},"category_applied_input_types":{{{}}}}}"#,
        each("false"),
        each("0.0001"),
        each(r#"["text"]"#),
    );
    let results = vec![result; texts.len()].join(",");
    let answer = format!(
        r#"{{"id":"modr-sim","model":{},"results":[{results}]}}"#,
        behaviour.model_field(&params.model),
    );
    Ok(MeteredCall {
        answer: pretty(&answer, 2).into_bytes(),
        content_type: JSON,
        behaviour,
        usage,
    })
}

pub(super) fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, SimulatedError> {
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
pub(super) fn behaviour(text: &str, tokens: u64) -> Result<(Behaviour, SimUsage), SimulatedError> {
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

/// A vector that depends on the text alone. `kind`: the type of its numbers; in those of bits, a
/// byte has eight of them.
fn vector(text: &str, dimensions: usize, kind: &str, format: EncodingFormat) -> String {
    let hash = Sha256::digest(text.as_bytes());
    if !matches!(kind, "float" | "base64") {
        let length = match kind {
            "binary" | "ubinary" => dimensions.div_ceil(8),
            _ => dimensions,
        };
        let bytes: Vec<_> = hash.iter().copied().cycle().take(length).collect();
        if matches!(format, EncodingFormat::Base64) {
            return quote(&base64::engine::general_purpose::STANDARD.encode(bytes));
        }
        let numbers = bytes.iter().map(|byte| match kind.starts_with('u') {
            true => byte.to_string(),
            false => byte.cast_signed().to_string(),
        });
        return format!("[{}]", numbers.collect::<Vec<_>>().join(","));
    }
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
