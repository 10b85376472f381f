//! Writes the format of the answer: a schema if the model supports one, otherwise an instruction in
//! the prompt.
//!
//! This file must warn the client if the format is only an instruction, which the model may ignore.
//!
//! Read next: `capabilities/schema.rs`.

use crate::Protocol;
use crate::capabilities::{MessagesModel, schema};
use crate::ir::{OutputFormat, Request, RequestResult, Warnings, invalid_param};
use crate::json::{JsonDocument, JsonStr, JsonWriter, MAX_DEPTH, NodeBuffer, compacted};

const JSON_INSTRUCTION: &str =
    "Answer with one valid JSON object and nothing else – no code fence, no commentary.";
const SCHEMA_INSTRUCTION: &str = "Answer with one JSON value that conforms to this JSON Schema and nothing else – no code \
                            fence, no commentary:\n";

/// The form in which the request asks for the format of the answer.
#[derive(Debug)]
pub(super) enum MessagesOutputFormat {
    Free,
    /// An instruction at the end of the system prompt.
    Instruction(String),
    /// A schema that the vendor enforces.
    Schema(String),
}

pub(super) fn output_format(
    request: &Request<'_>,
    model: &MessagesModel,
    warnings: &mut Warnings,
) -> RequestResult<MessagesOutputFormat> {
    let (field, schema_field) = match request.surface {
        Protocol::Responses => ("text.format", "text.format.schema"),
        Protocol::Chat | Protocol::Messages => {
            ("response_format", "response_format.json_schema.schema")
        }
    };
    let (schema, description) = match &request.format {
        OutputFormat::Free => return Ok(MessagesOutputFormat::Free),
        OutputFormat::Json => {
            warnings.emulated(field);
            return Ok(MessagesOutputFormat::Instruction(
                JSON_INSTRUCTION.to_owned(),
            ));
        }
        OutputFormat::Schema {
            schema,
            description,
            ..
        } => (*schema, description.as_ref()),
    };
    let cleaned = schema::clean_for_messages(Some(schema)).map_err(|schema::NotAnObject| {
        let message = format!("{schema_field}: schema must be of type 'object'.");
        invalid_param(request.surface, schema_field, message)
    })?;
    let restricted = Some(&cleaned.json)
        .filter(|_| model.structured)
        .and_then(|json| schema::restrict_for_messages(json));
    if let Some(restricted) = restricted {
        if cleaned.rewritten {
            warnings.rewritten(field);
        }
        return Ok(MessagesOutputFormat::Schema(add_description(
            restricted,
            description,
            cleaned.note.as_deref(),
        )));
    }
    warnings.emulated(field);
    Ok(MessagesOutputFormat::Instruction(format!(
        "{SCHEMA_INSTRUCTION}{}",
        add_description(compacted(schema.raw()), description, None)
    )))
}

/// Returns the schema with a description before its own and a note after it.
fn add_description(
    schema: String,
    description: Option<&JsonStr<'_>>,
    note: Option<&str>,
) -> String {
    if description.is_none() && note.is_none() {
        return schema;
    }
    let Ok(tree) = JsonDocument::parse(&schema, MAX_DEPTH, NodeBuffer::new()) else {
        return schema;
    };
    let root = tree.root();
    let own = root
        .get("description")
        .and_then(|own| own.string())
        .filter(|own| !own.is_empty());
    let requested = description.map(|requested| requested.value());
    let words: Vec<&str> = requested
        .as_deref()
        .into_iter()
        .chain(own.as_deref())
        .collect();
    let mut words = words.join("\n\n");
    if let Some(note) = note {
        let gap = if words.is_empty() { "" } else { "\n" };
        words = format!("{words}{gap}{note}");
    }
    let mut json = JsonWriter::with_capacity(schema.len() + words.len());
    json.open_object().member("description", &words);
    json.copy_members(root.members().filter(|(name, _)| !name.is("description")));
    json.close_object();
    json.into_string()
}
