//! Holds the id and the creation time of an answer, which the gateway's own events repeat.

use crate::json::Span;

const MAX_ID_BYTES: usize = 256;

#[derive(Default, Debug)]
pub(super) struct AnswerId {
    /// The id as a JSON string, with its quotes. Empty until the vendor has sent an id.
    json: String,
    pub created: u64,
}

impl AnswerId {
    /// Keeps the first id, whose span in `text` is `at`.
    pub fn record(&mut self, text: &str, at: Option<Span>, created: u64) {
        let id = at.unwrap_or_default().slice(text);
        if self.json.is_empty() && !id.is_empty() && id.len() <= MAX_ID_BYTES {
            id.clone_into(&mut self.json);
            self.created = created;
        }
    }

    pub fn json(&self) -> &str {
        match self.json.as_str() {
            "" => "\"\"",
            json => json,
        }
    }
}
