//! A JSON text as a flat list of borrowed tokens, made in one pass: what the translators read.
//!
//! It must not copy, unescape or convert anything by itself: a text, a schema or an image stays the
//! slice that the sender wrote, and whoever wants to look inside asks for it. Explicit `null`
//! equals absent, as both protocols have it. Pass-through does without: it needs no tree.
//!
//! Read next: `protocol/form.rs`, whose parts point into a tree.

use super::scan::{self, Broken, COUNT_MAX, Kind, Scan};
use super::text::Text;
use std::borrow::Cow;

/// The tokens of one text.
#[derive(Debug)]
pub struct Tree<'a> {
    text: &'a str,
    nodes: Vec<Node>,
}

/// The memory of a tree, to be used again for the next one.
pub type Nodes = Vec<Node>;

/// One token. Of an object the children are keys and values in turn.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    kind: Kind,
    start: u32,
    end: u32,
    /// Of a string: bytes of its value in UTF-8; as many as stand between the quotes where nothing
    /// is escaped.
    decoded: u32,
    /// The node behind this one and all that is in it.
    next: u32,
}

impl<'a> Tree<'a> {
    /// Reads `text`, which must hold one JSON value, at most `depth_max` levels deep. `nodes` is
    /// memory to be used again; what was in it is gone.
    ///
    /// # Errors
    /// The text is no JSON, too deep, or larger than 4 GiB.
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

    /// The whole.
    pub fn root(&self) -> Value<'_> {
        Value { tree: self, at: 0 }
    }

    /// Gives the memory back.
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

    /// The string that becomes the node `at`.
    fn string(text: &scan::Text<'_>, at: usize) -> Self {
        Node {
            kind: Kind::String,
            start: index(text.span.start),
            end: index(text.span.end),
            decoded: u32::try_from(text.decoded_bytes()).unwrap_or(u32::MAX),
            next: index(at.saturating_add(1)),
        }
    }

    /// Bytes of what was written, the quotes of a string included.
    fn bytes(&self) -> u32 {
        self.end.saturating_sub(self.start)
    }
}

/// Fits: a text of 4 GiB and more was refused.
fn index(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// One value of a tree.
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

    /// The token as it was written, white space inside included.
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

    /// The member of that name, the last one where it is given twice; `None` for null, and for what
    /// is no object.
    pub fn get(self, name: &str) -> Option<Value<'a>> {
        // A name without escapes is as long as it is written: most others are told by that.
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

    /// The members of an object with their keys, nulls included; nothing for any other value.
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

    /// The items of an array, nulls included; nothing for any other value.
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

    /// The string token, if it is one.
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

    /// The string's value, if it is one.
    pub fn string(self) -> Option<Cow<'a, str>> {
        self.text().map(Text::into_value)
    }

    /// It is this string.
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

    /// A count: plain digits, at most 2^53.
    pub fn count(self) -> Option<u64> {
        let raw = self.raw();
        if self.kind() != Kind::Number || !raw.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        raw.parse().ok().filter(|count| *count <= COUNT_MAX)
    }

    /// Any number, as near as a double comes. For rules about ranges; what is sent on is
    /// [`Value::raw`].
    pub fn number(self) -> Option<f64> {
        if self.kind() != Kind::Number {
            return None;
        }
        self.raw().parse().ok()
    }
}

/// Of an object.
#[derive(Clone, Copy, Debug)]
pub struct Members<'a> {
    tree: &'a Tree<'a>,
    at: u32,
    end: u32,
}

impl<'a> Members<'a> {
    /// The next member's key.
    fn key(&self) -> Option<&'a Node> {
        if self.at < self.end {
            self.tree.nodes.get(self.at as usize)
        } else {
            None
        }
    }

    /// The next member's value; goes on to the one behind it.
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

/// Of an array.
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
