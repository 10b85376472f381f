//! An answer that is one JSON document: every byte passes, except that the model's name becomes
//! that of the catalog, and except the last one, which is kept back.
//!
//! An answer can have 33 MB (2 048 vectors of 3 072 numbers), so the scanner keeps no more of it
//! than the members that report the usage or an error.

use crate::json::edit;
use crate::metered::terms::{MeteredReport, MeteredTerms};
use crate::vendor_response::UpstreamError;

/// Members whose value is kept.
const KEPT: [&str; 4] = ["usage", "meta", "error", "duration"];

/// Maximum size of a kept value, in bytes. A larger one counts as absent.
const MAX_KEPT_BYTES: usize = 65_536;

/// Maximum size of a member's name that can be one of the known names, in bytes: the longest of
/// them, with all its letters escaped.
const MAX_NAME_BYTES: usize = 6 * "embeddings".len();

/// Most arrays and objects that may be open at once: the bits of [`JsonAnswer::open`].
const MAX_DEPTH: u32 = 128;

/// An answer that is being read.
#[derive(Debug)]
pub(super) struct JsonAnswer {
    terms: MeteredTerms,
    /// The catalog's id of the model, as a JSON string.
    model: String,
    place: Place,
    depth: u32,
    /// One bit for each open array or object, the innermost lowest: 1 is an object.
    open: u128,
    string: StringState,
    name: Vec<u8>,
    role: MemberRole,
    has_content: bool,
    /// Objects in the array that holds the content.
    items: u64,
    kept: [Vec<u8>; KEPT.len()],
}

/// Where in the document's own object the reader is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// Before the document.
    Start,
    /// After the opening brace.
    First,
    /// Where a member's name follows, or is being read.
    Name,
    Colon,
    /// Before a member's value.
    Value,
    /// In a member's string, array or object.
    InValue,
    /// In a number, or in `true`, `false` or `null`.
    Word,
    /// After a member's value.
    After,
    /// After the document.
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StringState {
    Outside,
    Inside,
    /// After a backslash.
    Escape,
}

/// What the current member is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MemberRole {
    Other,
    /// Not passed on: the catalog's id takes its place.
    Model,
    Content,
    /// Kept under this index of [`KEPT`].
    Kept(usize),
}

impl JsonAnswer {
    /// Creates the reader of an answer of the model that the catalog calls `model`.
    pub(super) fn new(terms: MeteredTerms, model: &str) -> Self {
        Self {
            terms,
            model: edit::json_string(model),
            place: Place::Start,
            depth: 0,
            open: 0,
            string: StringState::Outside,
            name: Vec::new(),
            role: MemberRole::Other,
            has_content: false,
            items: 0,
            kept: Default::default(),
        }
    }

    /// Whether the whole document has been read. Its last byte is [`JsonAnswer::LAST`].
    pub(super) fn is_complete(&self) -> bool {
        self.place == Place::End
    }

    /// The last byte of an answer, which [`JsonAnswer::push`] keeps back.
    pub(super) const LAST: u8 = b'}';

    /// Reads a piece of the body, and appends to `out` what the client may have of it. Drops what
    /// follows the document.
    ///
    /// # Errors
    /// Returns [`UpstreamError::NotJson`] if the body is not a JSON object.
    pub(super) fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), UpstreamError> {
        // Where the bytes begin that were not copied yet, and those of a kept value.
        let is_dropped = self.role == MemberRole::Model;
        let (mut uncopied, mut kept) = (if is_dropped { piece.len() } else { 0 }, 0);
        let mut at = 0;
        while let Some(&byte) = piece.get(at) {
            if self.string != StringState::Outside {
                at = self.read_string(piece, at);
                if self.string == StringState::Outside && self.depth == 1 {
                    if self.role == MemberRole::Model {
                        uncopied = at;
                        self.role = MemberRole::Other;
                    }
                    self.place = match self.place {
                        Place::Name => Place::Colon,
                        _ => Place::After,
                    };
                }
                continue;
            }
            if self.depth > 1 {
                at = self.read_nested(piece, at)?;
                continue;
            }
            match (self.place, byte) {
                (Place::End, _) => break,
                (Place::Word, b' ' | b'\n' | b'\r' | b'\t') => self.place = Place::After,
                (_, b' ' | b'\n' | b'\r' | b'\t') => {}
                (Place::Start, 0xef | 0xbb | 0xbf) if out.is_empty() => uncopied = at + 1,
                (Place::Start, b'{') => {
                    self.open(true)?;
                    self.place = Place::First;
                }
                (Place::First | Place::Name, b'"') => {
                    self.name.clear();
                    self.place = Place::Name;
                    self.string = StringState::Inside;
                }
                (Place::Colon, b':') => self.place = Place::Value,
                (Place::Value, _) => {
                    self.place = match byte {
                        b'"' | b'[' | b'{' => Place::InValue,
                        _ if is_of_word(byte) => Place::Word,
                        _ => return Err(UpstreamError::NotJson),
                    };
                    self.role = self.role_of_member(byte);
                    match self.role {
                        MemberRole::Model => {
                            out.extend_from_slice(piece.get(uncopied..at).unwrap_or_default());
                            out.extend_from_slice(self.model.as_bytes());
                            uncopied = piece.len();
                        }
                        MemberRole::Kept(index) => {
                            kept = at;
                            if let Some(value) = self.kept.get_mut(index) {
                                value.clear();
                            }
                        }
                        MemberRole::Content | MemberRole::Other => {}
                    }
                    self.begin(byte)?;
                }
                (Place::Word | Place::After, b',') => {
                    self.keep(piece.get(kept..at));
                    self.place = Place::Name;
                    self.role = MemberRole::Other;
                }
                (Place::First | Place::Word | Place::After, b'}') => {
                    self.keep(piece.get(kept..at));
                    self.close(true)?;
                    self.place = Place::End;
                    out.extend_from_slice(piece.get(uncopied..at).unwrap_or_default());
                    return Ok(());
                }
                (Place::Word, _) if is_of_word(byte) => {}
                _ => return Err(UpstreamError::NotJson),
            }
            at += 1;
        }
        if self.place != Place::End {
            self.keep(piece.get(kept..));
            out.extend_from_slice(piece.get(uncopied..).unwrap_or_default());
        }
        Ok(())
    }

    /// Returns what the complete answer reports.
    ///
    /// # Errors
    /// Returns an error if the answer reports one, or has no content.
    pub(super) fn report(&self) -> Result<MeteredReport, UpstreamError> {
        let kept = |name: &str| {
            let index = KEPT.iter().position(|kept| *kept == name)?;
            self.kept.get(index).map(Vec::as_slice)
        };
        let error = kept("error").map(<[u8]>::trim_ascii);
        if let Some(error) = error.filter(|error| !error.is_empty() && *error != b"null") {
            let document = [b"{\"error\":", error, b"}"].concat();
            return Err(UpstreamError::from_error_body(&document));
        }
        if !self.has_content {
            return Err(UpstreamError::Empty);
        }
        let mut report = MeteredReport {
            items: self.items,
            ..MeteredReport::default()
        };
        report.add(&self.terms, |name| serde_json::from_slice(kept(name)?).ok());
        Ok(report)
    }

    /// Reads on in a string. Returns the position after what was read.
    fn read_string(&mut self, piece: &[u8], at: usize) -> usize {
        let rest = piece.get(at..).unwrap_or_default();
        if self.string == StringState::Escape {
            self.string = StringState::Inside;
            self.push_name(rest.get(..1));
            return at + 1;
        }
        let length = memchr::memchr2(b'"', b'\\', rest);
        self.push_name(rest.get(..length.unwrap_or(rest.len())));
        let Some(length) = length else {
            return piece.len();
        };
        self.string = match rest.get(length) {
            Some(b'"') => StringState::Outside,
            _ => {
                self.push_name(Some(b"\\"));
                StringState::Escape
            }
        };
        at + length + 1
    }

    fn push_name(&mut self, bytes: Option<&[u8]>) {
        if self.place == Place::Name && self.name.len() <= MAX_NAME_BYTES {
            let bytes = bytes.unwrap_or_default();
            let bytes = bytes.get(..MAX_NAME_BYTES + 1).unwrap_or(bytes);
            self.name.extend_from_slice(bytes);
        }
    }

    /// Reads on in a member's array or object, up to the next byte that opens or closes something.
    /// Returns the position after what was read.
    fn read_nested(&mut self, piece: &[u8], at: usize) -> Result<usize, UpstreamError> {
        let rest = piece.get(at..).unwrap_or_default();
        let is_plain = |byte: &u8| !matches!(byte, b'"' | b'[' | b']' | b'{' | b'}');
        let length = rest.iter().take_while(|byte| is_plain(byte)).count();
        if self.role == MemberRole::Content && !self.has_content {
            let is_space = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
            let begins = rest.iter().take(length + 1).find(|byte| !is_space(byte));
            self.has_content = begins.is_some_and(|byte| !matches!(byte, b']' | b'}'));
        }
        if let Some(&byte) = rest.get(length) {
            match byte {
                b']' | b'}' => self.close(byte == b'}')?,
                _ => self.begin(byte)?,
            }
        }
        Ok(at + length + 1)
    }

    /// What the member whose name was read is for. `first`: the first byte of its value.
    fn role_of_member(&self, first: u8) -> MemberRole {
        let is_escaped = self.name.contains(&b'\\');
        let quoted = || [b"\"", self.name.as_slice(), b"\""].concat();
        let decoded: Option<String> = is_escaped
            .then(|| serde_json::from_slice(&quoted()).ok())
            .flatten();
        let name = decoded.as_deref().map_or(&self.name[..], str::as_bytes);
        if name == b"model" && first == b'"' {
            return MemberRole::Model;
        }
        let is_of_form = match first {
            b'[' => true,
            b'"' => name == b"text",
            // Cohere's vectors, by their type.
            b'{' => name == b"embeddings",
            _ => false,
        };
        if is_of_form && self.terms.endpoint.has_content_in(name) {
            return MemberRole::Content;
        }
        let kept = KEPT.iter().position(|kept| kept.as_bytes() == name);
        kept.map_or(MemberRole::Other, MemberRole::Kept)
    }

    /// Begins a value by its first byte.
    fn begin(&mut self, byte: u8) -> Result<(), UpstreamError> {
        match byte {
            b'"' => {
                self.string = StringState::Inside;
                // A text may be empty, such as the transcription of silence.
                self.has_content |= self.role == MemberRole::Content;
            }
            b'[' | b'{' => self.open(byte == b'{')?,
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self, is_object: bool) -> Result<(), UpstreamError> {
        if self.depth == MAX_DEPTH {
            return Err(UpstreamError::NotJson);
        }
        if self.depth == 2 && is_object && self.role == MemberRole::Content {
            self.items = self.items.saturating_add(1);
        }
        self.depth += 1;
        self.open = self.open << 1 | u128::from(is_object);
        Ok(())
    }

    fn close(&mut self, is_object: bool) -> Result<(), UpstreamError> {
        if (self.open & 1 == 1) != is_object {
            return Err(UpstreamError::NotJson);
        }
        self.depth = self.depth.saturating_sub(1);
        self.open >>= 1;
        if self.depth == 1 {
            self.place = Place::After;
        }
        Ok(())
    }

    /// Keeps these bytes, if the current value is one to keep.
    fn keep(&mut self, bytes: Option<&[u8]>) {
        let MemberRole::Kept(index) = self.role else {
            return;
        };
        let Some(value) = self.kept.get_mut(index) else {
            return;
        };
        let bytes = bytes.unwrap_or_default();
        match value.len().saturating_add(bytes.len()) <= MAX_KEPT_BYTES {
            true => value.extend_from_slice(bytes),
            // What is left of it is no JSON.
            false => value.clear(),
        }
    }
}

/// Whether a number, `true`, `false` or `null` can have this byte. The gateway reads no closer.
fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_digit() || byte.is_ascii_lowercase() || matches!(byte, b'+' | b'-' | b'.' | b'E')
}
