//! A JSON text as a flat list of borrowed tokens, built in one pass. The translators read it.
//!
//! It must not copy, unescape or convert on its own: a text, a schema or an image remains the slice
//! that the sender wrote, and a caller that needs the value asks for it. Explicit `null` counts as
//! absent, as in both protocols. Passthrough does not use it.
//!
//! Read next: `protocol/ir.rs`, whose parts point into a document.

use super::scan::{self, Broken, COUNT_MAX, Kind, Scan};
use super::text::Text;
use std::borrow::Cow;

/// The tokens of one JSON text.
#[derive(Debug)]
pub struct Tree<'a> {
    text: &'a str,
    nodes: Vec<Node>,
}

/// The node buffer of a document, for reuse by the next one.
pub type Nodes = Vec<Node>;

/// One token. The children of an object are keys and values in turn.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    kind: Kind,
    start: u32,
    end: u32,
    /// For a string: length of its value in UTF-8 bytes. It equals the length between the quotes if
    /// the string has no escapes.
    decoded: u32,
    /// Index of the node after this one and all its descendants.
    next: u32,
}

impl<'a> Tree<'a> {
    /// Parses `text`, which must hold one JSON value, at most `depth_max` levels deep. Reuses the
    /// memory of `nodes` and clears it first.
    ///
    /// # Errors
    /// Returns an error if the text is not JSON, is too deep, or is larger than 4 GiB.
    pub(crate) fn read(text: &'a str, depth_max: u32, mut nodes: Nodes) -> Result<Self, Broken> {
        nodes.clear();
        if u32::try_from(text.len()).is_err() {
            return Err(Broken::TooDeep);
        }
        let mut scan = Scan::new(text, depth_max);
        value(&mut scan, &mut nodes)?;
        scan.end()?;
        Ok(Tree { text, nodes })
    }

    /// Returns the root value.
    pub fn root(&self) -> Value<'_> {
        Value { tree: self, at: 0 }
    }

    /// Returns the node buffer for reuse.
    pub fn into_nodes(self) -> Nodes {
        self.nodes
    }
}

fn value(scan: &mut Scan<'_>, nodes: &mut Nodes) -> Result<(), Broken> {
    let kind = scan.kind()?;
    if kind == Kind::String {
        nodes.push(Node::string(&scan.string()?, nodes.len()));
        return Ok(());
    }
    let at = nodes.len();
    nodes.push(Node::NULL);
    let span = match kind {
        Kind::Object => scan.object(|scan, key| {
            nodes.push(Node::string(&key, nodes.len()));
            value(scan, nodes)
        })?,
        Kind::Array => scan.array(|scan| value(scan, nodes))?,
        _ => scan.skip()?,
    };
    let next = index(nodes.len());
    if let Some(node) = nodes.get_mut(at) {
        *node = Node {
            kind,
            start: index(span.start),
            end: index(span.end),
            decoded: 0,
            next,
        };
    }
    Ok(())
}

impl Node {
    const NULL: Node = Node {
        kind: Kind::Null,
        start: 0,
        end: 0,
        decoded: 0,
        next: u32::MAX,
    };

    /// Builds the node of a string that is stored at index `at`.
    fn string(text: &scan::Text<'_>, at: usize) -> Self {
        Node {
            kind: Kind::String,
            start: index(text.span.start),
            end: index(text.span.end),
            decoded: u32::try_from(text.decoded_bytes()).unwrap_or(u32::MAX),
            next: index(at.saturating_add(1)),
        }
    }

    /// Length of the token in bytes, including the quotes of a string.
    fn bytes(&self) -> u32 {
        self.end.saturating_sub(self.start)
    }
}

/// Converts an index. It always fits, because a text of 4 GiB or more was refused.
fn index(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// One value of a document.
#[derive(Clone, Copy)]
pub struct Value<'a> {
    tree: &'a Tree<'a>,
    at: u32,
}

impl std::fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.raw())
    }
}

impl<'a> Value<'a> {
    fn node(self) -> Node {
        self.tree
            .nodes
            .get(self.at as usize)
            .copied()
            .unwrap_or(Node::NULL)
    }

    fn slice(self, node: Node) -> &'a str {
        self.tree
            .text
            .get(node.start as usize..node.end as usize)
            .unwrap_or("null")
    }

    pub(crate) fn kind(self) -> Kind {
        self.node().kind
    }

    /// Returns the token as written, including inner white space.
    pub fn raw(self) -> &'a str {
        self.slice(self.node())
    }

    pub fn is_null(self) -> bool {
        self.kind() == Kind::Null
    }

    pub fn is_object(self) -> bool {
        self.kind() == Kind::Object
    }

    pub fn is_array(self) -> bool {
        self.kind() == Kind::Array
    }

    pub fn is_string(self) -> bool {
        self.kind() == Kind::String
    }

    /// Returns the member of that name, or the last one if there are several. Returns `None` for
    /// null, and if the value is not an object.
    pub fn get(self, name: &str) -> Option<Value<'a>> {
        // A name without escapes has a known length: comparing lengths skips most other keys.
        let mut found = None;
        let (mut members, bytes) = (self.members(), name.len().saturating_add(2));
        while let Some(key) = members.key() {
            let may_be =
                key.bytes() as usize == bytes || key.decoded.saturating_add(2) < key.bytes();
            let (key, value) = (
                Value {
                    tree: self.tree,
                    at: members.at,
                },
                members.step(),
            );
            if may_be && key.is(name) {
                found = Some(value);
            }
        }
        found.filter(|value| !value.is_null())
    }

    /// Returns the members of an object with their keys, including nulls; nothing for any other
    /// value.
    pub fn members(self) -> Members<'a> {
        let node = self.node();
        let end = if node.kind == Kind::Object {
            node.next
        } else {
            0
        };
        Members {
            tree: self.tree,
            at: self.at.saturating_add(1),
            end,
        }
    }

    /// Returns the items of an array, including nulls; nothing for any other value.
    pub fn items(self) -> Items<'a> {
        let node = self.node();
        let end = if node.kind == Kind::Array {
            node.next
        } else {
            0
        };
        Items {
            tree: self.tree,
            at: self.at.saturating_add(1),
            end,
        }
    }

    /// Returns the string token, if the value is a string.
    pub fn text(self) -> Option<Text<'a>> {
        let node = self.node();
        if node.kind != Kind::String {
            return None;
        }
        let inside = self
            .tree
            .text
            .get(node.start as usize + 1..(node.end as usize).saturating_sub(1));
        Some(Text::counted(inside.unwrap_or_default(), node.decoded))
    }

    /// Returns the string's value, if the value is a string.
    pub fn string(self) -> Option<Cow<'a, str>> {
        self.text().map(Text::into_value)
    }

    /// Returns whether the value is the string `wanted`.
    pub fn is(self, wanted: &str) -> bool {
        self.text().is_some_and(|text| text.is(wanted))
    }

    pub fn bool(self) -> Option<bool> {
        match self.kind() {
            Kind::True => Some(true),
            Kind::False => Some(false),
            _ => None,
        }
    }

    /// Returns the value as a count: digits only, at most 2^53.
    pub fn count(self) -> Option<u64> {
        let raw = self.raw();
        if self.kind() != Kind::Number || !raw.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        raw.parse().ok().filter(|count| *count <= COUNT_MAX)
    }

    /// Returns any number as the nearest `f64`, for range checks. To forward a number, use
    /// [`JsonValue::raw`].
    pub fn number(self) -> Option<f64> {
        if self.kind() != Kind::Number {
            return None;
        }
        self.raw().parse().ok()
    }
}

/// Iterator over the members of an object.
#[derive(Clone, Copy, Debug)]
pub struct Members<'a> {
    tree: &'a Tree<'a>,
    at: u32,
    end: u32,
}

impl<'a> Members<'a> {
    /// Returns the next member's key without advancing.
    fn key(&self) -> Option<&'a Node> {
        if self.at < self.end {
            self.tree.nodes.get(self.at as usize)
        } else {
            None
        }
    }

    /// Returns the next member's value and advances to the member after it.
    fn step(&mut self) -> Value<'a> {
        let value = Value {
            tree: self.tree,
            at: self.at.saturating_add(1),
        };
        self.at = value.node().next;
        value
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = (Text<'a>, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        self.key()?;
        let key = Value {
            tree: self.tree,
            at: self.at,
        }
        .text()?;
        Some((key, self.step()))
    }
}

/// Iterator over the items of an array.
#[derive(Clone, Copy, Debug)]
pub struct Items<'a> {
    tree: &'a Tree<'a>,
    at: u32,
    end: u32,
}

impl<'a> Iterator for Items<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let value = Value {
            tree: self.tree,
            at: self.at,
        };
        self.at = value.node().next;
        Some(value)
    }
}
