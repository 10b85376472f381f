//! Removes data that concerns only the vendor and the operator from a vendor's message.
//!
//! The check is simple: it looks at single words and prefers to hide too much. It hides the
//! vendor's model id (replaced by the public id), web and e-mail addresses, organisation and
//! project ids, UUIDs and parts of keys.
//!
//! Read next: `failure/table.rs`.

/// Maximum length of a message for the client, in characters.
const MAX_MESSAGE_CHARS: usize = 2_000;

/// Returns the message without the data that the client must not see.
pub(super) fn scrub_message(text: &str, upstream_model: &str, public_model: &str) -> String {
    let replaced;
    let text = if upstream_model.contains(is_separator) {
        replaced = text.replace(upstream_model, public_model);
        replaced.as_str()
    } else {
        text
    };
    let mut shown = String::with_capacity(text.len());
    let mut word_start = 0;
    for (at, character) in text.char_indices() {
        if is_separator(character) {
            push_scrubbed_word(
                &mut shown,
                text.get(word_start..at),
                upstream_model,
                public_model,
            );
            shown.push(if character.is_control() {
                ' '
            } else {
                character
            });
            word_start = at + character.len_utf8();
        }
    }
    push_scrubbed_word(
        &mut shown,
        text.get(word_start..),
        upstream_model,
        public_model,
    );
    if let Some((cut, _)) = shown.char_indices().nth(MAX_MESSAGE_CHARS) {
        shown.truncate(cut);
        shown.push('…');
    }
    shown
}

fn is_separator(character: char) -> bool {
    character.is_whitespace()
        || character.is_control()
        || matches!(
            character,
            '`' | '\''
                | '"'
                | '('
                | ')'
                | ','
                | ';'
                | '<'
                | '>'
                | '['
                | ']'
                | '{'
                | '}'
                | '='
                | '|'
        )
}

fn push_scrubbed_word(
    shown: &mut String,
    word: Option<&str>,
    upstream_model: &str,
    public_model: &str,
) {
    let word = word.unwrap_or_default();
    // Punctuation at the end of a sentence is not part of its last word.
    let core = word.trim_end_matches(['.', ':', '!', '?']);
    let tail = word.get(core.len()..).unwrap_or_default();
    let hidden = [
        find_url(core).map(|at| (at, "[address]")),
        find_email(core).map(|at| (at, "[address]")),
        find_secret(core),
        find_model(core, upstream_model).map(|at| (at, public_model)),
    ];
    // Hide the rest of the word from the first match on: the date in a dated model id is the
    // vendor's too.
    match hidden.into_iter().flatten().min_by_key(|(at, _)| *at) {
        Some((at, mark)) => {
            shown.push_str(core.get(..at).unwrap_or_default());
            shown.push_str(mark);
        }
        None => shown.push_str(core),
    }
    shown.push_str(tail);
}

/// Returns the offset of a URL, at its scheme.
fn find_url(word: &str) -> Option<usize> {
    let scheme = word.get(..word.find("://")?)?;
    let is_outside = |character: char| !character.is_ascii_alphanumeric();
    Some(
        scheme
            .char_indices()
            .rfind(|(_, character)| is_outside(*character))
            .map_or(0, |(at, character)| at + character.len_utf8()),
    )
}

/// Returns the offset of an e-mail address.
fn find_email(word: &str) -> Option<usize> {
    let (name, domain) = word.split_once('@')?;
    let (host, top) = domain.rsplit_once('.')?;
    let is_address = !host.is_empty() && !top.is_empty() && !name.is_empty();
    let is_part = |letter: char| letter.is_alphanumeric() || "._%+-".contains(letter);
    is_address.then(|| name.trim_end_matches(is_part).len())
}

/// Returns the offset of a key, an organisation id, a project id or a UUID, and its replacement.
fn find_secret(word: &str) -> Option<(usize, &'static str)> {
    const MARKS: [(&str, &str); 6] = [
        ("sk-", "[key]"),
        ("sk_", "[key]"),
        ("AIza", "[key]"),
        ("org-", "[organization]"),
        ("org_", "[organization]"),
        ("proj_", "[project]"),
    ];
    let named = MARKS.into_iter().filter_map(|(prefix, mark)| {
        word.match_indices(prefix)
            .map(|(at, _)| at)
            .find(|at| is_word_start(word, *at) && is_secret(word, at + prefix.len(), prefix))
            .map(|at| (at, mark))
    });
    let uuid = (0..word.len())
        .find(|at| is_word_start(word, *at) && is_uuid(word.get(*at..at + 36).unwrap_or_default()))
        .map(|at| (at, "[id]"));
    named.chain(uuid).min_by_key(|(at, _)| *at)
}

/// Returns whether an id follows the prefix at `from`: "org-wide" is a word, "org-Ab12" is an
/// organisation.
fn is_secret(word: &str, from: usize, prefix: &str) -> bool {
    let rest = word.get(from..).unwrap_or_default();
    let is_plain = rest
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    rest.len() >= 4 && (!is_plain || prefix.starts_with("sk"))
}

fn find_model(word: &str, upstream_model: &str) -> Option<usize> {
    if upstream_model.is_empty() {
        return None;
    }
    word.match_indices(upstream_model)
        .map(|(at, _)| at)
        .find(|at| is_word_start(word, *at))
}

fn is_word_start(word: &str, at: usize) -> bool {
    word.get(..at)
        .and_then(|before| before.chars().next_back())
        .is_none_or(|character| !character.is_alphanumeric())
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::scrub_message;

    fn check(text: &str, expected: &str) {
        assert_eq!(scrub_message(text, "up-model", "alpha/opus"), expected);
    }

    #[test]
    fn what_is_between_the_vendor_and_us_is_hidden() {
        check(
            "The model `up-model-20260101` is deprecated.",
            "The model `alpha/opus` is deprecated.",
        );
        check("model:up-model.", "model:alpha/opus.");
        check(
            "Incorrect API key provided: sk-abcd****wxyz. See https://vendor.example/keys.",
            "Incorrect API key provided: [key]. See [address].",
        );
        check(
            "limit of org-AbCdEf123 (org: 01234567-89ab-cdef-0123-456789abcdef) in proj_1234",
            "limit of [organization] (org: [id]) in [project]",
        );
        check(
            "a risk-free org-wide; disk-full",
            "a risk-free org-wide; disk-full",
        );
        check(
            "user me.too+x@corp.example.com, mailto:it@corp.example.",
            "user [address], mailto:[address].",
        );
        check("@tool model@latest a@b", "@tool model@latest a@b");
        check("größe: ü", "größe: ü");
    }

    #[test]
    fn a_separator_in_the_upstream_id_hides_it_still() {
        let shown = scrub_message("no such model org/up=1 here", "org/up=1", "public");
        assert!(!shown.contains("up=1"), "{shown}");
    }
}
