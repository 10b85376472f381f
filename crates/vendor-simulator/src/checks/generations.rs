//! Lists the capabilities of the simulated vendors' models, by the generation in their names.
//!
//! This file must not restrict a model whose name has no generation.

/// Returns the major and minor number of the model's generation; `None` if its name has none.
pub fn generation(model: &str) -> Option<(u32, u32)> {
    let name = model
        .strip_prefix("claude-")
        .or_else(|| model.strip_prefix("gpt-"))?;
    let mut numbers = name
        .split(['-', '.'])
        .filter_map(parse_version_number)
        .peekable();
    let major = numbers.next()?;
    Some((major, numbers.next().unwrap_or(0)))
}

/// Parses a number of a generation. Eight digits are a date instead.
fn parse_version_number(word: &str) -> Option<u32> {
    let digits = word.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    digits.parse().ok().filter(|_| digits.len() <= 2)
}

pub fn max_output_tokens(model: &str) -> Option<u64> {
    match generation(model)? {
        _ if model.starts_with("claude-") => Some(64_000),
        (5.., _) => Some(128_000),
        _ => Some(16_384),
    }
}

/// Capabilities of a messages vendor's model: thinking, effort and sampling.
#[derive(Clone, Copy, Debug)]
pub struct SimMessagesModel {
    generation: Option<(u32, u32)>,
    is_small: bool,
}

impl SimMessagesModel {
    pub fn from_name(model: &str) -> Self {
        Self {
            generation: generation(model),
            is_small: model.contains("haiku"),
        }
    }

    fn is_from(&self, generation: (u32, u32)) -> bool {
        self.generation.is_some_and(|own| own >= generation)
    }

    fn is_before(&self, generation: (u32, u32)) -> bool {
        self.generation.is_some_and(|own| own < generation)
    }

    /// Returns whether the model accepts temperature or top_p, but not both.
    pub fn samples_by_one(&self) -> bool {
        self.is_from((4, 1)) && self.is_before((4, 7))
    }

    pub fn has_fixed_sampling(&self) -> bool {
        self.is_from((4, 7))
    }

    pub fn refuses_prefill(&self) -> bool {
        self.is_from((4, 6))
    }

    pub fn refuses_system_turns(&self) -> bool {
        self.is_before((4, 8))
    }

    /// Returns whether the model refuses this value of `thinking.type`.
    pub fn refuses_thinking(&self, kind: &str) -> bool {
        match kind {
            "enabled" => self.is_from((4, 7)),
            "adaptive" => self.is_before((4, 6)) || (self.is_small && self.is_before((4, 7))),
            "between_tools" => self.is_before((4, 8)),
            _ => false,
        }
    }

    /// Returns the efforts that the model accepts; `None` if it accepts all.
    pub fn efforts(&self) -> Option<&'static [&'static str]> {
        self.generation?;
        Some(match () {
            () if self.is_before((4, 5)) || (self.is_small && self.is_before((4, 7))) => &[],
            () if self.is_before((4, 6)) => &["low", "medium", "high"],
            () if self.is_before((4, 7)) => &["low", "medium", "high", "max"],
            () => &["low", "medium", "high", "xhigh", "max"],
        })
    }
}

/// Reasoning capabilities of a chat vendor's model.
#[derive(Clone, Copy, Debug)]
pub struct SimChatModel {
    generation: Option<(u32, u32)>,
}

impl SimChatModel {
    pub fn from_name(model: &str) -> Self {
        Self {
            generation: generation(model),
        }
    }

    pub fn reasons(&self) -> bool {
        self.generation.is_some_and(|own| own >= (5, 0))
    }

    /// Returns whether the model is known and does not reason.
    pub fn never_reasons(&self) -> bool {
        self.generation.is_some() && !self.reasons()
    }

    pub fn refuses_effort(&self, effort: &str) -> bool {
        let known: &[&str] = match self.generation {
            Some((5, 0)) => &["minimal", "low", "medium", "high"],
            Some((5, 1)) => &["none", "low", "medium", "high"],
            _ => &["none", "low", "medium", "high", "xhigh"],
        };
        self.reasons() && !known.contains(&effort)
    }

    /// Returns whether the model refuses function tools at this effort. Some models accept them
    /// only with effort `none`, and the newest models reason by default.
    pub fn refuses_tools(&self, effort: Option<&str>) -> bool {
        let from = |generation| self.generation.is_some_and(|own| own >= generation);
        match effort {
            Some(effort) => effort != "none" && from((5, 4)),
            None => from((5, 5)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::generation;

    #[test]
    fn a_generation_is_read_from_every_form_of_name() {
        let names = [
            ("claude-haiku-4-5-20251001", Some((4, 5))),
            ("claude-opus-4-7", Some((4, 7))),
            ("claude-sonnet-4-20250514", Some((4, 0))),
            ("claude-3-5-sonnet-20241022", Some((3, 5))),
            ("claude-opus-5", Some((5, 0))),
            ("gpt-5.2", Some((5, 2))),
            ("gpt-5.6-terra", Some((5, 6))),
            ("gpt-4o-mini", Some((4, 0))),
            ("gpt-test", None),
            ("sim-large", None),
        ];
        for (name, numbers) in names {
            assert_eq!(generation(name), numbers, "{name}");
        }
    }
}
