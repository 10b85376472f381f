use super::ResponsesAnswerBuilder;
use super::answer_builder::MAX_STREAM_BYTES;
use crate::ir::event::{
    AnswerWriter as _, ClientTool, Event, EventSink as _, OutputPart, ResponseContext,
    ResponseStart, StopReason, ToolCallKind,
};
use crate::json::JsonStr;
use crate::reasoning_token::{self, ReasoningPayload};
use crate::responses::EventSequencer;
use crate::usage::Usage;
use serde_json::{Value, json};

type Events = Vec<Event<'static>>;

fn start() -> Event<'static> {
    Event::Start(ResponseStart {
        id: Some(JsonStr::from_value("msg_01X")),
        tier: None,
    })
}

fn open(slot: u32, piece: OutputPart<'static>) -> Event<'static> {
    Event::Open { slot, piece }
}

fn delta(slot: u32, text: &'static str) -> Event<'static> {
    Event::Delta {
        slot,
        text: JsonStr::from_value(text),
    }
}

fn call(id: &'static str, name: &'static str) -> OutputPart<'static> {
    OutputPart::Call {
        id: Some(JsonStr::from_value(id)),
        name: JsonStr::from_value(name),
        is_custom: false,
    }
}

fn close(slot: u32) -> Event<'static> {
    Event::Close { slot }
}

fn ended(stop: StopReason<'static>) -> [Event<'static>; 3] {
    let usage = Usage {
        input: 5,
        cache_read: 2,
        cache_write_5m: 3,
        output: 7,
        reasoning: 4,
        ..Usage::default()
    };
    [
        Event::Stop(stop),
        Event::Usage {
            usage,
            is_final: true,
        },
        Event::End,
    ]
}

fn events(out: &[u8]) -> Vec<Value> {
    let out = std::str::from_utf8(out).unwrap();
    let each = |frame: &str| {
        let (event, data) = frame.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(event, format!("event: {}", data["type"].as_str().unwrap()));
        data
    };
    out.split_terminator("\n\n").map(each).collect()
}

fn streamed(
    response_context: ResponseContext,
    input: impl IntoIterator<Item = Event<'static>>,
) -> Vec<Value> {
    let mut stream = ResponsesAnswerBuilder::new(response_context, true);
    input.into_iter().for_each(|event| stream.event(event));
    assert!(!stream.overflowed());
    let mut out = Vec::new();
    stream.take(&mut out);
    events(&out)
}

fn folded(
    response_context: ResponseContext,
    input: impl IntoIterator<Item = Event<'static>>,
) -> Value {
    let mut whole = ResponsesAnswerBuilder::new(response_context, false);
    input.into_iter().for_each(|event| whole.event(event));
    let mut body = Vec::new();
    whole.take(&mut body);
    serde_json::from_slice(&body).unwrap()
}

fn kinds(events: &[Value]) -> Vec<String> {
    let short = |event: &Value| {
        event["type"]
            .as_str()
            .unwrap()
            .trim_start_matches("response.")
            .to_owned()
    };
    events.iter().map(short).collect()
}

fn with_tools(tools: &[(&str, Option<&str>, &str, ToolCallKind)]) -> ResponseContext {
    let own = tools.iter().map(|(flat, namespace, name, kind)| {
        let tool = ClientTool {
            namespace: namespace.map(str::to_owned),
            name: (*name).to_owned(),
            kind: *kind,
        };
        ((*flat).to_owned(), tool)
    });
    ResponseContext {
        own_tools: own.collect(),
        show_thinking: true,
        ..ResponseContext::default()
    }
}

fn reference() -> Events {
    let mut input = vec![
        start(),
        open(0, OutputPart::Thinking),
        delta(0, "hm"),
        Event::Signature {
            slot: 0,
            signature: JsonStr::from_value("EqQBCg"),
        },
        close(0),
        open(1, OutputPart::Text),
        delta(1, "Hi"),
        close(1),
        open(2, call("toolu_1", "exec_command")),
        delta(2, r#"{"cmd":"ls"}"#),
        close(2),
    ];
    input.extend(ended(StopReason::ToolUse));
    input
}

#[test]
fn a_thought_a_text_and_a_call_are_told_in_this_order_exactly() {
    let streamed = streamed(with_tools(&[]), reference());
    let expected = [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(kinds(&streamed), expected);
    for (number, event) in streamed.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    assert_eq!(
        streamed[2]["item"],
        json!({"id": "rs_01X_0", "type": "reasoning", "summary": []})
    );
    let sealed = streamed[7]["item"]["encrypted_content"].as_str().unwrap();
    assert_eq!(
        reasoning_token::unpack(sealed),
        Some(ReasoningPayload::Thinking {
            text: "hm".to_owned(),
            signature: "EqQBCg".to_owned()
        })
    );
    assert_eq!(
        streamed[7]["item"]["summary"],
        json!([{"type": "summary_text", "text": "hm"}])
    );
    assert_eq!(streamed[13]["item"]["content"][0]["text"], "Hi");
    let function = json!({
        "id": "fc_01X_2", "type": "function_call", "status": "completed", "call_id": "toolu_1", "name": "exec_command",
        "arguments": "{\"cmd\":\"ls\"}",
    });
    assert_eq!(streamed[17]["item"], function);
    let response = &streamed[18]["response"];
    assert_eq!(
        response["output"],
        json!([streamed[7]["item"], streamed[13]["item"], function])
    );
    assert_eq!(
        (&response["id"], &response["status"]),
        (&json!("resp_01X"), &json!("completed"))
    );
    let usage = json!({
        "input_tokens": 10, "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 3},
        "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 4}, "total_tokens": 17,
    });
    assert_eq!(response["usage"], usage);
    assert_eq!(
        (
            &streamed[0]["response"]["output"],
            &streamed[0]["response"]["usage"]
        ),
        (&json!([]), &Value::Null)
    );
}

#[test]
fn a_whole_answer_is_the_last_event_of_its_stream() {
    let last = streamed(with_tools(&[]), reference()).pop().unwrap();
    assert_eq!(folded(with_tools(&[]), reference()), last["response"]);
}

#[test]
fn reasoning_is_carried_whether_or_not_it_is_shown() {
    let response_context = ResponseContext {
        show_thinking: false,
        ..with_tools(&[])
    };
    let streamed = streamed(response_context, reference());
    assert_eq!(
        kinds(&streamed)[2..5],
        ["output_item.added", "output_item.done", "output_item.added"]
    );
    assert_eq!(streamed[3]["item"]["summary"], json!([]));
    assert!(
        streamed[3]["item"]["encrypted_content"]
            .as_str()
            .unwrap()
            .starts_with("gw1.m.")
    );
}

#[test]
fn a_call_goes_back_as_what_its_tool_is() {
    let response_context = with_tools(&[
        ("ns__look", Some("ns"), "look", ToolCallKind::Function),
        ("patch", None, "patch", ToolCallKind::Custom),
        ("tool_search", None, "tool_search", ToolCallKind::ToolSearch),
        ("local_shell", None, "local_shell", ToolCallKind::LocalShell),
        ("shell", None, "shell", ToolCallKind::Shell),
        ("apply_patch", None, "apply_patch", ToolCallKind::ApplyPatch),
    ]);
    let odd = "*** \"Begin\"\n\t🦀\\";
    let wrapped: &'static str = json!({"input": odd}).to_string().leak();
    let mut input = vec![start()];
    for (slot, name, arguments) in [
        (0, "ns__look", "{}"),
        (1, "patch", wrapped),
        (2, "patch", r#"{"input":1}"#),
        (3, "tool_search", r#"{"query":"x"}"#),
        (4, "local_shell", r#"{"command":["ls","-l"]}"#),
        (5, "shell", r#"{"commands":["ls"]}"#),
        (6, "apply_patch", r#"{"type":"delete_file","path":"a"}"#),
        (7, "apply_patch", r#"{"type":"update_file","path":"a"}"#),
        (8, "ns__look", ""),
    ] {
        input.push(open(slot, call("c", name)));
        if !arguments.is_empty() {
            input.push(delta(slot, arguments));
        }
        input.push(close(slot));
    }
    input.extend(ended(StopReason::ToolUse));
    let streamed = streamed(response_context, input);
    let done: Vec<&Value> = streamed
        .iter()
        .filter(|event| event["type"] == "response.output_item.done")
        .map(|event| &event["item"])
        .collect();
    let shown = |item: &Value, member: &str| {
        (
            item["type"].as_str().unwrap().to_owned(),
            item[member].clone(),
        )
    };
    assert_eq!(
        (&done[0]["name"], &done[0]["namespace"]),
        (&json!("look"), &json!("ns"))
    );
    assert_eq!(
        shown(done[1], "input"),
        ("custom_tool_call".to_owned(), json!(odd))
    );
    assert_eq!(
        shown(done[2], "input"),
        ("custom_tool_call".to_owned(), json!("{\"input\":1}"))
    );
    assert_eq!(
        shown(done[3], "arguments"),
        ("tool_search_call".to_owned(), json!({"query": "x"}))
    );
    assert_eq!(done[3]["execution"], "client");
    let exec = json!({"type": "exec", "command": ["ls", "-l"], "env": {}});
    assert_eq!(
        shown(done[4], "action"),
        ("local_shell_call".to_owned(), exec)
    );
    assert_eq!(
        shown(done[5], "action"),
        ("shell_call".to_owned(), json!({"commands": ["ls"]}))
    );
    assert_eq!(
        done[6]["operation"],
        json!({"type": "delete_file", "path": "a"})
    );
    // An update without a diff changes nothing, so the tool should report the error.
    assert_eq!(shown(done[7], "arguments").0, "function_call");
    assert_eq!(done[8]["arguments"], "{}");
    for (index, item) in done.iter().enumerate() {
        assert_eq!(
            (&item["status"], &item["call_id"]),
            (&json!("completed"), &json!("c")),
            "{item}"
        );
        assert!(
            item["id"]
                .as_str()
                .unwrap()
                .ends_with(&format!("_01X_{index}")),
            "{item}"
        );
    }
}

/// Returns the indexes of the items that are reported as done.
fn done(streamed: &[Value]) -> Vec<u64> {
    let done = streamed
        .iter()
        .filter(|event| event["type"] == "response.output_item.done");
    done.map(|event| event["output_index"].as_u64().unwrap())
        .collect()
}

#[test]
fn a_call_that_was_cut_off_is_never_done_and_never_mended() {
    let cut = r#"{"cmd":"rm -rf /tmp/a"#;
    for (stop, is_closed) in [
        (StopReason::MaxTokens, true),
        (StopReason::MaxTokens, false),
        (StopReason::ContextFull, true),
    ] {
        let made = || {
            let mut input = vec![start(), open(0, call("a", "run")), delta(0, "{}"), close(0)];
            input.extend([open(1, call("b", "run")), delta(1, cut)]);
            input.extend(is_closed.then(|| close(1)));
            input.extend(ended(stop.clone()));
            input
        };
        let streamed = streamed(with_tools(&[]), made());
        assert_eq!(done(&streamed), [0]);
        let kinds = kinds(&streamed);
        assert_eq!(
            kinds
                .iter()
                .filter(|kind| *kind == "function_call_arguments.done")
                .count(),
            1
        );
        assert_eq!(kinds.last().unwrap(), "incomplete");
        let response = &streamed.last().unwrap()["response"];
        assert_eq!(
            response["incomplete_details"],
            json!({"reason": "max_output_tokens"})
        );
        assert_eq!(response["output"][1]["status"], "incomplete");
        assert_eq!(response["output"][1]["arguments"], cut);
        assert_eq!(folded(with_tools(&[]), made()), *response);
    }
    // The tool should refuse arguments that are broken for another reason.
    let mut input = vec![start(), open(0, call("a", "run")), delta(0, cut), close(0)];
    input.extend(ended(StopReason::ToolUse));
    let streamed = streamed(with_tools(&[]), input);
    assert_eq!(
        (
            done(&streamed),
            &streamed.last().unwrap()["response"]["output"][0]["arguments"]
        ),
        (vec![0], &json!(cut))
    );
}

#[test]
fn what_a_client_would_run_by_itself_is_not_run_in_part() {
    let response_context = || {
        with_tools(&[
            ("shell", None, "shell", ToolCallKind::Shell),
            ("p", None, "p", ToolCallKind::Custom),
        ])
    };
    for (name, cut) in [
        ("shell", r#"{"commands":["rm -r a"#),
        ("p", r#"{"input":"*** Begin"#),
    ] {
        let mut input = vec![start(), open(0, call("a", name)), delta(0, cut), close(0)];
        input.extend(ended(StopReason::MaxTokens));
        let streamed = streamed(response_context(), input);
        assert_eq!(done(&streamed), [0_u64; 0], "{name}");
        assert_eq!(
            streamed.last().unwrap()["response"]["output"][0]["status"],
            "incomplete",
            "{name}"
        );
    }
    // A call without any input before the limit is not a call without arguments.
    let mut input = vec![start(), open(0, call("a", "run")), close(0)];
    input.extend(ended(StopReason::MaxTokens));
    let streamed = self::streamed(response_context(), input);
    assert_eq!(done(&streamed), [0_u64; 0]);
    assert_eq!(
        streamed.last().unwrap()["response"]["output"][0]["status"],
        "incomplete"
    );
    // Plain text does not show that it was cut off.
    let custom = OutputPart::Call {
        id: None,
        name: JsonStr::from_value("p"),
        is_custom: true,
    };
    let mut input = vec![start(), open(0, custom), delta(0, "*** Begin")];
    input.extend(ended(StopReason::MaxTokens));
    let streamed = self::streamed(response_context(), input);
    assert_eq!(done(&streamed), [0_u64; 0]);
    let item = &streamed.last().unwrap()["response"]["output"][0];
    assert_eq!(
        (&item["input"], item["call_id"].as_str().unwrap().len()),
        (&json!("*** Begin"), 29)
    );
}

#[test]
fn an_open_text_is_incomplete_at_the_limit() {
    let mut input = vec![start(), open(0, OutputPart::Text), delta(0, "One, tw")];
    input.extend(ended(StopReason::MaxTokens));
    let streamed = streamed(with_tools(&[]), input);
    assert_eq!(done(&streamed), [0]);
    assert_eq!(
        streamed.last().unwrap()["response"]["output"][0]["status"],
        "incomplete"
    );
}

#[test]
fn texts_in_a_row_are_one_message_and_blank_ones_none() {
    let mut input = vec![
        start(),
        open(0, OutputPart::Text),
        delta(0, " \n"),
        close(0),
        open(1, OutputPart::Text),
    ];
    input.extend([
        delta(1, "a"),
        close(1),
        open(2, OutputPart::Text),
        delta(2, " b"),
        close(2),
    ]);
    input.extend([
        open(
            3,
            OutputPart::Foreign {
                kind: JsonStr::from_value("server_tool_use"),
            },
        ),
        open(4, OutputPart::Text),
        delta(4, "c"),
    ]);
    input.extend([
        open(5, call("x", "f")),
        close(5),
        open(6, OutputPart::Text),
        delta(6, " "),
    ]);
    input.extend(ended(StopReason::EndTurn));
    let output = folded(with_tools(&[]), input)["output"].clone();
    let texts: Vec<&Value> = output
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["content"][0]["text"])
        .collect();
    assert_eq!(texts, [&json!(" \na b"), &json!("c"), &Value::Null]);
}

#[test]
fn calls_may_run_beside_one_another() {
    let mut input = vec![start(), open(0, call("a", "f")), open(1, call("b", "f"))];
    input.extend([
        delta(1, "{\"n\""),
        delta(0, "{"),
        delta(1, ":1}"),
        delta(0, "}"),
    ]);
    input.extend(ended(StopReason::ToolUse));
    let streamed = streamed(with_tools(&[]), input);
    assert_eq!(done(&streamed), [0, 1]);
    let output = &streamed.last().unwrap()["response"]["output"];
    assert_eq!(
        (&output[0]["arguments"], &output[1]["arguments"]),
        (&json!("{}"), &json!("{\"n\":1}"))
    );
}

#[test]
fn a_refusal_is_told_as_text_and_as_what_it_is() {
    let refusal = |words: Option<&'static str>| StopReason::Refusal {
        is_billed: true,
        explanation: words.map(JsonStr::from_value),
    };
    let text_events = [open(0, OutputPart::Text), delta(0, "I")];
    let own = [
        open(0, OutputPart::Refusal),
        delta(0, "No, "),
        delta(0, "no."),
    ];
    for (before, stop, texts) in [
        (
            vec![],
            refusal(None),
            [
                "The model declined to answer.",
                "The model declined to answer.",
            ],
        ),
        (vec![], refusal(Some("No.")), ["No.", "No."]),
        (
            text_events.to_vec_events(),
            refusal(Some("No.")),
            ["I", "No."],
        ),
        (
            own.to_vec_events(),
            StopReason::EndTurn,
            ["No, no.", "No, no."],
        ),
    ] {
        let mut input = vec![start()];
        input.extend(before);
        input.extend(ended(stop));
        let streamed = streamed(with_tools(&[]), input);
        let response = &streamed.last().unwrap()["response"];
        assert_eq!(
            (&response["status"], done(&streamed)),
            (&json!("completed"), vec![0, 1])
        );
        let parts = [
            &response["output"][0]["content"],
            &response["output"][1]["content"],
        ];
        assert_eq!(
            (&parts[0][0]["text"], parts[0].as_array().unwrap().len()),
            (&json!(texts[0]), 1)
        );
        assert_eq!(*parts[1], json!([{"type": "refusal", "refusal": texts[1]}]));
    }
}

/// Builds the events again, because they borrow and cannot be cloned.
trait ToEvents {
    fn to_vec_events(self) -> Events;
}

impl<const N: usize> ToEvents for [Event<'static>; N] {
    fn to_vec_events(self) -> Events {
        self.into_iter().collect()
    }
}

#[test]
fn reasoning_is_carried_in_the_form_that_its_vendor_wants_back() {
    use crate::capabilities::ReasoningReplay;
    let signature =
        reasoning_token::encode_details(r#"[{"type":"reasoning.encrypted","data":"x"}]"#);
    let details: &'static str = signature.leak();
    let maker: &'static str = reasoning_token::maker_signature("v").leak();
    for (replay, signature, expected) in [
        (ReasoningReplay::None, None, None),
        (ReasoningReplay::None, Some(details), None),
        (
            ReasoningReplay::None,
            Some(maker),
            Some(ReasoningPayload::Thinking {
                text: "hm".to_owned(),
                signature: maker.to_owned(),
            }),
        ),
        (
            ReasoningReplay::ReasoningContent,
            None,
            Some(ReasoningPayload::ChatText("hm".to_owned())),
        ),
        (
            ReasoningReplay::ReasoningDetails,
            Some(details),
            Some(ReasoningPayload::ChatDetails(
                r#"[{"type":"reasoning.encrypted","data":"x"}]"#.to_owned(),
            )),
        ),
    ] {
        let response_context = ResponseContext {
            reasoning_replay: replay,
            ..ResponseContext::default()
        };
        let mut input = vec![start(), open(0, OutputPart::Thinking), delta(0, "hm")];
        input.extend(signature.map(|signature| Event::Signature {
            slot: 0,
            signature: JsonStr::from_value(signature),
        }));
        input.extend(ended(StopReason::EndTurn));
        let item = folded(response_context, input)["output"][0].clone();
        assert_eq!(
            item["encrypted_content"]
                .as_str()
                .and_then(reasoning_token::unpack),
            expected
        );
    }
}

#[test]
fn signs_of_life_are_numbered_with_the_stream() {
    let sequencer = EventSequencer::default();
    let response_context = ResponseContext {
        sequencer: Some(sequencer.clone()),
        ..ResponseContext::default()
    };
    let mut stream = ResponsesAnswerBuilder::new(response_context, true);
    // Before the vendor sends anything, the response begins with an id that the gateway generates.
    let mut out = sequencer.keep_alive();
    out.extend(sequencer.keep_alive());
    stream.event(start());
    stream.event(open(0, OutputPart::Text));
    stream.event(delta(0, "a"));
    stream.take(&mut out);
    out.extend(sequencer.keep_alive());
    ended(StopReason::EndTurn)
        .into_iter()
        .for_each(|event| stream.event(event));
    stream.take(&mut out);
    let streamed = events(&out);
    let kinds = kinds(&streamed);
    assert_eq!(
        kinds[..4],
        ["created", "in_progress", "keepalive", "output_item.added"]
    );
    assert_eq!(kinds.iter().filter(|kind| *kind == "keepalive").count(), 2);
    assert!(
        streamed
            .iter()
            .enumerate()
            .all(|(number, event)| event["sequence_number"] == number)
    );
    let last = &streamed.last().unwrap()["response"];
    assert_eq!(streamed[0]["response"]["id"], last["id"]);
    assert_ne!(last["id"], "resp_01X");
}

#[test]
fn a_stream_that_fails_ends_with_both_events_and_the_whole_items_alone() {
    use crate::failure::{Failure, Kind};
    let sequencer = EventSequencer::default();
    let mut stream = ResponsesAnswerBuilder::new(
        ResponseContext {
            sequencer: Some(sequencer.clone()),
            ..ResponseContext::default()
        },
        true,
    );
    let mut out = Vec::new();
    for event in [
        start(),
        open(0, OutputPart::Text),
        delta(0, "a"),
        open(1, call("x", "f")),
        delta(1, "{"),
    ] {
        stream.event(event);
    }
    stream.take(&mut out);
    out.extend(sequencer.failure_events(&Failure::from_kind(Kind::Overloaded)));
    let streamed = events(&out);
    let [.., error, failed] = &streamed[..] else {
        panic!("{streamed:?}")
    };
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("error"), &json!("server_is_overloaded"))
    );
    assert_eq!(error["error"]["message"], error["message"]);
    let response = &failed["response"];
    assert_eq!(
        (&failed["type"], &response["status"]),
        (&json!("response.failed"), &json!("failed"))
    );
    assert_eq!(response["error"]["code"], "server_is_overloaded");
    assert_eq!(
        (
            response["output"].as_array().unwrap().len(),
            &response["usage"]
        ),
        (1, &Value::Null)
    );
    assert_eq!(response["id"], "resp_01X");
    assert!(
        streamed
            .iter()
            .enumerate()
            .all(|(number, event)| event["sequence_number"] == number)
    );
    // Also for a stream that has not begun.
    let kinds = kinds(&events(
        &EventSequencer::default().failure_events(&Failure::from_kind(Kind::UpstreamClosed)),
    ));
    assert_eq!(kinds, ["created", "in_progress", "error", "failed"]);
}

#[test]
fn more_than_is_kept_ends_the_stream() {
    let piece = "x".repeat(MAX_STREAM_BYTES / 8).leak();
    let mut stream = ResponsesAnswerBuilder::new(ResponseContext::default(), true);
    stream.event(start());
    stream.event(open(0, OutputPart::Text));
    for _ in 0..4 {
        assert!(!stream.overflowed());
        stream.event(delta(0, piece));
    }
    // Every byte counts twice, so the content alone reaches the limit and the item's overhead
    // exceeds it.
    assert!(stream.overflowed() || MAX_STREAM_BYTES < 8);
    let mut few = ResponsesAnswerBuilder::new(ResponseContext::default(), true);
    few.event(start());
    for slot in 0..10 {
        few.event(open(slot, call("a", "f")));
    }
    assert!(!few.overflowed());
    for slot in 10..20_000 {
        few.event(open(slot, call("a", "f")));
    }
    assert!(few.overflowed(), "empty pieces fill the room too");
}
