//! Writes the IR events as a chat answer: as stream chunks or as one body.
//!
//! This module must not wait: in a stream, all output leaves with the event that caused it. The
//! exceptions are parts that clients can only read whole: reasoning to send back, sources, the
//! reason why the model declined, and the input of a custom tool. The writer does not report a
//! failure during the answer.
//!
//! Read next: `write_stream/answer_builder.rs`, which decides the outcome of each event; then
//! `write_stream/chunks.rs` and `write_stream/message.rs`, which encode it.

use crate::ir::event::{AnswerWriter, Event, EventSink, ResponseContext, take_output};
use answer_builder::{ChatAnswerBuilder, ChatEncoder};
use chunks::ChatChunkEncoder;
use message::ChatMessageEncoder;

mod answer_builder;
mod chunks;
mod deferred;
mod message;
mod usage;

pub(crate) use chunks::write_finished_choice;
pub use usage::write as write_usage;

/// Keep-alive that may be sent at any time: a plain SSE comment. The stream has no `id:` lines, so
/// no client takes the comment for an event.
pub const KEEP_ALIVE: &[u8] = b": ping\n\n";

#[derive(Debug)]
pub struct ChatAnswerWriter<E> {
    builder: ChatAnswerBuilder,
    encoder: E,
}

pub type ChatStreamWriter = ChatAnswerWriter<ChatChunkEncoder>;

pub type ChatBodyWriter = ChatAnswerWriter<ChatMessageEncoder>;

impl<E: ChatEncoder> ChatAnswerWriter<E> {
    pub fn new(response_context: ResponseContext) -> Self {
        ChatAnswerWriter {
            builder: ChatAnswerBuilder::new(response_context, E::MAX_BUFFERED_BYTES),
            encoder: E::default(),
        }
    }
}

impl<E: ChatEncoder> EventSink for ChatAnswerWriter<E> {
    fn event(&mut self, event: Event<'_>) {
        self.builder.event(event, &mut self.encoder);
    }
}

impl<E: ChatEncoder> AnswerWriter for ChatAnswerWriter<E> {
    fn take(&mut self, out: &mut Vec<u8>) {
        take_output(self.encoder.output(), out);
    }

    fn overflowed(&self) -> bool {
        self.builder.overflowed || self.encoder.overflowed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::event::{OutputPart, ResponseStart, StopReason};
    use crate::json::JsonStr;
    use crate::usage::{Usage, UsageEstimator};

    fn call(name: &'static str) -> OutputPart<'static> {
        OutputPart::Call {
            id: Some(JsonStr::from_value("toolu_1")),
            name: JsonStr::from_value(name),
            is_custom: false,
        }
    }

    fn delta(slot: u32, text: &str) -> Event<'_> {
        Event::Delta {
            slot,
            text: JsonStr::from_value(text),
        }
    }

    fn written(
        response_context: ResponseContext,
        events: impl IntoIterator<Item = Event<'static>>,
    ) -> (String, ChatStreamWriter) {
        let mut stream = ChatStreamWriter::new(response_context);
        stream.event(Event::Start(ResponseStart::default()));
        events.into_iter().for_each(|event| stream.event(event));
        let mut out = Vec::new();
        stream.take(&mut out);
        (String::from_utf8(out).unwrap(), stream)
    }

    #[test]
    fn each_event_leaves_at_once_in_a_frame_of_one_line() {
        let events = [
            Event::Open {
                slot: 1,
                piece: OutputPart::Text,
            },
            delta(1, "a\nb\u{1}"),
            delta(1, "c"),
            delta(2, "lost"),
        ];
        let (out, mut stream) = written(ResponseContext::default(), events);
        let frames: Vec<_> = out.split_terminator("\n\n").collect();
        assert_eq!(frames.len(), 3, "{out}");
        for frame in frames {
            let json = frame.strip_prefix("data: ").unwrap();
            assert!(!json.contains('\n'));
            serde_json::from_str::<serde_json::Value>(json).unwrap();
        }
        let mut rest = Vec::new();
        stream.take(&mut rest);
        assert!(rest.is_empty());
    }

    #[test]
    fn pieces_that_are_never_closed_are_closed_by_the_end() {
        let open = |slot, name| Event::Open {
            slot,
            piece: call(name),
        };
        let events = [
            open(1, "f"),
            open(2, "g"),
            delta(1, "{"),
            delta(1, "}"),
            Event::Stop(StopReason::ToolUse),
            Event::End,
        ];
        let (out, _) = written(ResponseContext::default(), events);
        assert_eq!(out.matches(r#"{"arguments":"{}"}"#).count(), 1, "{out}");
        assert!(out.ends_with("data: [DONE]\n\n"));
    }

    #[test]
    fn reasoning_without_room_is_left_out_and_the_stream_goes_on() {
        let long = "x".repeat(ChatChunkEncoder::MAX_BUFFERED_BYTES / 4).leak();
        let mut events = vec![Event::Open {
            slot: 1,
            piece: OutputPart::Thinking,
        }];
        events.extend((0..5).map(|_| delta(1, long)));
        events.extend([
            Event::Open {
                slot: 2,
                piece: OutputPart::Hidden {
                    data: JsonStr::from_value("y"),
                },
            },
            Event::Open {
                slot: 3,
                piece: OutputPart::Text,
            },
            delta(3, "z"),
            Event::End,
        ]);
        let (out, stream) = written(ResponseContext::default(), events);
        assert!(!out.contains("reasoning_details"));
        assert_eq!(out.matches("reasoning_content").count(), 5);
        assert!(out.contains(r#"{"content":"z"}"#) && !stream.overflowed());
    }

    #[test]
    fn a_call_whose_input_must_wait_and_has_no_room_ends_the_stream() {
        let long = "x".repeat(ChatChunkEncoder::MAX_BUFFERED_BYTES / 4).leak();
        let response_context = ResponseContext {
            custom_tools: vec!["patch".to_owned()],
            ..ResponseContext::default()
        };
        let events = std::iter::once(Event::Open {
            slot: 1,
            piece: call("patch"),
        })
        .chain((0..5).map(|_| delta(1, long)));
        assert!(written(response_context, events).1.overflowed());
    }

    #[test]
    fn usage_that_is_not_the_last_word_is_a_floor() {
        let response_context = ResponseContext {
            include_usage: true,
            estimator: UsageEstimator::from_input_tokens(70),
            ..ResponseContext::default()
        };
        let usage = |output, is_final| Event::Usage {
            usage: Usage {
                output,
                ..Usage::default()
            },
            is_final,
        };
        let text = [
            Event::Open {
                slot: 1,
                piece: OutputPart::Text,
            },
            delta(1, "12345"),
        ];
        let tells = |out: &str, completion: &str| {
            out.contains(completion) && out.contains(r#""prompt_tokens":70"#)
        };
        let (out, _) = written(
            response_context.clone(),
            text.into_iter().chain([usage(9, false), Event::End]),
        );
        assert!(tells(&out, r#""completion_tokens":9"#), "{out}");
        let text = [
            Event::Open {
                slot: 1,
                piece: OutputPart::Text,
            },
            delta(1, "12345"),
        ];
        let (out, _) = written(
            response_context,
            text.into_iter().chain([usage(0, true), Event::End]),
        );
        assert!(tells(&out, r#""completion_tokens":2"#), "{out}");
    }

    #[test]
    fn a_code_fence_moves_what_stands_in_the_content() {
        let response_context = ResponseContext {
            unwrap_fence: true,
            ..ResponseContext::default()
        };
        let mut whole = ChatBodyWriter::new(response_context);
        let open = |slot, piece| Event::Open { slot, piece };
        for event in [
            Event::Start(ResponseStart::default()),
            open(1, OutputPart::Text),
            delta(1, " ```json\r\n{\"a\":"),
            open(2, OutputPart::Thinking),
            open(3, OutputPart::Text),
            delta(3, "1}\n  ```\n"),
            Event::End,
        ] {
            whole.event(event);
        }
        let mut body = Vec::new();
        whole.take(&mut body);
        let body = String::from_utf8(body).unwrap();
        assert!(
            body.contains(r#""content":"{\"a\":1}""#) && body.contains(r#""anchor":"5:0""#),
            "{body}"
        );
    }
}
