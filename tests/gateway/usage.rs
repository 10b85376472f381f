//! Tests usage that vendors report: the gateway bills it by its meaning, never bills more than the
//! request can use, and reports to the client what it bills. The cases are passed through and
//! translated, whole and streamed.

use crate::account::{Account, micro};
use crate::client::{Answer, End};
use crate::surface::{BOTH, Chat, Messages, Surface};
use crate::world::{Plan, World};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// The usage objects of one answer. A messages vendor sends the first at the start of a stream and
/// the last at its end.
type Usages = Vec<Value>;

/// A vendor of this protocol. It answers a request that contains `case 3;` with the usage of case
/// 3.
fn vendor(protocol: Surface, cases: Vec<Usages>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            let cases = cases.clone();
            std::thread::spawn(move || {
                let Some(request) = read_request(&mut client) else {
                    return;
                };
                let number: usize = request
                    .split("case ")
                    .nth(1)
                    .unwrap()
                    .split(';')
                    .next()
                    .unwrap()
                    .parse()
                    .unwrap();
                let streams = request.contains("\"stream\":true");
                let sent = |form: &Form| request.contains(&form.marker());
                let (kind, streams) = match FORMS.iter().find(|form| sent(form)) {
                    Some(form) => (form.content_type, form.is_events),
                    None if streams => ("text/event-stream", true),
                    None => ("application/json", false),
                };
                let body = match streams {
                    true => stream(protocol, &cases[number]),
                    false => whole(protocol, &cases[number]),
                };
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close"
                );
                let _ = client.write_all(format!("{head}\r\n\r\n{body}").as_bytes());
            });
        }
    });
    port
}

/// What a vendor sends, whatever it was asked for, and how it names that.
struct Form {
    is_events: bool,
    content_type: &'static str,
}

const FORMS: [Form; 5] = [
    Form {
        is_events: true,
        content_type: "application/json",
    },
    Form {
        is_events: true,
        content_type: "text/plain; charset=utf-8",
    },
    Form {
        is_events: true,
        content_type: "text/event-stream",
    },
    Form {
        is_events: false,
        content_type: "text/event-stream",
    },
    Form {
        is_events: false,
        content_type: "application/json",
    },
];

impl Form {
    /// The words in a request by which the vendor knows that it is to answer in this form.
    fn marker(&self) -> String {
        let form = if self.is_events { "events" } else { "document" };
        format!("{form} as {}", self.content_type)
    }
}

/// Returns `None` if the client disconnected.
fn read_request(client: &mut TcpStream) -> Option<String> {
    let (mut got, mut piece) = (Vec::new(), [0; 65_536]);
    while !got.ends_with(b"}") {
        match client.read(&mut piece) {
            Ok(count) if count > 0 => got.extend_from_slice(&piece[..count]),
            _ => return None,
        }
    }
    Some(String::from_utf8_lossy(&got).into_owned())
}

const TEXT: &str = "Yes.";

fn whole(protocol: Surface, usages: &[Value]) -> String {
    let usage = usages.last();
    match protocol {
        Chat => json!({"id": "c", "object": "chat.completion", "created": 1, "model": "gpt-5.2", "choices": [
            {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}], "usage": usage}),
        Messages => {
            let mut merged = usages[0].clone();
            for (name, value) in usage.and_then(Value::as_object).into_iter().flatten() {
                merged[name] = value.clone();
            }
            json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-haiku-4-5-20251001",
                "content": [{"type": "text", "text": TEXT}], "stop_reason": "end_turn", "usage": merged})
        }
    }
    .to_string()
}

fn stream(protocol: Surface, usages: &[Value]) -> String {
    match protocol {
        Chat => {
            let chunk = |choices: Value, usage: Option<&Value>| {
                let chunk = json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5.2",
                    "choices": choices, "usage": usage});
                format!("data: {chunk}\n\n")
            };
            let text = json!([{"index": 0, "delta": {"role": "assistant", "content": TEXT}, "finish_reason": null}]);
            let end = json!([{"index": 0, "delta": {}, "finish_reason": "stop"}]);
            chunk(text, None)
                + &chunk(end, None)
                + &chunk(json!([]), usages.last())
                + "data: [DONE]\n\n"
        }
        Messages => {
            let message = json!({"id": "msg_1", "type": "message", "role": "assistant", "content": [],
                "model": "claude-haiku-4-5-20251001", "stop_reason": null, "usage": usages[0]});
            let events = [
                json!({"type": "message_start", "message": message}),
                json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}}),
                json!({"type": "content_block_stop", "index": 0}),
                json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usages.last()}),
                json!({"type": "message_stop"}),
            ];
            let frame = |event: &Value| {
                format!(
                    "event: {}\ndata: {event}\n\n",
                    event["type"].as_str().unwrap()
                )
            };
            events.iter().map(frame).collect()
        }
    }
}

/// Input of all classes and output, as reported to the client.
fn reported(surface: Surface, answer: &Answer) -> (i64, i64) {
    let text = answer.text();
    let lines = text
        .lines()
        .map(|line| line.strip_prefix("data: ").unwrap_or(line));
    let mut usage = json!({});
    for event in lines.filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let object = if event["message"].is_object() {
            &event["message"]["usage"]
        } else {
            &event["usage"]
        };
        for (name, value) in object.as_object().into_iter().flatten() {
            usage[name] = value.clone();
        }
    }
    let number = |name: &str| usage[name].as_i64().unwrap_or_default();
    match surface {
        Chat => {
            let (input, output) = (number("prompt_tokens"), number("completion_tokens"));
            let hit = number("prompt_cache_hit_tokens");
            assert!(
                hit == 0 || usage["prompt_tokens_details"]["cached_tokens"] == hit,
                "{text}"
            );
            assert_eq!(number("total_tokens"), input + output, "{text}");
            (input, output)
        }
        Messages => {
            let cached = number("cache_read_input_tokens") + number("cache_creation_input_tokens");
            (number("input_tokens") + cached, number("output_tokens"))
        }
    }
}

const LIMIT: u64 = 2_000;

struct Way {
    surface: Surface,
    vendor: Surface,
    streams: bool,
}

impl Way {
    fn all() -> impl Iterator<Item = Self> {
        let pairs = BOTH
            .into_iter()
            .flat_map(|surface| BOTH.into_iter().map(move |vendor| (surface, vendor)));
        pairs.flat_map(|(surface, vendor)| {
            [false, true].map(|streams| Self {
                surface,
                vendor,
                streams,
            })
        })
    }

    fn ask(&self, world: &World, account: &Account, case: usize) -> Value {
        self.ask_for(world, account, &format!("case {case};"))
    }

    /// Sends a request with these words. Checks that the client gets the whole answer, in the form
    /// that it asked for, and exactly the billed usage.
    fn ask_for(&self, world: &World, account: &Account, words: &str) -> Value {
        let Self {
            surface,
            vendor,
            streams,
        } = *self;
        let mut body =
            json!({"model": vendor.model(), "messages": [{"role": "user", "content": words}]});
        body[surface.limit_field()] = LIMIT.into();
        if streams {
            body["stream"] = true.into();
        }
        if streams && surface == Chat {
            body["stream_options"] = json!({"include_usage": true});
        }
        let answer = world.ask(&surface.request(&account.key, &body));
        let way = format!(
            "{words}, {surface:?} to {vendor:?}, streams: {streams}: {}",
            answer.text()
        );
        assert_eq!(
            (answer.status, answer.end()),
            (200, Some(End::Whole)),
            "{way}"
        );
        assert!(
            answer.text().contains(TEXT),
            "the answer is delivered: {way}"
        );
        let kind = answer.header("content-type").unwrap_or_default();
        assert_eq!(
            kind.starts_with("text/event-stream"),
            streams,
            "{kind}, {way}"
        );
        assert_eq!(surface.is_complete(&answer), streams, "{way}");
        let receipt = world.receipt(account, &answer.request_id());
        assert_eq!(receipt["outcome"], "completed", "{way}");
        let number = |name: &str| receipt["usage"][name].as_i64().unwrap();
        let input = number("input")
            + number("cache_read")
            + number("cache_write_5m")
            + number("cache_write_1h");
        assert_eq!(
            reported(surface, &answer),
            (input, number("output")),
            "{way}, {receipt}"
        );
        receipt
    }
}

fn world(cases: &[(Value, Usages)]) -> World {
    let of = |protocol: Surface| {
        let usages = cases.iter().map(|(chat, messages)| match protocol {
            Chat => vec![chat.clone()],
            Messages => messages.clone(),
        });
        vendor(protocol, usages.collect())
    };
    Plan::default()
        .endpoints_of(&[of(Messages)], &[of(Chat)])
        .start()
}

#[test]
fn counters_are_billed_by_their_meaning_and_reported_as_they_are_billed() {
    let plain = |input: u64, output: u64| {
        vec![
            json!({"input_tokens": input, "output_tokens": 1}),
            json!({"output_tokens": output}),
        ]
    };
    // Usage of a chat vendor, usage of a messages vendor, and the result of both: input, cached
    // input, output.
    let cases = [
        (
            json!({"prompt_tokens": 36, "completion_tokens": 10, "total_tokens": 736,
                "completion_tokens_details": {"reasoning_tokens": 690}}),
            plain(36, 700),
            (36, 0, 700),
        ),
        (
            json!({"prompt_tokens": 51, "completion_tokens": 136, "total_tokens": 187,
                "completion_tokens_details": {"reasoning_tokens": 31}}),
            plain(51, 136),
            (51, 0, 136),
        ),
        (
            json!({"prompt_tokens": 50, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 1_450}}),
            vec![
                json!({"input_tokens": 1_500, "output_tokens": 1}),
                json!({"input_tokens": 50, "cache_read_input_tokens": 1_450, "output_tokens": 10}),
            ],
            (50, 1_450, 10),
        ),
        (
            json!({"prompt_tokens": 20.0, "completion_tokens": 1.2e1, "total_tokens": 32.0}),
            vec![
                json!({"input_tokens": 20.0, "output_tokens": 1}),
                json!({"output_tokens": 1.2e1}),
            ],
            (20, 0, 12),
        ),
    ];
    let world = world(&cases.clone().map(|(chat, messages, _)| (chat, messages)));
    let account = world.funded(1_000_000_000);
    for way in Way::all() {
        for (case, (_, _, (input, cached, output))) in cases.iter().enumerate() {
            let receipt = way.ask(&world, &account, case);
            let usage = &receipt["usage"];
            assert_eq!(
                (&usage["input"], &usage["cache_read"], &usage["output"]),
                (&json!(input), &json!(cached), &json!(output))
            );
            assert_eq!(
                (&receipt["estimated"], receipt.get("implausible")),
                (&false.into(), None),
                "{receipt}"
            );
            let (input_price, _) = way.vendor.prices();
            // Both shipped models have a price for cached input of a tenth of the input price.
            let cost = way.vendor.cost(*input, *output) + (cached * input_price + 9) / 10;
            assert_eq!(micro(&receipt["credits"]), cost, "{receipt}");
        }
    }
    assert_eq!(
        world.metric("gateway_usage_implausible_total", &[]),
        0.0,
        "nothing was implausible"
    );
}

#[test]
fn a_client_gets_the_form_that_it_asked_for_whatever_the_vendor_sends() {
    let usages = vec![
        json!({"input_tokens": 20, "output_tokens": 1}),
        json!({"output_tokens": 12}),
    ];
    let world = world(&[(
        json!({"prompt_tokens": 20, "completion_tokens": 12, "total_tokens": 32}),
        usages,
    )]);
    let account = world.funded(1_000_000_000);
    for way in Way::all() {
        for form in &FORMS {
            let receipt = way.ask_for(&world, &account, &format!("case 0; {}", form.marker()));
            assert_eq!(receipt["estimated"], false, "{receipt}");
            assert_eq!(
                micro(&receipt["credits"]),
                way.vendor.cost(20, 12),
                "{receipt}"
            );
        }
    }
}

#[test]
fn what_the_request_cannot_use_is_delivered_capped_and_flagged() {
    let absurd = 4_294_967_295_u64;
    let cases = [
        (
            json!({"prompt_tokens": 11, "completion_tokens": absurd, "total_tokens": absurd + 11}),
            vec![
                json!({"input_tokens": 11, "output_tokens": 1}),
                json!({"output_tokens": absurd}),
            ],
        ),
        (
            json!({"prompt_tokens": 100_000, "completion_tokens": 5, "total_tokens": 100_005}),
            vec![
                json!({"input_tokens": 100_000, "output_tokens": 1}),
                json!({"output_tokens": 5}),
            ],
        ),
    ];
    // The limit applies to the vendors that defined the protocols as well as to others.
    for official in ["official: true", "official: false"] {
        let of = |protocol: Surface| {
            let usages = cases.iter().map(|(chat, messages)| match protocol {
                Chat => vec![chat.clone()],
                Messages => messages.clone(),
            });
            vendor(protocol, usages.collect())
        };
        let plan = Plan::default()
            .endpoints_of(&[of(Messages)], &[of(Chat)])
            .edit("official: true", official);
        let world = plan.start();
        let account = world.funded(1_000_000_000);
        for way in Way::all() {
            for case in 0..cases.len() {
                let receipt = way.ask(&world, &account, case);
                assert_eq!(
                    receipt["implausible"], "implausible usage, capped",
                    "{receipt}"
                );
                assert_eq!(receipt["estimated"], false, "{receipt}");
                let (input, output) = (
                    receipt["usage"]["input"].as_i64(),
                    receipt["usage"]["output"].as_i64(),
                );
                // A body of a few hundred bytes has at most one token per byte.
                let wanted = if case == 0 {
                    input == Some(11)
                } else {
                    (40..400).contains(&input.unwrap())
                };
                assert!(wanted, "{receipt}");
                assert_eq!(output, Some(if case == 0 { 2_000 } else { 5 }), "{receipt}");
                assert!(
                    micro(&receipt["credits"]) <= way.vendor.cost(400, 2_000),
                    "{receipt}"
                );
            }
        }
        for vendor in ["alpha", "beta"] {
            for counter in ["input", "output"] {
                let labels = [
                    format!("vendor=\"{vendor}\""),
                    format!("counter=\"{counter}\""),
                ];
                let labels = labels.each_ref().map(String::as_str);
                assert!(
                    world.metric("gateway_usage_implausible_total", &labels) >= 4.0,
                    "{vendor} {counter}"
                );
            }
        }
    }
}

/// If the vendor reports no usage, or less than the standard members, the client gets the billed
/// usage.
#[test]
fn usage_that_the_vendor_does_not_report_is_reported_as_it_is_billed() {
    let nothing = [
        Value::Null,
        json!({}),
        json!({"total_tokens": 500}),
        json!("none"),
        json!([]),
    ];
    let mut cases: Vec<_> = nothing
        .into_iter()
        .map(|usage| (usage.clone(), vec![usage.clone(), usage]))
        .collect();
    let estimated = cases.len();
    let plain = vec![
        json!({"input_tokens": 50, "output_tokens": 1}),
        json!({"output_tokens": 10}),
    ];
    let cached = json!({"prompt_tokens": 50, "completion_tokens": 10, "total_tokens": 60,
        "prompt_cache_hit_tokens": 40, "prompt_cache_miss_tokens": 10});
    let without_sum = json!({"prompt_tokens": 50, "completion_tokens": 10, "total_tokens": null});
    cases.extend([(cached, plain.clone()), (without_sum, plain)]);
    let world = world(&cases);
    let account = world.funded(1_000_000_000);
    for way in Way::all() {
        for case in 0..cases.len() {
            let receipt = way.ask(&world, &account, case);
            let usage = &receipt["usage"];
            assert_eq!(receipt["estimated"], case < estimated, "{receipt}");
            assert!(
                usage["output"].as_i64().unwrap() > 0 && micro(&receipt["credits"]) > 0,
                "{receipt}"
            );
            if way.vendor == Chat && case == estimated {
                assert_eq!(usage["cache_read"], 40, "{receipt}");
            }
        }
    }
    // A stream has no usage if the client did not ask for it.
    let body = json!({"model": Chat.model(), "stream": true, "max_tokens": LIMIT,
        "messages": [{"role": "user", "content": "case 0;"}]});
    let answer = world.ask(&Chat.request(&account.key, &body));
    assert!(
        answer.text().contains(TEXT) && !answer.text().contains("usage"),
        "{}",
        answer.text()
    );
}
