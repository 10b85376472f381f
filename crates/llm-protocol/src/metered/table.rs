//! The table of the metered endpoints: what each takes, what its answers hold, and which kind of
//! model serves it.
//!
//! It must not read a body.

use super::content::{
    MeteredContent, MeteredLimits, embedding_tokens, image_tokens, moderation_tokens, no_tokens,
    rerank_tokens, transcription_tokens,
};
use super::sample;
use crate::table_text::names_in;
use crate::usage::Usage;

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
    pub fn as_str(self) -> &'static str {
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
#[derive(Debug)]
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
    pub(super) members: &'static [(&'static str, MemberRule)],
    /// Members of a small request, after `model`.
    pub(super) sample: &'static str,
    /// Members of an answer of which one holds its content.
    pub(super) content: &'static [&'static str],
    /// Forms of an answer beside JSON.
    pub(super) forms: &'static [MeteredForm],
    /// Whether a client plays the answer while it arrives.
    pub(super) plays: bool,
    /// Returns the most tokens of a request, for a model with these limits.
    pub(super) max_tokens: fn(&MeteredContent, &MeteredLimits) -> Usage,
}

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
            true => sample::form(upstream_model, self.sample),
            false => sample::json(upstream_model, self.sample),
        }
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
        self.members.iter().find(is_file).map(|(name, _)| *name)
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
        } else if is_media(kind) && !(self.plays && kind.starts_with("text/")) {
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
    /// Any other value is refused.
    OneOf(&'static [&'static str]),
    /// Refused, for this reason.
    Refused(&'static str),
}

/// What a row says if it says nothing else.
const JSON_ROW: MeteredEndpoint = MeteredEndpoint {
    path: "",
    kind: ModelKind::Chat,
    is_form: false,
    is_of_one_vendor: false,
    has_default_model: false,
    members: &[],
    sample: "",
    content: &[],
    forms: &[],
    plays: false,
    max_tokens: no_tokens,
};

/// All metered endpoints.
pub static ENDPOINTS: [MeteredEndpoint; 13] = [
    MeteredEndpoint {
        path: "/v1/embeddings",
        kind: ModelKind::Embedding,
        members: &[
            ("input", MemberRule::Inputs),
            // Some servers also offer a binary answer, which has no usage.
            ("encoding_format", MemberRule::OneOf(&["float", "base64"])),
            (
                "messages",
                MemberRule::Refused(
                    "Embeddings of messages are not supported: send texts as 'input'.",
                ),
            ),
        ],
        sample: r#""input":"ok""#,
        content: &["data"],
        max_tokens: embedding_tokens,
        ..JSON_ROW
    },
    embed("/v1/embed"),
    embed("/v2/embed"),
    MeteredEndpoint {
        path: "/v1/contextualizedembeddings",
        kind: ModelKind::Embedding,
        is_of_one_vendor: true,
        members: &[("inputs", MemberRule::InputLists)],
        sample: r#""inputs":[["ok"]]"#,
        content: &["data"],
        max_tokens: embedding_tokens,
        ..JSON_ROW
    },
    rerank("/v1/rerank"),
    rerank("/v2/rerank"),
    MeteredEndpoint {
        path: "/v1/moderations",
        kind: ModelKind::Moderation,
        has_default_model: true,
        members: &[("input", MemberRule::Parts)],
        sample: r#""input":"ok""#,
        content: &["results"],
        max_tokens: moderation_tokens,
        ..JSON_ROW
    },
    MeteredEndpoint {
        path: "/v1/images/generations",
        members: &[
            ("prompt", MemberRule::Prompt),
            ("n", MemberRule::Outputs),
            ("output_format", MemberRule::OneOf(&IMAGE_FORMATS)),
            ("svg", MemberRule::Refused(SVG)),
            // Any other mode makes as many images as the model likes.
            (
                "sequential_image_generation",
                MemberRule::OneOf(&["disabled"]),
            ),
        ],
        sample: r#""prompt":"A dot.""#,
        ..IMAGE_ROW
    },
    MeteredEndpoint {
        path: "/v1/images/edits",
        is_form: true,
        members: &[
            ("image", MemberRule::Files),
            ("mask", MemberRule::OptionalFile),
            ("markup", MemberRule::OptionalFile),
            ("prompt", MemberRule::Prompt),
            ("n", MemberRule::Outputs),
            ("output_format", MemberRule::OneOf(&IMAGE_FORMATS)),
            ("svg", MemberRule::Refused(SVG)),
            // Any other mode makes as many images as the model likes.
            (
                "sequential_image_generation",
                MemberRule::OneOf(&["disabled"]),
            ),
        ],
        ..IMAGE_ROW
    },
    MeteredEndpoint {
        path: "/v1/audio/speech",
        kind: ModelKind::Speech,
        members: &[
            ("input", MemberRule::Spoken),
            ("voice", MemberRule::Name),
            ("stream_format", MemberRule::OneOf(&["sse", "audio"])),
        ],
        sample: r#""input":"ok","voice":"alloy""#,
        forms: &[MeteredForm::Media, MeteredForm::Events],
        plays: true,
        ..JSON_ROW
    },
    MeteredEndpoint {
        path: "/v1/audio/transcriptions",
        ..TRANSCRIPTION_ROW
    },
    MeteredEndpoint {
        path: "/v2/audio/transcriptions",
        is_of_one_vendor: true,
        ..TRANSCRIPTION_ROW
    },
    MeteredEndpoint {
        path: "/v1/audio/translations",
        ..TRANSCRIPTION_ROW
    },
];

/// Formats of an image whose tokens the model of the request counts. The others are drawn by
/// another model, which is billed apart.
const IMAGE_FORMATS: [&str; 3] = ["png", "webp", "jpeg"];

/// Names by which servers take the number of images beside `n`, or a member that holds it, in
/// lower case without marks.
const OTHER_COUNTS: [&str; 34] = names_in(include_str!("names.txt"), "numbers of images");

const SVG: &str =
    "Vector images are not supported: another model draws them, at a price of its own.";

const IMAGE_ROW: MeteredEndpoint = MeteredEndpoint {
    kind: ModelKind::Image,
    content: &["data"],
    forms: &[MeteredForm::Events],
    max_tokens: image_tokens,
    ..JSON_ROW
};

const TRANSCRIPTION_ROW: MeteredEndpoint = MeteredEndpoint {
    kind: ModelKind::Transcription,
    is_form: true,
    members: &[
        ("file", MemberRule::Files),
        ("prompt", MemberRule::Hint),
        ("url", MemberRule::Refused(NO_REFERENCE)),
        ("file_url", MemberRule::Refused(NO_REFERENCE)),
        ("file_id", MemberRule::Refused(NO_REFERENCE)),
    ],
    sample: "file",
    content: &["text"],
    forms: &[MeteredForm::Media, MeteredForm::Events],
    max_tokens: transcription_tokens,
    ..JSON_ROW
};

pub(super) const NO_REFERENCE: &str =
    "Media at another place are not supported, because their size is unknown: send the data.";

/// Cohere's own embeddings. The answer has an object with a list of vectors of each type, in the
/// first version also a list alone.
const fn embed(path: &'static str) -> MeteredEndpoint {
    MeteredEndpoint {
        path,
        kind: ModelKind::Embedding,
        is_of_one_vendor: true,
        members: &[
            ("texts", MemberRule::Inputs),
            ("images", MemberRule::Refused(NO_IMAGES)),
            ("inputs", MemberRule::Refused(NO_IMAGES)),
        ],
        sample: r#""texts":["ok"],"input_type":"search_query","embedding_types":["float"]"#,
        content: &["embeddings"],
        max_tokens: embedding_tokens,
        ..JSON_ROW
    }
}

const NO_IMAGES: &str = "Embeddings of images are not supported, because their tokens have a price \
    of their own: send texts as 'texts'.";

/// Cohere serves both versions, Jina the first one, vLLM both. Voyage names the results `data`.
const fn rerank(path: &'static str) -> MeteredEndpoint {
    MeteredEndpoint {
        path,
        kind: ModelKind::Rerank,
        members: &[
            ("query", MemberRule::Query),
            ("documents", MemberRule::Documents),
        ],
        sample: r#""query":"ok","documents":["ok"]"#,
        content: &["results", "data"],
        max_tokens: rerank_tokens,
        ..JSON_ROW
    }
}
