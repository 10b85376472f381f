//! Matches aliases that stand for many names, such as `claude-opus-*`.
//!
//! This file must not check whether aliases contradict one another: `aliases.rs` does.

/// An alias with one `*`, which matches any text, including none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AliasPattern {
    before: String,
    after: String,
}

impl AliasPattern {
    /// Parses an alias. Returns `None` unless the text has exactly one `*`.
    pub fn parse(text: &str) -> Option<Self> {
        let (before, after) = text.split_once('*')?;
        (!after.contains('*')).then(|| Self {
            before: before.to_owned(),
            after: after.to_owned(),
        })
    }

    pub fn matches(&self, name: &str) -> bool {
        name.strip_prefix(&*self.before)
            .is_some_and(|rest| rest.ends_with(&*self.after))
    }

    /// Returns the length in bytes, without the `*`.
    pub fn length(&self) -> usize {
        self.before.len() + self.after.len()
    }
}

#[cfg(test)]
mod tests {
    use super::AliasPattern;

    #[test]
    fn a_star_stands_for_any_text_once() {
        let pattern = |text| AliasPattern::parse(text).unwrap();
        for (text, name, matches) in [
            ("claude-opus-*", "claude-opus-4-7", true),
            ("claude-opus-*", "claude-opus-", true),
            ("claude-opus-*", "claude-opus", false),
            ("*-opus-*", "", false),
            ("gpt-*-mini", "gpt-5-mini", true),
            ("gpt-*-mini", "gpt-mini", false),
            ("gpt-*-mini", "gpt-5-mini-1", false),
            ("*", "anything", true),
            ("a*a", "a", false),
        ] {
            if text.matches('*').count() == 1 {
                assert_eq!(pattern(text).matches(name), matches, "{text} {name}");
            } else {
                assert_eq!(AliasPattern::parse(text), None, "{text}");
            }
        }
        assert_eq!(AliasPattern::parse("plain"), None);
    }
}
