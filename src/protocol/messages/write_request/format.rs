//! Response format of the answer: a schema if the model supports one, otherwise an instruction in
//! text.
//!
//! It must not promise more than the model guarantees: it warns if the format is only an
//! instruction.
//!
//! Read next: `capabilities/schema.rs`.

use crate::protocol::Protocol;
use crate::protocol::failure::Failure;
use crate::protocol::form::{Action, Format, Refused, Request, Warnings};
use crate::protocol::request::DEPTH_MAX;
use crate::protocol::rules::{MessagesModel, schema};
use crate::protocol::text::{Json, Text};
use crate::protocol::tree::{Nodes, Tree};

const JSON_WORDS: &str =
    "Answer with one valid JSON object and nothing else – no code fence, no commentary.";
const SCHEMA_WORDS: &str = "Answer with one JSON value that conforms to this JSON Schema and nothing else – no code \
                            fence, no commentary:\n";

/// How the request asks for the response format.
#[derive(Debug)]
pub(super) enum AnswerForm {
    Free,
    /// Instruction at the end of the system prompt.
    Asked(String),
    /// Schema that the vendor enforces.
    Schema(String),
}

pub(super) fn form(
    request: &Request<'_>,
    model: &MessagesModel,
    warnings: &mut Warnings,
) -> Result<AnswerForm, Refused> {
    let (field, schema_field) = match request.surface {
        Protocol::Responses => ("text.format", "text.format.schema"),
        Protocol::Chat | Protocol::Messages => {
            ("response_format", "response_format.json_schema.schema")
        }
    };
    let (schema, description) = match &request.format {
        Format::Free => return Ok(AnswerForm::Free),
        Format::Json => {
            warnings.add(Action::Emulated, field);
            return Ok(AnswerForm::Asked(JSON_WORDS.to_owned()));
        }
        Format::Schema {
            schema,
            description,
            ..
        } => (*schema, description.as_ref()),
    };
    let cleaned = schema::for_messages(Some(schema)).map_err(|schema::NotAnObject| {
        let message = format!("{schema_field}: schema must be of type 'object'.");
        Box::new(Failure::invalid(request.surface, schema_field, &message))
    })?;
    let restricted = Some(&cleaned.json)
        .filter(|_| model.structured)
        .and_then(|json| schema::restricted(json));
    if let Some(restricted) = restricted {
        if cleaned.rewritten {
            warnings.add(Action::Rewritten, field);
        }
        return Ok(AnswerForm::Schema(described(
            restricted,
            description,
            cleaned.note.as_deref(),
        )));
    }
    warnings.add(Action::Emulated, field);
    let mut compact = Json::with_capacity(schema.raw().len());
    compact.compact(schema.raw());
    // The input was a UTF-8 string, so the output is one too.
    let compact = String::from_utf8(compact.into_bytes()).unwrap_or_default();
    Ok(AnswerForm::Asked(format!(
        "{SCHEMA_WORDS}{}",
        described(compact, description, None)
    )))
}

/// Returns the schema with a description before its own one and a note after it.
fn described(schema: String, description: Option<&Text<'_>>, note: Option<&str>) -> String {
    if description.is_none() && note.is_none() {
        return schema;
    }
    let Ok(tree) = Tree::read(&schema, DEPTH_MAX, Nodes::new()) else {
        return schema;
    };
    let root = tree.root();
    let own = root
        .get("description")
        .and_then(|own| own.string())
        .filter(|own| !own.is_empty());
    let given = description.map(|given| given.value());
    let words: Vec<&str> = given.as_deref().into_iter().chain(own.as_deref()).collect();
    let mut words = words.join("\n\n");
    if let Some(note) = note {
        let gap = if words.is_empty() { "" } else { "\n" };
        words = format!("{words}{gap}{note}");
    }
    let mut json = Json::with_capacity(schema.len() + words.len());
    json.open_object().key("description").str(&words);
    for (name, value) in root.members().filter(|(name, _)| !name.is("description")) {
        json.key_text(&name).compact(value.raw());
    }
    json.close_object();
    String::from_utf8(json.into_bytes()).unwrap_or_default()
}
