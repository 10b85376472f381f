//! Mentions the gateway's own changes of a request before the message of a vendor that refuses
//! them, because the client did not send the refused value.
//!
//! Read next: `failure/vendor.rs`.

use super::constructors::Failure;
use super::kind::Kind;

/// Members that hold the output limit or a part of it. A vendor that complains about one of them
/// may mean another.
const OUTPUT_LIMITS: [&str; 4] = [
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "budget_tokens",
];

/// Verbs for the gateway's changes, by the first part of a warning.
const VERBS: &[(&str, &str)] = &[
    ("clamped", "changed the value of"),
    ("dropped", "left out"),
    ("renamed", "renamed"),
    ("rewritten", "rewrote"),
    ("inserted", "added"),
    ("derived", "set"),
    ("merged", "merged"),
    ("downgraded", "weakened"),
];

impl Failure {
    /// Puts the changes that the vendor's message concerns in front of the message. `warnings`
    /// lists the changes as `x-gateway-warnings` does. `output_limit` is the limit that the vendor
    /// got, in tokens, and the reason for it.
    #[must_use]
    pub fn after_own_changes(
        mut self,
        warnings: &[String],
        (output_limit, why): (u64, &str),
    ) -> Self {
        if !matches!(self.kind, Kind::InvalidRequest | Kind::Unprocessable) {
            return self;
        }
        let about = format!(
            "{} {}",
            self.message,
            self.param.as_deref().unwrap_or_default()
        );
        let changes: Vec<_> = warnings
            .iter()
            .filter_map(|warning| {
                let (verb, member) = warning.split_once(':')?;
                let (_, done) = VERBS.iter().find(|(known, _)| *known == verb)?;
                let name = member.rsplit('.').next()?.trim_end_matches("[]");
                let is_limit = OUTPUT_LIMITS.contains(&name);
                let is_about = match is_limit {
                    true => OUTPUT_LIMITS.iter().any(|limit| about.contains(limit)),
                    false => contains_word(&about, name),
                };
                let is_lowered = is_limit && verb == "clamped" && name != "budget_tokens";
                is_about.then(|| match is_lowered {
                    true => format!("set `{member}` to {output_limit} ({why})"),
                    false => format!("{done} `{member}`"),
                })
            })
            .collect();
        if !changes.is_empty() {
            self.message = format!(
                "The gateway had changed this request: it {}. The vendor then answered: {}",
                changes.join(", "),
                self.message
            );
        }
        self
    }
}

/// Returns whether the text contains this name without a letter, digit or `_` beside it.
fn contains_word(text: &str, name: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    !name.is_empty()
        && text.match_indices(name).any(|(at, _)| {
            let before = text.get(..at).and_then(|before| before.chars().next_back());
            let after = text
                .get(at + name.len()..)
                .and_then(|after| after.chars().next());
            !before.is_some_and(is_part) && !after.is_some_and(is_part)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: (u64, &str) = (312, "the account's credits pay for no more");

    fn message(kind: Kind, words: &str, warnings: &[&str]) -> String {
        let warnings: Vec<_> = warnings.iter().map(|&warning| warning.to_owned()).collect();
        let failure = Failure::new(kind, words).after_own_changes(&warnings, LIMIT);
        failure.message
    }

    #[test]
    fn a_complaint_about_a_limit_that_the_gateway_changed_begins_with_that_change() {
        let words = "max_tokens must be greater than thinking.budget_tokens.";
        let warnings = ["clamped:max_completion_tokens", "dropped:seed"];
        assert_eq!(
            message(Kind::InvalidRequest, words, &warnings),
            format!(
                "The gateway had changed this request: it set `max_completion_tokens` to 312 (the \
                 account's credits pay for no more). The vendor then answered: {words}"
            )
        );
        for (kind, words, warnings, is_named) in [
            (
                Kind::InvalidRequest,
                "top_p is not allowed",
                &["clamped:max_tokens"][..],
                false,
            ),
            (
                Kind::Unprocessable,
                "temperature: must be 1",
                &["clamped:temperature"],
                true,
            ),
            (
                Kind::InvalidRequest,
                "bad messages.0.content",
                &["rewritten:messages[].content"],
                true,
            ),
            (Kind::InvalidRequest, "n is wrong", &["dropped:n"], true),
            (
                Kind::InvalidRequest,
                "not now",
                &["dropped:n", "odd", "fallback:max_tokens"],
                false,
            ),
            // Clients search this text for its numbers.
            (
                Kind::ContextTooLong,
                "max_tokens exceed context",
                &["clamped:max_tokens"],
                false,
            ),
        ] {
            let shown = message(kind, words, warnings);
            assert_eq!(
                shown.contains("The gateway had changed"),
                is_named,
                "{shown}"
            );
            assert!(shown.ends_with(words), "{shown}");
        }
    }
}
