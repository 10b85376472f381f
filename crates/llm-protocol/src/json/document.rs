//! Parses a JSON text in one pass into a flat list of borrowed tokens. The translators read it.
//!
//! This file must not copy, unescape or convert a value until a caller asks for it: a text, a
//! schema or an image remains the slice that the sender wrote. Explicit `null` counts as absent, as
//! in both protocols. Passthrough uses it only to repair calls.
//!
//! Read next: `ir.rs`, whose parts point into a document.

use super::scanner::{self, JsonError, JsonKind, JsonScanner, MAX_COUNT, ScanResult};
use super::string::JsonStr;
use std::borrow::Cow;

/// The tokens of one JSON text.
#[derive(Debug)]
pub struct JsonDocument<'a> {
    text: &'a str,
    nodes: Vec<JsonNode>,
}

/// The node buffer of a document, for reuse by the next one.
pub type NodeBuffer = Vec<JsonNode>;

/// One token. The children of an object are its keys and values, alternating.
#[derive(Clone, Copy, Debug)]
pub struct JsonNode {
    kind: JsonKind,
    start: u32,
    end: u32,
    /// For a string: length of its value in UTF-8 bytes. Without escapes it equals the length
    /// between the quotes.
    decoded: u32,
    /// Index of the node after this one and all its descendants.
    next: u32,
}

impl<'a> JsonDocument<'a> {
    /// Parses `text`, which must hold one JSON value, at most `depth_max` levels deep. Reuses the
    /// memory of `nodes` and clears it first.
    ///
    /// # Errors
    /// Returns an error if the text is not JSON, is too deep, or is larger than 4 GiB.
    pub(crate) fn parse(text: &'a str, depth_max: u32, mut nodes: NodeBuffer) -> ScanResult<Self> {
        nodes.clear();
        if u32::try_from(text.len()).is_err() {
            return Err(JsonError::TooDeep);
        }
        let mut scan = JsonScanner::new(text, depth_max);
        read_value(&mut scan, &mut nodes)?;
        scan.end()?;
        Ok(JsonDocument { text, nodes })
    }

    pub fn root(&self) -> JsonValue<'_> {
        JsonValue { tree: self, at: 0 }
    }

    pub fn into_nodes(self) -> NodeBuffer {
        self.nodes
    }
}

fn read_value(scan: &mut JsonScanner<'_>, nodes: &mut NodeBuffer) -> ScanResult {
    let kind = scan.kind()?;
    if kind == JsonKind::String {
        nodes.push(JsonNode::string(&scan.string()?, nodes.len()));
        return Ok(());
    }
    let at = nodes.len();
    nodes.push(JsonNode::NULL);
    let start = scan.position();
    match kind {
        JsonKind::Object => scan.object(|scan, key| {
            nodes.push(JsonNode::string(&key, nodes.len()));
            read_value(scan, nodes)
        })?,
        JsonKind::Array => scan.array(|scan| read_value(scan, nodes))?,
        _ => scan.skip()?,
    }
    let span = scan.span_from(start);
    let next = to_index(nodes.len());
    if let Some(node) = nodes.get_mut(at) {
        *node = JsonNode {
            kind,
            start: to_index(span.start),
            end: to_index(span.end),
            decoded: 0,
            next,
        };
    }
    Ok(())
}

impl JsonNode {
    const NULL: JsonNode = JsonNode {
        kind: JsonKind::Null,
        start: 0,
        end: 0,
        decoded: 0,
        next: u32::MAX,
    };

    /// Builds the node of a string that is stored at index `at`.
    fn string(text: &scanner::StringToken<'_>, at: usize) -> Self {
        JsonNode {
            kind: JsonKind::String,
            start: to_index(text.span.start),
            end: to_index(text.span.end),
            decoded: u32::try_from(text.decoded_bytes()).unwrap_or(u32::MAX),
            next: to_index(at.saturating_add(1)),
        }
    }

    /// Returns the length of the token in bytes, including the quotes of a string.
    fn bytes(&self) -> u32 {
        self.end.saturating_sub(self.start)
    }
}

/// Converts an index. The conversion cannot fail, because a text of 4 GiB or more was refused.
fn to_index(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

#[derive(Clone, Copy)]
pub struct JsonValue<'a> {
    tree: &'a JsonDocument<'a>,
    at: u32,
}

impl std::fmt::Debug for JsonValue<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.raw())
    }
}

impl<'a> JsonValue<'a> {
    fn node(self) -> JsonNode {
        self.tree
            .nodes
            .get(self.at as usize)
            .copied()
            .unwrap_or(JsonNode::NULL)
    }

    fn slice(self, node: JsonNode) -> &'a str {
        self.tree
            .text
            .get(node.start as usize..node.end as usize)
            .unwrap_or("null")
    }

    fn kind(self) -> JsonKind {
        self.node().kind
    }

    /// Returns the token as written, including inner white space.
    pub fn raw(self) -> &'a str {
        self.slice(self.node())
    }

    pub fn is_null(self) -> bool {
        self.kind() == JsonKind::Null
    }

    pub fn is_object(self) -> bool {
        self.kind() == JsonKind::Object
    }

    pub fn is_array(self) -> bool {
        self.kind() == JsonKind::Array
    }

    pub fn is_string(self) -> bool {
        self.kind() == JsonKind::String
    }

    /// Returns the member of that name, or the last one if there are several. Returns `None` for
    /// null, and if the value is not an object.
    pub fn get(self, name: &str) -> Option<JsonValue<'a>> {
        // A name without escapes has a known length, so comparing lengths skips most other keys.
        let mut found = None;
        let (mut members, bytes) = (self.members(), name.len().saturating_add(2));
        while let Some(key) = members.peek_key() {
            let may_be =
                key.bytes() as usize == bytes || key.decoded.saturating_add(2) < key.bytes();
            let (key, value) = (
                JsonValue {
                    tree: self.tree,
                    at: members.at,
                },
                members.next_value(),
            );
            if may_be && key.is(name) {
                found = Some(value);
            }
        }
        found.filter(|value| !value.is_null())
    }

    /// Returns the members of an object with their keys, including nulls. Any other value has no
    /// members.
    pub fn members(self) -> ObjectMembers<'a> {
        let node = self.node();
        let end = if node.kind == JsonKind::Object {
            node.next
        } else {
            0
        };
        ObjectMembers {
            tree: self.tree,
            at: self.at.saturating_add(1),
            end,
        }
    }

    pub fn find<const N: usize>(self, path: [&str; N]) -> Option<JsonValue<'a>> {
        path.iter().try_fold(self, |value, key| value.get(key))
    }

    /// Returns the string token under this key.
    pub fn text_of(self, key: &str) -> Option<JsonStr<'a>> {
        self.get(key)?.text()
    }

    /// Returns the string token under this key, unless it is empty.
    pub fn filled_text(self, key: &str) -> Option<JsonStr<'a>> {
        self.text_of(key).filter(|text| !text.is_empty())
    }

    pub fn string_of(self, key: &str) -> Option<Cow<'a, str>> {
        self.get(key)?.string()
    }

    /// Returns whether the value under this key is the string `expected`.
    pub fn member_is(self, key: &str, expected: &str) -> bool {
        self.get(key).is_some_and(|value| value.is(expected))
    }

    /// Returns the items of the array under this key, or none without an array.
    pub fn items_of(self, key: &str) -> impl Iterator<Item = JsonValue<'a>> + use<'a> {
        self.get(key).into_iter().flat_map(JsonValue::items)
    }

    /// Returns the items of an array, including nulls. Any other value has no items.
    pub fn items(self) -> ArrayItems<'a> {
        let node = self.node();
        let end = if node.kind == JsonKind::Array {
            node.next
        } else {
            0
        };
        ArrayItems {
            tree: self.tree,
            at: self.at.saturating_add(1),
            end,
        }
    }

    /// Returns the string token, if the value is a string.
    pub fn text(self) -> Option<JsonStr<'a>> {
        let node = self.node();
        if node.kind != JsonKind::String {
            return None;
        }
        let inside = self
            .tree
            .text
            .get(node.start as usize + 1..(node.end as usize).saturating_sub(1));
        Some(JsonStr::from_measured_token(
            inside.unwrap_or_default(),
            node.decoded,
        ))
    }

    /// Returns the string's value, if the value is a string.
    pub fn string(self) -> Option<Cow<'a, str>> {
        self.text().map(JsonStr::into_value)
    }

    pub fn is(self, expected: &str) -> bool {
        self.text().is_some_and(|text| text.is(expected))
    }

    pub fn bool(self) -> Option<bool> {
        match self.kind() {
            JsonKind::True => Some(true),
            JsonKind::False => Some(false),
            _ => None,
        }
    }

    /// Returns the value as a count, which has only digits and is at most 2^53.
    pub fn count(self) -> Option<u64> {
        let raw = self.raw();
        if self.kind() != JsonKind::Number || !raw.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        raw.parse().ok().filter(|count| *count <= MAX_COUNT)
    }

    /// Returns any number as the nearest `f64`, for range checks. To forward a number, use
    /// [`JsonValue::raw`].
    pub fn number(self) -> Option<f64> {
        if self.kind() != JsonKind::Number {
            return None;
        }
        self.raw().parse().ok()
    }
}

/// Iterator over the members of an object.
#[derive(Clone, Copy, Debug)]
pub struct ObjectMembers<'a> {
    tree: &'a JsonDocument<'a>,
    at: u32,
    end: u32,
}

impl<'a> ObjectMembers<'a> {
    /// Returns the next member's key without advancing.
    fn peek_key(&self) -> Option<&'a JsonNode> {
        if self.at < self.end {
            self.tree.nodes.get(self.at as usize)
        } else {
            None
        }
    }

    /// Returns the next member's value and advances to the member after it.
    fn next_value(&mut self) -> JsonValue<'a> {
        let value = JsonValue {
            tree: self.tree,
            at: self.at.saturating_add(1),
        };
        self.at = value.node().next;
        value
    }
}

impl<'a> Iterator for ObjectMembers<'a> {
    type Item = (JsonStr<'a>, JsonValue<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        self.peek_key()?;
        let key = JsonValue {
            tree: self.tree,
            at: self.at,
        }
        .text()?;
        Some((key, self.next_value()))
    }
}

/// Iterator over the items of an array.
#[derive(Clone, Copy, Debug)]
pub struct ArrayItems<'a> {
    tree: &'a JsonDocument<'a>,
    at: u32,
    end: u32,
}

impl<'a> Iterator for ArrayItems<'a> {
    type Item = JsonValue<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let value = JsonValue {
            tree: self.tree,
            at: self.at,
        };
        self.at = value.node().next;
        Some(value)
    }
}
