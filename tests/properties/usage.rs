//! The meaning of every dialect's counters: billed, reported, and written on the receipt; whole and
//! streamed; passed through and translated to each other surface.
//!
//! The modelled client reads its protocol's own members and nothing else, as the official clients
//! do.
//!
//! Read next: `crates/llm-protocol/src/usage/metering.rs`.

use bytes::Bytes;
use credits::money::Micro;
use credits::price_list::PriceList;
use credits::pricing;
use llm_protocol::Protocol;
use llm_protocol::ir::event::ResponseContext;
use llm_protocol::passthrough::StreamPassthrough;
use llm_protocol::translate::StreamTranslation;
use llm_protocol::usage::{
    MeteredUsage, MeteringTerms, PerTool, Usage, UsageBounds, UsageEstimator, UsageVerdict,
};
use llm_protocol::vendor_response::{self, ResponseForm, ResponseStream};
use proptest::prelude::*;
use serde_json::{Value, json};

mod dialects;

use dialects::{Dialect, dialects};

const TEXT: &str = "An answer of some length.";
const ESTIMATED_INPUT: u64 = 45;

fn price() -> PriceList {
    PriceList::new([5_000_000, 500_000, 6_250_000, 10_000_000, 25_000_000].map(Micro::new))
}

/// A whole answer. Its single usage object combines all of the stream's.
fn whole_of(vendor: Protocol, usages: &[Value]) -> String {
    let mut usage = usages
        .iter()
        .rfind(|usage| usage.is_object())
        .cloned()
        .unwrap_or_default();
    match vendor {
        Protocol::Chat => {
            let largest = usages.iter().filter(|usage| usage.is_object());
            let size = |usage: &&Value| usage["total_tokens"].as_f64().unwrap_or(0.0) as u64;
            let usage = largest.max_by_key(size).cloned();
            json!({"id": "c", "object": "chat.completion", "created": 1, "model": "up", "choices": [
                {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}], "usage": usage})
        }
        Protocol::Messages => {
            for (name, value) in usages[0].as_object().unwrap() {
                usage.as_object_mut().unwrap().entry(name).or_insert_with(|| value.clone());
            }
            json!({"id": "m", "type": "message", "role": "assistant", "model": "up", "stop_reason": "end_turn",
                "content": [{"type": "text", "text": TEXT}], "usage": usage})
        }
        Protocol::Responses => response(&usage),
    }
    .to_string()
}

fn response(usage: &Value) -> Value {
    json!({"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "up", "error": null,
        "output": [{"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": TEXT, "annotations": []}]}], "usage": usage})
}

/// The answer of [`whole_of`] as a stream.
fn stream_of(vendor: Protocol, usages: &[Value]) -> String {
    let events: Vec<(&str, Value)> = match vendor {
        Protocol::Chat => return chat_stream(usages),
        Protocol::Messages => vec![
            (
                "message_start",
                json!({"message": {"id": "m", "type": "message", "role": "assistant", "model": "up",
                "content": [], "usage": usages[0]}}),
            ),
            (
                "content_block_start",
                json!({"index": 0, "content_block": {"type": "text", "text": ""}}),
            ),
            (
                "content_block_delta",
                json!({"index": 0, "delta": {"type": "text_delta", "text": TEXT}}),
            ),
            ("content_block_stop", json!({"index": 0})),
            (
                "message_delta",
                json!({"delta": {"stop_reason": "end_turn"}, "usage": usages.last()}),
            ),
            ("message_stop", json!({})),
        ],
        Protocol::Responses => vec![
            (
                "response.created",
                json!({"sequence_number": 0, "response": {"id": "resp_1", "usage": null}}),
            ),
            (
                "response.output_text.delta",
                json!({"sequence_number": 1, "output_index": 0, "content_index": 0,
                "item_id": "msg_1", "delta": TEXT}),
            ),
            (
                "response.completed",
                json!({"sequence_number": 2, "response": response(usages.last().unwrap())}),
            ),
        ],
    };
    let frame = |(name, mut data): (&str, Value)| {
        data["type"] = name.into();
        format!("event: {name}\ndata: {data}\n\n")
    };
    events.into_iter().map(frame).collect()
}

/// The first usages are in chunks with choices, the last one is in a chunk of its own.
fn chat_stream(usages: &[Value]) -> String {
    let (last, earlier) = usages.split_last().unwrap();
    let pieces = earlier.len().max(1);
    let size = TEXT.len().div_ceil(pieces);
    let texts = TEXT
        .as_bytes()
        .chunks(size)
        .map(|text| String::from_utf8(text.to_vec()).unwrap());
    let chunk = |choices: Value, usage: Option<&Value>| {
        let chunk = json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "up",
            "choices": choices, "usage": usage});
        format!("data: {chunk}\n\n")
    };
    let mut out = String::new();
    for (index, text) in texts.enumerate() {
        let choices = json!([{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": null}]);
        out += &chunk(choices, earlier.get(index));
    }
    out += &chunk(
        json!([{"index": 0, "delta": {}, "finish_reason": "stop"}]),
        None,
    );
    out += &chunk(json!([]), Some(last));
    out + "data: [DONE]\n\n"
}

const SURFACES: [Protocol; 3] = [Protocol::Chat, Protocol::Messages, Protocol::Responses];

fn recall() -> ResponseContext {
    ResponseContext {
        public_model: "public".into(),
        include_usage: true,
        estimator: estimator(),
        ..ResponseContext::default()
    }
}

fn estimator() -> UsageEstimator {
    UsageEstimator::from_input_tokens(ESTIMATED_INPUT)
}

fn terms(bounds: &UsageBounds) -> MeteringTerms {
    MeteringTerms {
        estimator: estimator(),
        bounds: *bounds,
        ..MeteringTerms::default()
    }
}

/// The billed usage, and the usage that the client reads.
struct Outcome {
    metered: MeteredUsage,
    body: String,
    reported: Reported,
}

fn whole(vendor: Protocol, surface: Protocol, answer: &str, bounds: &UsageBounds) -> Outcome {
    let recall = (vendor != surface).then(recall);
    let body = Bytes::from(answer.to_owned());
    let whole = vendor_response::convert_response(
        vendor,
        surface,
        "public",
        recall,
        ResponseForm {
            streamed: false,
            call_seed: None,
        },
        body,
        &terms(bounds),
    )
    .unwrap();
    let body = String::from_utf8(whole.body.to_vec()).unwrap();
    let reported = Reported::read(
        surface,
        std::iter::once(serde_json::from_str(&body).unwrap()),
    );
    Outcome {
        metered: whole.usage.expect("a usage"),
        body,
        reported,
    }
}

fn streamed(vendor: Protocol, surface: Protocol, stream: &str, bounds: &UsageBounds) -> Outcome {
    let mut answer: Box<dyn ResponseStream> = if vendor == surface {
        let pass = StreamPassthrough::new(vendor, "public", false, 1 << 20);
        Box::new(pass.with_request(terms(bounds), 1))
    } else {
        let recall = ResponseContext {
            usage_bounds: *bounds,
            ..recall()
        };
        Box::new(StreamTranslation::new(
            vendor,
            surface,
            recall,
            true,
            1 << 20,
        ))
    };
    let mut out = Vec::new();
    answer.push(stream.as_bytes(), &mut out).unwrap();
    answer.finish(&mut out).unwrap();
    let body = String::from_utf8(out).unwrap();
    let events = body
        .lines()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok());
    let reported = Reported::read(surface, events);
    Outcome {
        metered: answer.usage().expect("a usage"),
        body,
        reported,
    }
}

/// The counts that a client reads. `input` includes every input class, also `cached` and `written`;
/// `output` includes `reasoning`.
#[derive(Debug, PartialEq, Eq, Default)]
struct Reported {
    input: u64,
    cached: u64,
    written: u64,
    output: u64,
    reasoning: u64,
}

impl Reported {
    fn of(usage: &Usage) -> Self {
        Self {
            input: usage.input_total(),
            cached: usage.cache_read,
            written: usage.cache_write_5m + usage.cache_write_1h,
            output: usage.output_total(),
            reasoning: usage.reasoning,
        }
    }

    /// Reads these events, or this answer, like the official client of the surface.
    fn read(surface: Protocol, events: impl Iterator<Item = Value>) -> Self {
        match surface {
            Protocol::Chat => {
                let last = events
                    .map(|chunk| chunk["usage"].clone())
                    .filter(Value::is_object)
                    .last()
                    .unwrap();
                Self::of_chat(&last, ["prompt", "completion"])
            }
            Protocol::Responses => {
                let of_event = |event: Value| match event.get("response") {
                    Some(response) => response["usage"].clone(),
                    None => event["usage"].clone(),
                };
                let last = events
                    .map(of_event)
                    .filter(Value::is_object)
                    .last()
                    .unwrap();
                Self::of_chat(&last, ["input", "output"])
            }
            Protocol::Messages => Self::of_messages(events),
        }
    }

    fn of_chat(usage: &Value, [input, output]: [&str; 2]) -> Self {
        let number = |value: &Value| {
            if value.is_null() {
                0
            } else {
                value.as_u64().expect("a whole number")
            }
        };
        let (parts, written) = (
            &usage[format!("{input}_tokens_details")],
            &usage[format!("{output}_tokens_details")],
        );
        let hit = number(&usage["prompt_cache_hit_tokens"]);
        let reported = Self {
            input: number(&usage[format!("{input}_tokens")]),
            cached: number(&parts["cached_tokens"]).max(hit),
            written: number(&parts["cache_write_tokens"]),
            output: number(&usage[format!("{output}_tokens")]),
            reasoning: number(&written["reasoning_tokens"]),
        };
        let total = &usage["total_tokens"];
        assert!(
            total.is_null() || number(total) == reported.input + reported.output,
            "{usage}"
        );
        assert!(
            reported.cached + reported.written <= reported.input
                && reported.reasoning <= reported.output,
            "{usage}"
        );
        reported
    }

    /// The counters of the start, overwritten by those of each delta. Compaction passes have
    /// counters of their own, which are added.
    fn of_messages(events: impl Iterator<Item = Value>) -> Self {
        let mut usage = json!({});
        for event in events {
            let object = if event["message"].is_object() {
                &event["message"]["usage"]
            } else {
                &event["usage"]
            };
            // A null changes nothing, as in the official client.
            for (name, value) in object
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(_, value)| !value.is_null())
            {
                usage[name] = value.clone();
            }
        }
        let number = |value: &Value| {
            if value.is_null() {
                0
            } else {
                value.as_u64().expect("a whole number")
            }
        };
        let counters = |usage: &Value| {
            let (cached, written) = (
                number(&usage["cache_read_input_tokens"]),
                number(&usage["cache_creation_input_tokens"]),
            );
            Self {
                input: number(&usage["input_tokens"]) + cached + written,
                cached,
                written,
                output: number(&usage["output_tokens"]),
                reasoning: number(&usage["output_tokens_details"]["thinking_tokens"]),
            }
        };
        let passes = usage["iterations"].as_array().into_iter().flatten();
        let passes = passes
            .filter(|entry| entry["type"] == "compaction")
            .map(counters);
        passes.fold(counters(&usage), |sum, pass| Self {
            input: sum.input + pass.input,
            cached: sum.cached + pass.cached,
            written: sum.written + pass.written,
            output: sum.output + pass.output,
            ..sum
        })
    }
}

/// Every path to a client: whole and streamed, passed through and translated.
fn each_way(vendor: Protocol, usages: &[Value], bounds: &UsageBounds) -> Vec<(String, Outcome)> {
    let (one, events) = (whole_of(vendor, usages), stream_of(vendor, usages));
    let ways = SURFACES.into_iter().flat_map(|surface| {
        let name = surface.as_str();
        [
            (
                format!("whole to {name}"),
                whole(vendor, surface, &one, bounds),
            ),
            (
                format!("streamed to {name}"),
                streamed(vendor, surface, &events, bounds),
            ),
        ]
    });
    ways.collect()
}

#[test]
fn every_dialect_is_billed_and_reported_alike_on_every_surface() {
    for Dialect {
        name,
        vendor,
        usages,
        billed,
        cost,
        is_estimated,
    } in dialects()
    {
        for (way, outcome) in each_way(vendor, &usages, &UsageBounds::default()) {
            let usage = outcome.metered.usage;
            let written = usage.cache_write_5m + usage.cache_write_1h;
            let found = [
                usage.input,
                usage.cache_read,
                written,
                usage.output,
                usage.reasoning,
            ];
            assert_eq!(found, billed, "{name}, {way}");
            let verdict = if is_estimated {
                UsageVerdict::Estimated
            } else {
                UsageVerdict::Exact
            };
            assert_eq!(outcome.metered.verdict, verdict, "{name}, {way}");
            assert_eq!(
                outcome.reported,
                Reported::of(&usage),
                "{name}, {way}: {}",
                outcome.body
            );
            assert_eq!(
                pricing::cost(&usage, &price()),
                Micro::new(cost),
                "{name}, {way}"
            );
            let lines = pricing::cost_lines(&usage, &price());
            let counted: u64 = lines.iter().map(|line| line.count).sum();
            assert_eq!(
                counted,
                usage.tokens_total(),
                "{name}: each token stands on one line of the receipt"
            );
        }
    }
}

#[test]
fn a_usage_that_states_what_is_billed_is_passed_on_byte_by_byte() {
    let plain = [
        "official chat",
        "official messages",
        "messages, with the input in its end",
        "official responses",
        "Azure",
        "Ollama",
        "llama.cpp",
        "OpenRouter: with cache writes and its own cost",
        "the common form: reasoning inside the completion",
        "vLLM: a growing usage with every chunk",
        "messages after a compaction",
    ];
    for Dialect {
        name,
        vendor,
        usages,
        ..
    } in dialects()
    {
        let stream = stream_of(vendor, &usages);
        let passed = streamed(vendor, vendor, &stream, &UsageBounds::default()).body;
        let answer = whole_of(vendor, &usages);
        let passed_whole = whole(vendor, vendor, &answer, &UsageBounds::default()).body;
        let renamed = |text: &str| text.replace("\"up\"", "\"public\"");
        assert_eq!(
            passed == renamed(&stream),
            plain.contains(&name),
            "{name}: {passed}"
        );
        if plain.contains(&name) {
            assert_eq!(passed_whole, renamed(&answer), "{name}");
        }
    }
}

#[test]
fn passes_have_lines_of_their_own_and_add_up() {
    let compacted = dialects()
        .into_iter()
        .find(|dialect| dialect.name == "messages after a compaction")
        .unwrap();
    let (_, outcome) =
        each_way(compacted.vendor, &compacted.usages, &UsageBounds::default()).swap_remove(1);
    let lines = pricing::cost_lines(&outcome.metered.usage, &price());
    let told: Vec<_> = lines
        .iter()
        .filter(|line| line.count > 0)
        .map(|l| (l.pass, l.class, l.count))
        .collect();
    let wanted = [
        (None, "input", 682),
        (None, "output", 1_320),
        (Some(1), "input", 60_385),
        (Some(1), "output", 592),
    ];
    assert_eq!(told, wanted);
}

#[test]
fn an_absurd_counter_is_delivered_capped_and_flagged() {
    let most = UsageBounds {
        input: 90,
        input_believed: 2_138,
        output: 2_000,
        ..UsageBounds::default()
    };
    let absurd = 4_294_967_295_u64;
    for (vendor, usages, billed) in [
        (
            Protocol::Chat,
            vec![json!({"prompt_tokens": 11, "completion_tokens": absurd})],
            [11, 2_000],
        ),
        (
            Protocol::Chat,
            vec![json!({"prompt_tokens": 100_000, "completion_tokens": 5})],
            [90, 5],
        ),
        (
            Protocol::Chat,
            vec![json!({"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": absurd})],
            [11, 2_000],
        ),
        (
            Protocol::Messages,
            vec![
                json!({"input_tokens": 100_000, "output_tokens": 1}),
                json!({"output_tokens": 5}),
            ],
            [90, 5],
        ),
        (
            Protocol::Messages,
            vec![
                json!({"input_tokens": 11, "output_tokens": 1}),
                json!({"output_tokens": absurd}),
            ],
            [11, 2_000],
        ),
        (
            Protocol::Responses,
            vec![json!({"input_tokens": 100_000, "output_tokens": absurd})],
            [90, 2_000],
        ),
    ] {
        for (way, outcome) in each_way(vendor, &usages, &most) {
            let usage = outcome.metered.usage;
            assert_eq!([usage.input, usage.output], billed, "{usages:?}, {way}");
            assert!(
                matches!(outcome.metered.verdict, UsageVerdict::Implausible(_)),
                "{usages:?}, {way}"
            );
            assert_eq!(
                outcome.reported,
                Reported::of(&usage),
                "{way}: {}",
                outcome.body
            );
            assert!(
                outcome.body.contains(TEXT),
                "{way}: the answer is delivered"
            );
        }
    }
}

#[test]
fn the_examples_for_account_holders_are_what_is_billed() {
    let page = include_str!("../../docs/billing.md");
    let section = page
        .split("### As vendors write it")
        .nth(1)
        .unwrap()
        .split("\n## ")
        .next()
        .unwrap();
    let rows: Vec<Vec<&str>> = section
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            line.trim_matches('|')
                .split('|')
                .map(|cell| cell.trim().trim_matches('`'))
                .collect()
        })
        .collect();
    assert_eq!(rows.len(), 8);
    let most = UsageBounds {
        input: 6_000,
        input_believed: 6_000 + 8_192,
        output: 2_000,
        context: 200_000,
        ..UsageBounds::default()
    };
    for row in rows {
        let usage: Value = serde_json::from_str(row[0]).unwrap();
        let vendor = if usage["input_tokens"].is_null() {
            Protocol::Chat
        } else {
            Protocol::Messages
        };
        for (way, outcome) in each_way(vendor, &[usage], &most) {
            let usage = outcome.metered.usage;
            let credits = pricing::exact_cost(&usage, &price());
            let found =
                [usage.input, usage.cache_read, usage.output].map(|count| count.to_string());
            assert_eq!(
                [&found[..], &[credits]].concat(),
                row[1..],
                "{way}: {}",
                row[0]
            );
        }
    }
}

fn counter() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => (0..3_000_u64).prop_map(|count| json!(count)),
        1 => any::<u64>().prop_map(|count| json!(count)),
        1 => (0..3_000_u32).prop_map(|count| json!(f64::from(count))),
        1 => any::<i32>().prop_map(|count| json!(count)),
        1 => Just(json!("12")),
        1 => Just(json!(0.5)),
    ]
}

fn any_usage(vendor: Protocol) -> BoxedStrategy<Value> {
    let optional = || prop_oneof![2 => Just(None), 1 => Just(Some(Value::Null)), 5 => counter().prop_map(Some)];
    let counters = (
        counter(),
        counter(),
        optional(),
        optional(),
        optional(),
        optional(),
    );
    let usage = counters.prop_map(move |(input, output, total, cached, written, reasoning)| {
        let names = match vendor {
            Protocol::Chat => [
                "prompt_tokens",
                "completion_tokens",
                "prompt_tokens_details",
                "completion_tokens_details",
            ],
            _ => [
                "input_tokens",
                "output_tokens",
                "input_tokens_details",
                "output_tokens_details",
            ],
        };
        let mut usage = json!({names[0]: input, names[1]: output});
        let mut set = |path: &[&str], value: Option<Value>| {
            let Some(value) = value else { return };
            match path {
                [one] => usage[*one] = value,
                [one, two] => usage[*one][*two] = value,
                _ => {}
            }
        };
        if vendor == Protocol::Messages {
            set(&["cache_read_input_tokens"], cached);
            set(&["cache_creation_input_tokens"], written.clone());
            set(&["cache_creation", "ephemeral_5m_input_tokens"], total);
            set(&["output_tokens_details", "thinking_tokens"], reasoning);
            if let Some(pass) = written {
                usage["iterations"] =
                    json!([{"type": "compaction", "input_tokens": pass, "output_tokens": 7}]);
            }
        } else {
            set(&["total_tokens"], total);
            set(&[names[2], "cached_tokens"], cached);
            set(&[names[2], "cache_write_tokens"], written);
            set(&[names[3], "reasoning_tokens"], reasoning);
        }
        usage
    });
    usage.boxed()
}

fn any_answer() -> impl Strategy<Value = (Protocol, Vec<Value>)> {
    prop::sample::select(&SURFACES[..]).prop_flat_map(|vendor| {
        let most = if vendor == Protocol::Responses { 1 } else { 3 };
        (
            Just(vendor),
            prop::collection::vec(any_usage(vendor), 1..=most),
        )
    })
}

proptest! {
    #![proptest_config(crate::cases(600))]

    #[test]
    fn what_is_billed_is_reported_and_never_more_than_the_request_could_use(
        (vendor, usages) in any_answer(),
        (input, slack, output) in (0..4_000_u64, 0..300_u64, 1..4_000_u64),
        compaction: bool,
    ) {
        let most = UsageBounds {
            input,
            input_believed: input + slack,
            output,
            context: 10_000,
            pass_output: 500,
            compaction,
            tool_uses: PerTool::default(),
        };
        for (way, outcome) in each_way(vendor, &usages, &most) {
            let MeteredUsage { usage, verdict, .. } = outcome.metered;
            let own = usage.without_passes();
            let is_capped = matches!(verdict, UsageVerdict::Implausible(_));
            prop_assert!(own.output_total() <= output, "{}", way);
            prop_assert!(own.input_total() <= input + slack, "{}", way);
            prop_assert!(compaction || usage.compactions.is_empty());
            prop_assert!(usage.compactions.iter().all(|pass| pass.input_total() <= 10_000 && pass.output <= 500));
            prop_assert!(usage.reasoning <= usage.output);
            prop_assert!(is_capped || own.input_total() <= input + slack);
            prop_assert_eq!(&outcome.reported, &Reported::of(&usage), "{}: {}", way, &outcome.body);
        }
    }
}
