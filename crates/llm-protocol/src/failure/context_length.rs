//! Recognises vendors' error messages about a request that does not fit the model's context, and
//! reads the two numbers in them.
//!
//! This file must not write a message: `failure/surface_message.rs` does.

use crate::table_text::{names_in, split_at_byte};

/// Sentences and names from vendors' errors, by topic.
pub(super) const VENDOR_TEXT: &str = include_str!("words.txt");

/// The order of the numbers in a sentence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Numbers {
    /// The maximum precedes the number of tokens in the request.
    MaximumFirst,
    /// The number of tokens in the request is the first number, and the maximum is the last.
    MaximumLast,
    /// The maximum directly follows the number of tokens in the request. Other numbers may follow.
    MaximumSecond,
    /// The maximum stands between the output that the request asks for and its input.
    MaximumBetween,
    None,
}

/// Parts of the sentences, in lower case. The first part that a message contains determines the
/// order of the numbers.
const SENTENCES: [(&str, Numbers); 30] =
    parse_sentences(names_in(VENDOR_TEXT, "context sentences"));

/// Parses rows that consist of an order of numbers and a sentence.
const fn parse_sentences<const N: usize>(rows: [&'static str; N]) -> [(&'static str, Numbers); N] {
    let (mut sentences, mut at) = ([("", Numbers::None); N], 0);
    while at < N {
        let (place, sentence) = split_at_byte(rows[at], b' ');
        let numbers = match place.as_bytes() {
            b"first" => Numbers::MaximumFirst,
            b"second" => Numbers::MaximumSecond,
            b"last" => Numbers::MaximumLast,
            b"between" => Numbers::MaximumBetween,
            _ => {
                assert!(matches!(place.as_bytes(), b"none"), "a row has no place");
                Numbers::None
            }
        };
        sentences[at] = (sentence, numbers);
        at += 1;
    }
    sentences
}

/// Codes and types of errors about the context length.
pub(super) const CODES: [&str; 3] = names_in(VENDOR_TEXT, "context codes");

/// The number of tokens in a request, and the maximum that it exceeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ContextOverflow {
    pub tokens: u64,
    pub maximum: u64,
}

/// Returns whether the message says that the request does not fit the context.
pub(super) fn is_overflow(message: &str) -> bool {
    find(message).is_some()
}

/// Returns the numbers in such a message, if both are present.
pub(super) fn numbers(message: &str) -> Option<ContextOverflow> {
    let mut found = message
        .split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|digits| digits.parse::<u64>().ok());
    let overflow = match find(message)? {
        Numbers::None => return None,
        Numbers::MaximumFirst => ContextOverflow {
            maximum: found.next()?,
            tokens: found.next()?,
        },
        Numbers::MaximumLast => ContextOverflow {
            tokens: found.next()?,
            maximum: found.next_back()?,
        },
        Numbers::MaximumSecond => ContextOverflow {
            tokens: found.next()?,
            maximum: found.next()?,
        },
        Numbers::MaximumBetween => {
            let output = found.next()?;
            let maximum = found.next()?;
            let tokens = found.next()?.saturating_add(output);
            ContextOverflow { tokens, maximum }
        }
    };
    (overflow.tokens > overflow.maximum).then_some(overflow)
}

fn find(message: &str) -> Option<Numbers> {
    let message = message.to_ascii_lowercase();
    SENTENCES
        .iter()
        .find(|(words, _)| message.contains(words))
        .map(|(_, numbers)| *numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_vendors_sentence_is_known_with_its_numbers() {
        for (message, tokens, maximum) in [
            (
                "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is \
                 131072 tokens and your request has 120000 input tokens (32000 > 131072 - 120000).",
                152_000,
                131_072,
            ),
            (
                "prompt is too long: 210000 tokens > 200000 maximum",
                210_000,
                200_000,
            ),
            (
                "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
                40_000,
                32_768,
            ),
            (
                "You passed 40961 input tokens and requested 1 output tokens. However, the model's context length is only \
                 40960 tokens",
                40_961,
                40_960,
            ),
            (
                "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 in the \
                 messages, 1000 in the completion).",
                5_000,
                4_096,
            ),
            (
                "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
                537_812,
                131_072,
            ),
            (
                "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
                1_200_000,
                1_048_576,
            ),
            (
                "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
                5_000,
                4_096,
            ),
            (
                "Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)",
                300_000,
                262_144,
            ),
            (
                "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
                61_709,
                40_960,
            ),
            (
                "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292. Try using a \
                 shorter prompt, or enabling prompt truncating.",
                4_292,
                4_081,
            ),
            (
                "The decoder prompt (length 140000) is longer than the maximum model length of 131072. Make sure that \
                 `max_model_len` is no smaller than the number of text tokens plus multimodal tokens (2).",
                140_000,
                131_072,
            ),
            (
                "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000",
                5_000,
                4_096,
            ),
            (
                "Input length (140000 tokens) exceeds the maximum allowed length (131072 tokens). Use a shorter input or \
                 enable --allow-auto-truncate.",
                140_000,
                131_072,
            ),
            (
                "prompt token count of 140000 exceeds the limit of 128000",
                140_000,
                128_000,
            ),
            (
                "Please reduce the length of the messages or completion. Current length is 140000 while limit is 131072",
                140_000,
                131_072,
            ),
        ] {
            assert_eq!(
                numbers(message),
                Some(ContextOverflow { tokens, maximum }),
                "{message}"
            );
        }
        for message in [
            "Prompt exceeds max length",
            "Input is too long for requested model.",
            "the request exceeds the available context size, try increasing it",
            "too many tokens: size limit exceeded by 11326 tokens.",
            "Please reduce the length of the messages or completion.",
        ] {
            assert!(
                is_overflow(message) && numbers(message).is_none(),
                "{message}"
            );
        }
        for message in [
            "max_tokens must be at most 4096",
            "the name of a tool exceeds the maximum allowed length (64)",
            "too many tokens: max tokens must be less than or equal to 4096, the maximum output for this model",
        ] {
            assert!(!is_overflow(message), "{message}");
        }
    }
}
