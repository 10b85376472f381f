//! Lists the APIs of OpenAI, Anthropic and similar vendors that the gateway does not serve, by
//! path. A client that calls one of them has the right address, so it needs another error than a
//! client with a wrong address.
//!
//! Read next: `failure/constructors.rs`.

/// List of the endpoints that the gateway serves, for messages.
pub(super) const SERVED: &str = "POST /v1/chat/completions, /v1/messages, \
    /v1/messages/count_tokens, /v1/responses, /v1/responses/input_tokens, /v1/completions, \
    /v1/fim/completions, /v1/embeddings, /v1/embed, /v2/embed, /v1/contextualizedembeddings, \
    /v1/rerank, /v2/rerank, /v1/moderations, /v1/images/generations, /v1/images/edits, \
    /v1/audio/speech, /v1/audio/transcriptions, /v2/audio/transcriptions and \
    /v1/audio/translations, and GET /v1/models";

/// Paths below `/v1`, each with the name of its API. An entry that ends in `/` matches longer paths
/// only; any other entry also matches the path itself.
const UNSERVED: &[(&str, &str)] = &[
    // Paths of OpenAI.
    ("edits", "edits"),
    ("images/variations", "variations of images"),
    ("audio/voices", "voices"),
    ("audio/voice_consents", "voices"),
    ("videos", "videos"),
    ("realtime", "realtime sessions"),
    ("files", "files"),
    ("uploads", "uploads"),
    ("batches", "batches"),
    ("fine_tuning", "fine-tuning"),
    ("fine-tunes", "fine-tuning"),
    ("vector_stores", "vector stores"),
    ("assistants", "assistants"),
    ("threads", "assistants"),
    ("conversations", "stored conversations"),
    ("chat/completions/", "stored completions"),
    ("responses/compact", "compaction of responses"),
    ("responses/", "stored responses"),
    ("containers", "containers"),
    ("evals", "evals"),
    ("chatkit", "ChatKit"),
    ("engines", "engines"),
    ("organization", "the administration of an organization"),
    // Paths of Anthropic.
    ("messages/batches", "batches"),
    ("complete", "the older text completions"),
    ("skills", "skills"),
    ("organizations", "the administration of an organization"),
    ("agents", "managed agents"),
    ("sessions", "managed agents"),
    ("environments", "managed agents"),
    // Paths of other vendors.
    ("score", "reranking"),
    ("ocr", "OCR"),
];

/// Returns the name of the API to which this path belongs, if the gateway does not serve it. The
/// path may begin with any number of `/v1`.
pub(super) fn unserved_api(path: &str) -> Option<&'static str> {
    let mut below = path;
    while let Some(rest) = below
        .strip_prefix("/v1")
        .filter(|rest| rest.starts_with('/'))
    {
        below = rest;
    }
    let below = below.strip_prefix('/')?;
    UNSERVED
        .iter()
        .find(|(known, _)| {
            below.strip_prefix(known).is_some_and(|rest| {
                let is_longer = !rest.is_empty();
                if known.ends_with('/') {
                    is_longer
                } else {
                    !is_longer || rest.starts_with('/')
                }
            })
        })
        .map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::CompletionsApi;

    #[test]
    fn what_is_served_names_every_endpoint_beyond_chat() {
        let metered = crate::metered::ENDPOINTS.iter().map(|row| row.path);
        let completions = CompletionsApi::ALL.map(CompletionsApi::path);
        for path in metered.chain(completions) {
            assert!(SERVED.contains(path), "{path}");
            assert_eq!(unserved_api(path), None);
        }
    }

    #[test]
    fn a_known_path_names_its_api_and_a_served_or_unknown_one_none() {
        for (path, name) in [
            ("/v1/files", Some("files")),
            ("/files", Some("files")),
            ("/v1/v1/files", Some("files")),
            ("/v1/embeddings", None),
            ("/v1/images/variations", Some("variations of images")),
            ("/v1/responses/resp_1/cancel", Some("stored responses")),
            ("/v1/messages/batches/b/results", Some("batches")),
            ("/v1/responses", None),
            ("/v1/responses/", None),
            ("/v1/chat/completions", None),
            ("/v1/filesx", None),
            ("/dashboard/sessions", None),
            ("/v1", None),
            ("", None),
        ] {
            assert_eq!(unserved_api(path), name, "{path}");
        }
    }
}
