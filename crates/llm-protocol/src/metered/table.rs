//! The table of the metered endpoints: what each takes, what its answers hold, and which kind of
//! model serves it. `metered/table.txt` has the rows, and says what its lines mean. A line that
//! cannot be read is a compile error.
//!
//! It must not read a body.

use super::sample;
use crate::table_text::{equals, names_in, split_at_byte};

/// What a model computes. Each endpoint takes models of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum ModelKind {
    /// Text, over the three protocols.
    #[default]
    Chat,
    Embedding,
    /// Documents, ordered by their relevance to a query.
    Rerank,
    Moderation,
    /// Images, generated or edited.
    Image,
    /// Audio of a spoken text.
    Speech,
    /// The text of audio, in its own language or in English.
    Transcription,
}

impl ModelKind {
    pub const ALL: [Self; 7] = [
        Self::Chat,
        Self::Embedding,
        Self::Rerank,
        Self::Moderation,
        Self::Image,
        Self::Speech,
        Self::Transcription,
    ];

    /// The name in the config and in lists of models.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Embedding => "embedding",
            Self::Rerank => "rerank",
            Self::Moderation => "moderation",
            Self::Image => "image",
            Self::Speech => "speech",
            Self::Transcription => "transcription",
        }
    }

    /// The paths that take models of this kind, as messages name them.
    pub fn paths(self) -> String {
        if self == Self::Chat {
            return "/v1/chat/completions, /v1/messages or /v1/responses".to_owned();
        }
        self.metered_paths().collect::<Vec<_>>().join(" or ")
    }

    /// The paths of the metered endpoints that take models of this kind, without those of a single
    /// vendor; none for chat.
    pub fn metered_paths(self) -> impl Iterator<Item = &'static str> {
        let common = MeteredEndpoint::of_kind(self).filter(|endpoint| !endpoint.is_of_one_vendor);
        common.map(|endpoint| endpoint.path)
    }
}

/// One endpoint: a row of the table.
#[derive(Clone, Copy, Debug)]
pub struct MeteredEndpoint {
    pub path: &'static str,
    pub kind: ModelKind,
    /// Whether the body is a form (`multipart/form-data`), not JSON.
    pub is_form: bool,
    /// Whether only one vendor is known to have it, so that other models of the kind lack it.
    pub is_of_one_vendor: bool,
    /// Whether a body without a model means the first one of the kind that the key may use.
    pub(super) has_default_model: bool,
    /// Members of the body that decide the cost, or that the gateway refuses.
    members: [(&'static str, MemberRule); MAX_MEMBERS],
    members_count: usize,
    /// Members of a small request in JSON, after `model`.
    sample: &'static str,
    /// Members of an answer of which one holds its content, with blanks between them.
    content: &'static str,
    /// Forms of an answer beside JSON.
    forms: &'static [MeteredForm],
}

/// The most members in a row.
const MAX_MEMBERS: usize = 8;

impl MeteredEndpoint {
    /// The endpoints of a kind of models, the most common one first; none for chat.
    pub fn of_kind(kind: ModelKind) -> impl Iterator<Item = &'static Self> {
        ENDPOINTS
            .iter()
            .filter(move |endpoint| endpoint.kind == kind)
    }

    /// Returns a small request to a vendor's model: its content type and its body.
    pub fn sample(&self, upstream_model: &str) -> (&'static str, Vec<u8>) {
        match self.is_form {
            true => sample::form(upstream_model, self.file().unwrap_or_default()),
            false => sample::json(upstream_model, self.sample),
        }
    }

    /// The members that a rule is for.
    pub(super) fn members(&self) -> &[(&'static str, MemberRule)] {
        self.members.get(..self.members_count).unwrap_or_default()
    }

    /// Whether an answer holds its content in this member.
    pub(super) fn has_content_in(&self, name: &[u8]) -> bool {
        let mut members = self.content.split_ascii_whitespace();
        members.any(|known| known.as_bytes() == name)
    }

    /// Whether a client plays the answer while it arrives.
    pub(super) fn plays(&self) -> bool {
        self.kind == ModelKind::Speech
    }

    /// Whether a member that no rule is for says how many outputs a vendor makes, or holds members
    /// that can. `is_count`: its value can be a number.
    pub(super) fn counts_outputs(&self, name: &str, is_count: bool) -> bool {
        let name = name.split('[').next().unwrap_or_default();
        let letters = name.chars().filter(char::is_ascii_alphanumeric);
        let letters = letters.collect::<String>().to_ascii_lowercase();
        let is_known = match letters.as_str() {
            "image" | "images" | "n" => is_count,
            letters => OTHER_COUNTS.contains(&letters),
        };
        self.kind == ModelKind::Image && is_known
    }

    /// The part of a form that has a file, which is nearly all of it.
    pub fn file(&self) -> Option<&'static str> {
        let is_file = |(_, rule): &&(_, MemberRule)| matches!(rule, MemberRule::Files);
        self.members().iter().find(is_file).map(|(name, _)| *name)
    }

    /// Whether an answer can be something else than JSON.
    pub fn has_media(&self) -> bool {
        !self.forms.is_empty()
    }

    /// Returns the form of an answer with this content type, and the content type that the client
    /// gets. What the endpoint does not expect is read as JSON, and fails if it is none: a page of
    /// a proxy must not be billed.
    pub fn answer_form<'t>(&self, content_type: &'t str) -> (MeteredForm, &'t str) {
        let kind = content_type.split(';').next().unwrap_or_default().trim();
        let form = if kind.eq_ignore_ascii_case("text/event-stream") {
            MeteredForm::Events
        } else if is_media(kind) && !(self.plays() && kind.starts_with("text/")) {
            MeteredForm::Media
        } else {
            MeteredForm::Json
        };
        match self.forms.contains(&form) {
            true => (form, content_type),
            false => (MeteredForm::Json, "application/json"),
        }
    }
}

/// Content types of audio, of texts and of subtitles.
fn is_media(kind: &str) -> bool {
    const OTHERS: [&str; 5] = [
        "text/plain",
        "text/vtt",
        "text/srt",
        "application/x-subrip",
        "application/octet-stream",
    ];
    let begin = kind.get(.."audio/".len()).unwrap_or_default();
    begin.eq_ignore_ascii_case("audio/") || OTHERS.iter().any(|own| own.eq_ignore_ascii_case(kind))
}

/// Endpoints are compared by their paths, which are unique.
impl PartialEq for MeteredEndpoint {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for MeteredEndpoint {}

/// The form of an answer, as its content type names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MeteredForm {
    /// One JSON document, and everything that an endpoint does not expect.
    #[default]
    Json,
    /// Server-sent events.
    Events,
    /// Audio, or a text such as subtitles.
    Media,
}

/// How the reader of a request treats a member.
#[derive(Clone, Copy, Debug)]
pub(super) enum MemberRule {
    /// Required: a text, token ids, or an array of texts or of arrays of token ids.
    Inputs,
    /// Required: lists of texts, each embedded in the context of its list.
    InputLists,
    /// Required: as [`Inputs`](Self::Inputs), and parts with a text or an image in them.
    Parts,
    /// Required: a text.
    Query,
    /// Required: an array of texts, or of objects that have texts.
    Documents,
    /// Required: a text that describes an image.
    Prompt,
    /// A text that goes before the text of the audio.
    Hint,
    /// Required: a text, of which each character is spoken.
    Spoken,
    /// Required, in a form: a file, or several in parts of this name or of this name with `[]`.
    Files,
    /// In a form: a file.
    OptionalFile,
    /// A number of outputs, at most 10.
    Outputs,
    /// A text; an object is refused.
    Name,
    /// One of these words, with blanks between them; any other value is refused.
    OneOf(&'static str),
    /// Refused, for this reason.
    Refused(&'static str),
}

/// Names by which servers take the number of images beside `n`, or a member that holds it, in
/// lower case without marks.
const OTHER_COUNTS: [&str; 34] = names_in(include_str!("names.txt"), "numbers of images");

pub(super) const NO_REFERENCE: &str =
    "Media at another place are not supported, because their size is unknown: send the data.";

const TABLE: &str = include_str!("table.txt");

/// All metered endpoints.
pub static ENDPOINTS: [MeteredEndpoint; count_rows(TABLE)] = parse_table(TABLE);

/// What a row says if it says nothing else.
const EMPTY_ROW: MeteredEndpoint = MeteredEndpoint {
    path: "",
    kind: ModelKind::Chat,
    is_form: false,
    is_of_one_vendor: false,
    has_default_model: false,
    members: [("", MemberRule::Name); MAX_MEMBERS],
    members_count: 0,
    sample: "",
    content: "",
    forms: &[],
};

const fn count_rows(mut text: &str) -> usize {
    let mut count = 0;
    while !text.is_empty() {
        let (line, rest) = split_at_byte(text, b'\n');
        if matches!(line.as_bytes(), [b'[', ..]) {
            count += 1;
        }
        text = rest;
    }
    count
}

const fn parse_table<const N: usize>(mut text: &'static str) -> [MeteredEndpoint; N] {
    let (mut rows, mut count) = ([EMPTY_ROW; N], 0);
    while !text.is_empty() {
        let (line, rest) = split_at_byte(text, b'\n');
        match line.as_bytes() {
            [] | [b'#', ..] => {}
            [b'[', ..] => {
                rows[count].path = split_at_byte(line.split_at(1).1, b']').0;
                count += 1;
            }
            [b'l', b'i', b'k', b'e', b' ', path @ ..] => {
                let mut of = 0;
                while !equals(rows[of].path.as_bytes(), path) {
                    of += 1;
                }
                let path = rows[count - 1].path;
                rows[count - 1] = MeteredEndpoint { path, ..rows[of] };
            }
            _ => parse_line(&mut rows[count - 1], line),
        }
        text = rest;
    }
    let mut at = 0;
    while at < N {
        assert!(
            !matches!(rows[at].kind, ModelKind::Chat),
            "a row has no kind"
        );
        at += 1;
    }
    rows
}

const fn parse_line(row: &mut MeteredEndpoint, line: &'static str) {
    match line.as_bytes() {
        b"form" => row.is_form = true,
        b"one vendor" => row.is_of_one_vendor = true,
        b"default model" => row.has_default_model = true,
        b"answers events" => row.forms = &[MeteredForm::Events],
        b"answers media or events" => row.forms = &[MeteredForm::Media, MeteredForm::Events],
        _ => {
            let (key, value) = split_at_byte(line, b' ');
            match key.as_bytes() {
                b"kind" => row.kind = parse_kind(value),
                b"sample" => row.sample = value,
                b"content" => row.content = value,
                _ => {
                    assert!(equals(key.as_bytes(), b"member"), "a line is unknown");
                    let (name, rule) = split_at_byte(value, b' ');
                    row.members[row.members_count] = (name, parse_rule(rule));
                    row.members_count += 1;
                }
            }
        }
    }
}

const fn parse_kind(name: &str) -> ModelKind {
    let mut at = 0;
    while !equals(ModelKind::ALL[at].as_str().as_bytes(), name.as_bytes()) {
        at += 1;
    }
    ModelKind::ALL[at]
}

const fn parse_rule(text: &'static str) -> MemberRule {
    match text.as_bytes() {
        b"inputs" => MemberRule::Inputs,
        b"input_lists" => MemberRule::InputLists,
        b"parts" => MemberRule::Parts,
        b"query" => MemberRule::Query,
        b"documents" => MemberRule::Documents,
        b"prompt" => MemberRule::Prompt,
        b"hint" => MemberRule::Hint,
        b"spoken" => MemberRule::Spoken,
        b"files" => MemberRule::Files,
        b"optional_file" => MemberRule::OptionalFile,
        b"outputs" => MemberRule::Outputs,
        b"name" => MemberRule::Name,
        b"reference" => MemberRule::Refused(NO_REFERENCE),
        _ => {
            let (rule, words) = split_at_byte(text, b' ');
            if equals(rule.as_bytes(), b"one_of") {
                return MemberRule::OneOf(words);
            }
            assert!(equals(rule.as_bytes(), b"refused"), "a rule is unknown");
            MemberRule::Refused(words)
        }
    }
}
