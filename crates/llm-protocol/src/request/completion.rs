//! Reads what a completions request has in the place of a chat's messages: its prompts, and how
//! many texts its vendor generates for them.
//!
//! It must not check what the vendor checks itself. `request/summary.rs` has what it finds.

use super::conversation::spans::MessageSpans;
use super::{JsonKind, JsonScanner, MAX_CHOICES, ParseResult, SummaryReader};
use crate::failure::Failure;

impl SummaryReader<'_> {
    /// Reads a member that chat requests do not have. Returns whether it is one.
    pub(super) fn completion_member(
        &mut self,
        scan: &mut JsonScanner<'_>,
        name: &str,
    ) -> ParseResult<bool> {
        let Some(mut completion) = self.summary.completion else {
            return Ok(false);
        };
        match name {
            "prompt" => completion.prompts = self.prompts(scan, name)?,
            "best_of" => {
                let (count, _) = self.number(scan, name, 1, MAX_CHOICES)?;
                completion.best_of = count.unwrap_or(1);
            }
            "suffix" if self.is_kind(scan, JsonKind::String, (name, "a string"))? => {
                completion.suffix_bytes = scan.string()?.decoded_bytes();
            }
            "suffix" => {}
            // Vectors, of which the gateway cannot tell the number of tokens.
            "prompt_embeds" if scan.kind()? != JsonKind::Null => {
                return Err(self.refuse(name, "Send the prompt as text or token ids."));
            }
            "max_completion_tokens" if scan.kind()? != JsonKind::Null => {
                return Err(self.refuse(name, "Completions take 'max_tokens' instead."));
            }
            _ => return Ok(false),
        }
        self.summary.completion = Some(completion);
        Ok(true)
    }

    /// Reads the prompts: a text, token ids, or a list of either. Returns their number.
    fn prompts(&mut self, scan: &mut JsonScanner<'_>, name: &str) -> ParseResult<u64> {
        let kind = scan.kind()?;
        let start = scan.position();
        let (mut texts, mut ids, mut lists) = (0_u64, 0_u64, 0_u64);
        match kind {
            JsonKind::Null | JsonKind::String => scan.skip()?,
            JsonKind::Array => scan.array(|scan| {
                let count = match scan.kind()? {
                    JsonKind::String => &mut texts,
                    JsonKind::Number => &mut ids,
                    JsonKind::Array => {
                        lists = lists.saturating_add(1);
                        return scan.array(|scan| match scan.kind()? {
                            JsonKind::Number => Ok(scan.skip()?),
                            _ => Err(self.wrong_type(name, PROMPTS)),
                        });
                    }
                    _ => return Err(self.wrong_type(name, PROMPTS)),
                };
                *count = count.saturating_add(1);
                Ok(scan.skip()?)
            })?,
            _ => return Err(self.wrong_type(name, PROMPTS)),
        }
        let prompts = match (texts, ids, lists) {
            (0, _, 0) => 1,
            (count, 0, 0) | (0, 0, count) => count,
            _ => return Err(self.wrong_type(name, PROMPTS)),
        };
        if kind != JsonKind::Null {
            let mut head = MessageSpans::default();
            head.record_member("content", scan.span_from(start));
            self.summary.conversation.record_message(head);
        }
        Ok(prompts)
    }

    /// Counts the texts, once all members are read.
    ///
    /// # Errors
    /// Returns 400 if they are too many, or if the vendor could do more than the members say that
    /// the gateway reads.
    pub(super) fn finish_completion(&mut self) -> Result<(), Failure> {
        let Some(completion) = &mut self.summary.completion else {
            return Ok(());
        };
        let refuse =
            |param: &str, message: &str| Err(Failure::invalid_param(self.protocol, param, message));
        let left = self.summary.features.leftovers;
        if left.second_limits || left.account_members {
            let message = "A member sets a second limit of the output, or stores something in the vendor's account. \
                           A completions request passes unchanged: remove that member.";
            return refuse("max_tokens", message);
        }
        let per_prompt = self.summary.choices.max(completion.best_of);
        completion.drafts = completion.prompts.saturating_mul(per_prompt);
        self.summary.choices = self.summary.choices.saturating_mul(completion.prompts);
        if completion.drafts > MAX_CHOICES {
            let message = format!(
                "The prompts times the larger of 'n' and 'best_of' must be at most {MAX_CHOICES}."
            );
            return refuse("prompt", &message);
        }
        Ok(())
    }
}

const PROMPTS: &str = "a string, token ids, an array of strings, or arrays of token ids";

#[cfg(test)]
mod tests {
    use crate::capabilities::CompletionsApi;
    use crate::failure::Failure;
    use crate::request::{RequestSummary, read_completion};
    use serde_json::{Value, json};

    fn read(members: Value) -> Result<RequestSummary, Failure> {
        let mut body = json!({"model": "m"});
        let members = members.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(members);
        read_completion(CompletionsApi::Text, body.to_string().as_bytes())
    }

    #[test]
    fn the_prompts_and_the_larger_of_n_and_best_of_make_the_texts() {
        for (members, choices, drafts) in [
            (json!({}), 1, 1),
            (json!({"prompt": null}), 1, 1),
            (json!({"prompt": []}), 1, 1),
            (json!({"prompt": "x", "n": 3}), 3, 3),
            (json!({"prompt": ["x", "y"], "n": 2, "best_of": 5}), 4, 10),
            (json!({"best_of": 5, "n": 2, "prompt": [1, 2, 3]}), 2, 5),
            (json!({"prompt": [[1], [2, 3]], "best_of": null}), 2, 2),
            (json!({"prompt": vec!["x"; 128]}), 128, 128),
        ] {
            let summary = read(members.clone()).unwrap();
            assert_eq!(
                (summary.choices, summary.drafts()),
                (choices, drafts),
                "{members}"
            );
        }
        let ids = read(json!({"prompt": vec![7; 300_000], "max_tokens": 0})).unwrap();
        assert_eq!(ids.output_limit.unwrap().tokens, 0);
        for (members, param) in [
            (json!({"prompt": 5}), "prompt"),
            (json!({"prompt": {"text": "x"}}), "prompt"),
            (json!({"prompt": ["x", 1]}), "prompt"),
            (json!({"prompt": [[1], "x"]}), "prompt"),
            (json!({"prompt": [["x"]]}), "prompt"),
            (json!({"prompt": vec!["x"; 129]}), "prompt"),
            (json!({"prompt": vec!["x"; 65], "best_of": 2}), "prompt"),
            (json!({"prompt_embeds": "AAAA"}), "prompt_embeds"),
            (json!({"prompt": "x", "n": 0}), "n"),
            (json!({"best_of": 129}), "best_of"),
            (json!({"suffix": 5}), "suffix"),
            (json!({"Best_of": 5}), "Best_of"),
            (json!({"max_completion_tokens": 5}), "max_completion_tokens"),
            (json!({"n_predict": 5}), "max_tokens"),
            (json!({"n_cmpl": 5}), "max_tokens"),
            (json!({"extra_body": {"best_of": 5}}), "max_tokens"),
            (json!({"store": true}), "max_tokens"),
        ] {
            let failure = read(members.clone()).unwrap_err();
            assert_eq!(failure.param.as_deref(), Some(param), "{members}");
        }
        let twice = br#"{"model":"m","prompt":"x","prompt":["x","y"]}"#;
        let failure = read_completion(CompletionsApi::Text, twice).unwrap_err();
        assert_eq!(failure.param.as_deref(), Some("prompt"));
    }

    #[test]
    fn the_input_is_bounded_by_the_body_with_a_suffix_for_each_prompt_and_by_the_contexts() {
        let input = |members: Value, bytes, context| {
            let summary = read(members).unwrap();
            summary.completion.unwrap().max_input_tokens(bytes, context)
        };
        let two = || json!({"prompt": ["x", "y"], "suffix": "sfx"});
        assert_eq!(input(two(), 700, 8_192), 703);
        assert_eq!(input(two(), 70_000, 8_192), 16_384);
        assert_eq!(
            input(json!({"prompt": "x", "suffix": "sfx"}), 700, 8_192),
            700
        );
    }

    #[test]
    fn a_chat_request_with_such_members_is_read_as_before() {
        let body = br#"{"model":"m","prompt":5,"best_of":7,"suffix":1,"suffix":2}"#;
        let summary = crate::request::read_summary(crate::Protocol::Chat, body).unwrap();
        assert_eq!((summary.choices, summary.drafts()), (1, 1));
        assert!(summary.completion.is_none());
    }
}
