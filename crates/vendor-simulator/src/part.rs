//! Defines the parts of an answer, in the order of production, and their syntax in a marker.
//!
//! This file must not encode a part (`chat.rs` and `messages.rs` do).

use serde::Deserialize;
use serde_json::value::RawValue;

const MAX_PARTS: usize = 256;

#[derive(Clone, Debug, PartialEq)]
pub enum SimPart {
    Thinking(SimThinking),
    /// Thinking that only the vendor can decode.
    Redacted,
    Text(SimText),
    /// The chat vendor's refusal text.
    Refusal(String),
    Call(SimToolCall),
    /// A search that the vendor ran itself, with its results.
    Search(SimSearch),
    /// A block of an unknown type.
    Unknown(String),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimThinking {
    pub text: String,
    /// True if only the signature is shown.
    pub omitted: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimText {
    pub text: String,
    pub sources: Vec<SimSource>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimToolCall {
    /// Id of the call, if the marker set one.
    pub id: Option<String>,
    pub name: String,
    /// Arguments as JSON, unless they were cut at the output limit or are deliberately broken.
    pub args: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimSearch {
    pub query: String,
    pub hits: Vec<SimSource>,
    pub error: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimSource {
    pub url: String,
    #[serde(default)]
    pub title: String,
    /// Text that a citation quotes.
    #[serde(default)]
    pub cited: String,
}

impl SimPart {
    /// Returns the text that is produced piece by piece and counted as output.
    pub fn output(&self) -> &str {
        match self {
            Self::Thinking(thinking) => &thinking.text,
            Self::Text(text) => &text.text,
            Self::Refusal(text) => text,
            Self::Call(call) => &call.args,
            Self::Redacted | Self::Search(_) | Self::Unknown(_) => "",
        }
    }

    pub fn output_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Thinking(thinking) => Some(&mut thinking.text),
            Self::Text(text) => Some(&mut text.text),
            Self::Refusal(text) => Some(text),
            Self::Call(call) => Some(&mut call.args),
            Self::Redacted | Self::Search(_) | Self::Unknown(_) => None,
        }
    }
}

/// One element of the marker's list. It has one of seven kinds, with the members of that kind.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SimPartSpec<'a> {
    thinking: Option<String>,
    #[serde(default)]
    omitted: bool,
    #[serde(default)]
    redacted: bool,
    text: Option<String>,
    #[serde(default)]
    citations: Vec<SimSource>,
    refusal: Option<String>,
    tool: Option<String>,
    #[serde(borrow)]
    args: Option<&'a RawValue>,
    id: Option<String>,
    search: Option<String>,
    #[serde(default)]
    hits: Vec<SimSource>,
    error: Option<String>,
    unknown: Option<String>,
}

pub fn parse(text: &str) -> Result<Vec<SimPart>, String> {
    let written: Vec<SimPartSpec<'_>> =
        serde_json::from_str(text).map_err(|error| format!("'blocks': {error}"))?;
    if written.len() > MAX_PARTS {
        return Err(format!("'blocks' has more than {MAX_PARTS} elements"));
    }
    written.into_iter().map(part).collect()
}

fn part(written: SimPartSpec<'_>) -> Result<SimPart, String> {
    let SimPartSpec {
        thinking,
        omitted,
        redacted,
        text,
        citations,
        refusal,
        tool,
        args,
        id,
        search,
        hits,
        error,
        unknown,
    } = written;
    let kinds = [
        thinking.map(|text| SimPart::Thinking(SimThinking { text, omitted })),
        redacted.then_some(SimPart::Redacted),
        text.map(|text| {
            SimPart::Text(SimText {
                text,
                sources: citations,
            })
        }),
        refusal.map(SimPart::Refusal),
        tool.map(|name| {
            SimPart::Call(SimToolCall {
                id,
                name,
                args: arguments(args),
            })
        }),
        search.map(|query| SimPart::Search(SimSearch { query, hits, error })),
        unknown.map(SimPart::Unknown),
    ];
    let mut found = kinds.into_iter().flatten();
    match (found.next(), found.next()) {
        (Some(part), None) => Ok(part),
        _ => Err(
            "an element of 'blocks' must be exactly one of thinking, redacted, text, refusal, tool, search, unknown"
                .to_owned(),
        ),
    }
}

/// Returns the arguments of a call. A string is used verbatim, so that broken JSON is possible; any
/// other value is used as its JSON.
fn arguments(args: Option<&RawValue>) -> String {
    let Some(args) = args.map(RawValue::get) else {
        return "{}".to_owned();
    };
    serde_json::from_str::<String>(args).unwrap_or_else(|_| args.to_owned())
}
