//! The names that a model can be asked for by: its id, and aliases, of which some stand for many names.
//!
//! An id goes before an alias, an alias before a pattern, and of two patterns the one with more text of its own. Must not
//! judge whether names contradict one another: that is `config/aliases.rs`.

/// An alias with one `*`, which stands for any text, also for none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    before: String,
    after: String,
}

impl Pattern {
    /// `None` where the text holds no `*`, or more than one.
    pub fn parse(text: &str) -> Option<Self> {
        let (before, after) = text.split_once('*')?;
        (!after.contains('*')).then(|| Self { before: before.to_owned(), after: after.to_owned() })
    }

    pub fn matches(&self, name: &str) -> bool {
        name.strip_prefix(&*self.before).is_some_and(|rest| rest.ends_with(&*self.after))
    }

    /// Bytes of the text beside the `*`.
    pub fn length(&self) -> usize {
        self.before.len() + self.after.len()
    }
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn a_star_stands_for_any_text_once() {
        let pattern = |text| Pattern::parse(text).unwrap();
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
                assert_eq!(Pattern::parse(text), None, "{text}");
            }
        }
        assert_eq!(Pattern::parse("plain"), None);
    }
}
