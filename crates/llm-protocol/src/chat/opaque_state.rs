//! Opaque values that a chat vendor wants back unchanged, at the paths of `state` in its profile,
//! relative to a message or a call.
//!
//! This file must not hold other parts of a member, such as the rest of Gemini's `extra_content`.

use crate::json::{CompactJson, JsonStrBuf, JsonValue, JsonWriter, RawJson};

/// Minimum length, in bytes, of a text that counts as a repetition if it equals all text before it.
/// A shorter text counts as the next piece.
const MIN_REPETITION_BYTES: usize = 16;

#[derive(Debug, Default)]
pub(super) struct OpaqueState(Vec<(String, StateValue)>);

#[derive(Debug)]
enum StateValue {
    Object(OpaqueState),
    /// The JSON of each item.
    Array(Vec<String>),
    Text(JsonStrBuf),
    /// The JSON of a number or a boolean.
    Scalar(String),
}

impl OpaqueState {
    /// Adds the values of `object` at these paths, and joins the fragments of one stream as SDKs
    /// do. Returns the number of bytes added.
    pub fn add(&mut self, object: JsonValue<'_>, paths: &[String]) -> usize {
        let mut added = 0;
        for path in paths {
            let value = path.split('.').try_fold(object, JsonValue::get);
            let is_empty = |value: &JsonValue<'_>| value.is_null() || value.is("");
            if let Some(value) = value.filter(|value| !is_empty(value)) {
                self.insert(path, value);
                added += value.raw().len();
            }
        }
        added
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes the members into the open object.
    pub fn write(&self, json: &mut JsonWriter) {
        for (name, value) in &self.0 {
            json.key(name);
            value.write(json);
        }
    }

    fn insert(&mut self, path: &str, value: JsonValue<'_>) {
        let Some((name, rest)) = path.split_once('.') else {
            return self.merge(path, value);
        };
        let at = self.0.iter().position(|(key, _)| key == name);
        if at.is_none() {
            let empty = StateValue::Object(OpaqueState::default());
            self.0.push((name.to_owned(), empty));
        }
        let at = at.unwrap_or(self.0.len() - 1);
        if let Some((_, StateValue::Object(inner))) = self.0.get_mut(at) {
            inner.insert(rest, value);
        }
    }

    fn merge(&mut self, name: &str, value: JsonValue<'_>) {
        match self.0.iter_mut().find(|(key, _)| key == name) {
            Some((_, held)) => held.merge(value),
            None => self.0.push((name.to_owned(), StateValue::new(value))),
        }
    }
}

impl StateValue {
    fn new(value: JsonValue<'_>) -> Self {
        let mut new = match value.text() {
            Some(_) => Self::Text(JsonStrBuf::default()),
            None if value.is_object() => Self::Object(OpaqueState::default()),
            None if value.is_array() => Self::Array(Vec::new()),
            None => return Self::Scalar(value.raw().to_owned()),
        };
        new.merge(value);
        new
    }

    fn merge(&mut self, value: JsonValue<'_>) {
        match (&mut *self, value.text()) {
            (Self::Text(held), Some(text)) => {
                let is_repeated = held.len() >= MIN_REPETITION_BYTES
                    && value.raw().len() == held.len() + 2
                    && text.is(&held.text().value());
                if !is_repeated {
                    held.push(&text);
                }
            }
            (Self::Object(held), None) if value.is_object() => {
                for (name, value) in value.members() {
                    held.merge(&name.value(), value);
                }
            }
            (Self::Array(held), None) if value.is_array() => {
                held.extend(value.items().map(|item| item.raw().to_owned()));
            }
            _ if value.is_null() => {}
            _ => *self = Self::new(value),
        }
    }

    fn write(&self, json: &mut JsonWriter) {
        match self {
            Self::Object(members) => {
                json.open_object();
                members.write(json);
                json.close_object();
            }
            Self::Array(items) => {
                json.open_array();
                for item in items {
                    json.value(CompactJson(item));
                }
                json.close_array();
            }
            Self::Text(text) => drop(json.value(text.text())),
            Self::Scalar(raw) => drop(json.value(RawJson(raw))),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::json::{JsonDocument, NodeBuffer};

    #[test]
    fn fragments_of_what_the_paths_name_are_joined_and_the_rest_is_left() {
        let paths = ["pondering", "x.seal", "x.parts", "x.inner", "n"].map(str::to_owned);
        let seal = "0123456789abcdef";
        let mut state = OpaqueState::default();
        for fragment in [
            r#"{"pondering":"ha","other":1,"x":null}"#,
            r#"{"pondering":"ha","x":{"parts":[1],"inner":{"a":"p"},"thought":true}}"#,
            &format!(r#"{{"x":{{"seal":"{seal}","inner":{{"a":"q\n","b":2}}}},"n":1}}"#),
            &format!(r#"{{"pondering":"","x":{{"seal":"{seal}","parts":[ 2 ]}},"n":3}}"#),
        ] {
            let tree = JsonDocument::parse(fragment, 16, NodeBuffer::new()).unwrap();
            state.add(tree.root(), &paths);
        }
        let mut json = JsonWriter::default();
        json.open_object();
        state.write(&mut json);
        json.close_object();
        let expected = format!(
            r#"{{"pondering":"haha","x":{{"parts":[1,2],"inner":{{"a":"pq\n","b":2}},"seal":"{seal}"}},"n":3}}"#
        );
        assert_eq!(String::from_utf8(json.into_bytes()).unwrap(), expected);
    }
}
