//! Compatible servers that ignore the output limit. The gateway ends such a stream when it has used
//! up its hold, reports to the client that the output limit was reached, and stops reading from the
//! vendor. It never cuts off an answer that keeps the limit.

use crate::account::{Account, micro};
use crate::client::{Answer, End, Request};
use crate::surface::{BOTH, Chat, Messages, Surface};
use crate::world::{Plan, SOON, World, wait_until};
use serde_json::Value;

/// The requested output limit, in tokens.
const LIMIT: i64 = 300;
/// The largest number of bytes that one token represents.
const TOKEN_BYTES: i64 = 128;

fn world() -> World {
    compatible().start()
}

fn compatible() -> Plan {
    Plan::default().edit("official: true", "official: false")
}

/// Both surfaces, each with a vendor of its own protocol and with one of the other.
fn ways() -> impl Iterator<Item = (Surface, Surface)> {
    BOTH.into_iter()
        .flat_map(|surface| BOTH.into_iter().map(move |vendor| (surface, vendor)))
}

fn request(
    (surface, vendor): (Surface, Surface),
    account: &Account,
    marker: &str,
    limit: i64,
) -> Request {
    let mut body = surface.body(marker, true, limit as u64);
    body["model"] = vendor.model().into();
    if surface == Chat {
        body["stream_options"] = serde_json::json!({"include_usage": true});
    }
    surface.request(&account.key, &body)
}

/// The stop reason and the usage that the client reads.
fn told(surface: Surface, answer: &Answer) -> (String, i64, i64) {
    let text = answer.text();
    let events = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let (mut reasons, mut usage) = (Vec::new(), Value::Null);
    for event in events {
        let reason = if surface == Chat {
            &event["choices"][0]["finish_reason"]
        } else {
            &event["delta"]["stop_reason"]
        };
        reasons.extend(reason.as_str().map(str::to_owned));
        if event["usage"].is_object() {
            usage = event["usage"].clone();
        }
    }
    assert_eq!(reasons.len(), 1, "one reason to end: {text}");
    let (input, output) = if surface == Chat {
        ("prompt_tokens", "completion_tokens")
    } else {
        ("input_tokens", "output_tokens")
    };
    (
        reasons.remove(0),
        usage[input].as_i64().unwrap(),
        usage[output].as_i64().unwrap(),
    )
}

fn limit_reached(surface: Surface) -> &'static str {
    if surface == Chat {
        "length"
    } else {
        "max_tokens"
    }
}

/// Asserts that the stream is complete. A messages client also needs an end for every block.
fn is_well_formed(surface: Surface, answer: &Answer) {
    assert!(surface.is_complete(answer), "{}", answer.text());
    if surface == Messages {
        let text = answer.text();
        let count = |event: &str| text.matches(&format!("event: {event}\n")).count();
        assert_eq!(
            count("content_block_start"),
            count("content_block_stop"),
            "{text}"
        );
        assert_eq!(
            (
                count("message_start"),
                count("message_delta").min(1),
                count("message_stop")
            ),
            (1, 1, 1),
            "{text}"
        );
    }
}

/// Asserts that the gateway ended the answer at its hold: the client gets that stop reason, the
/// bill equals the reported usage and stays within the hold, and the gateway stops reading from the
/// vendor.
fn ended_at_its_hold(world: &World, account: &Account, way: (Surface, Surface), marker: &str) {
    let (surface, vendor) = way;
    let request = request(way, account, marker, LIMIT);
    let gone = world.vendor.stats()["client_gone"].as_u64().unwrap();
    let answer = world.ask(&request);
    assert_eq!(answer.end(), Some(End::Whole));
    is_well_formed(surface, &answer);
    let (reason, input, output) = told(surface, &answer);
    assert_eq!(
        reason,
        limit_reached(surface),
        "{way:?} {marker}: {}",
        answer.text()
    );
    assert!(output <= LIMIT, "{way:?} {marker}: {output}");
    let receipt = world.receipt(account, &answer.request_id());
    assert_eq!(
        (&receipt["outcome"], &receipt["estimated"]),
        (&"gateway_ended".into(), &true.into()),
        "{receipt}"
    );
    let billed = micro(&receipt["credits"]);
    assert_eq!(
        billed,
        vendor.cost(input, output),
        "what is told is what is billed: {receipt}"
    );
    let body = world.vendor.last()["body_length"]
        .as_i64()
        .unwrap()
        .max(request.framed_body().len() as i64);
    assert!(
        billed <= vendor.cost(body, LIMIT) && billed > vendor.cost(0, LIMIT),
        "{way:?} {marker}: {receipt}"
    );
    assert_eq!(receipt.get("writeoff"), None, "{receipt}");
    wait_until("the vendor to be told to stop", SOON, || {
        world.vendor.stats()["client_gone"].as_u64().unwrap() > gone
    });
}

#[test]
fn a_stream_that_ignores_its_limit_ends_at_its_hold() {
    let world = world();
    let account = world.funded(10_000_000_000);
    for way in ways() {
        // First the vendor reports usage with every event. Then it does not, and the gateway has to
        // count bytes.
        let endless = "overrun=1 bytes=400000 events=4000 gap_ms=2 input=40";
        ended_at_its_hold(
            &world,
            &account,
            way,
            &format!("{endless} output=100000 usage=every"),
        );
        ended_at_its_hold(&world, &account, way, &format!("{endless} output=100000"));
    }
}

#[test]
fn an_answer_that_keeps_its_limit_is_never_cut_short() {
    let world = world();
    let account = world.funded(10_000_000_000);
    for way in ways() {
        // The longest possible answer: exactly as many tokens as requested, each of the largest
        // size.
        let bytes = LIMIT * TOKEN_BYTES;
        for usage in ["every", "none", "twice"] {
            let marker =
                format!("overrun=1 bytes={bytes} events=300 input=40 output={LIMIT} usage={usage}");
            let answer = world.ask(&request(way, &account, &marker, LIMIT));
            is_well_formed(way.0, &answer);
            let receipt = world.receipt(&account, &answer.request_id());
            assert_eq!(
                receipt["outcome"], "completed",
                "{way:?} {usage}: {receipt}"
            );
            if usage != "none" {
                assert_eq!(
                    micro(&receipt["credits"]),
                    way.1.cost(40, LIMIT),
                    "{receipt}"
                );
            }
        }
    }
}

#[test]
fn an_estimate_is_not_beyond_the_limit_however_long_the_answer_is() {
    let (world, account) = World::with_funds(10_000_000_000);
    for (way, stream) in ways().flat_map(|way| [(way, false), (way, true)]) {
        let (surface, vendor) = way;
        let mut body = surface.body(
            "overrun=1 bytes=100000 events=50 usage=none",
            stream,
            LIMIT as u64,
        );
        body["model"] = vendor.model().into();
        let answer = world.expect(200, &surface.request(&account.key, &body));
        let receipt = world.receipt(&account, &answer.request_id());
        assert_eq!(
            receipt["usage"]["output"], LIMIT,
            "{way:?} streamed: {stream}: {receipt}"
        );
        assert_eq!(receipt["estimated"], true, "{receipt}");
    }
}

#[test]
fn the_vendor_that_defined_the_protocol_is_not_cut_short_and_billed_at_the_limit() {
    let (world, account) = World::with_funds(10_000_000_000);
    for way in ways() {
        let marker = "overrun=1 bytes=400000 events=400 input=40 output=1000";
        let answer = world.ask(&request(way, &account, marker, LIMIT));
        let receipt = world.receipt(&account, &answer.request_id());
        assert_eq!(receipt["outcome"], "completed", "{receipt}");
        assert_eq!(
            micro(&receipt["credits"]),
            way.1.cost(40, LIMIT),
            "{receipt}"
        );
        assert_eq!(
            receipt["implausible"], "implausible usage, capped",
            "{receipt}"
        );
    }
}

#[test]
fn an_answer_at_its_hold_is_kept_for_its_key_and_a_whole_one_is_ended_too() {
    let world = world();
    let account = world.funded(10_000_000_000);
    let endless = "overrun=1 bytes=9000000 events=9000 input=40 output=100000000 usage=every";
    for way in ways() {
        let keyed = request(way, &account, endless, LIMIT)
            .header("idempotency-key", &format!("{way:?}").replace(' ', ""));
        let first = world.ask(&keyed);
        let balance = world.standing(&account).balance;
        let again = world.ask(&keyed);
        assert_eq!(
            (again.header("x-gateway-replayed"), &again.body),
            (Some("true"), &first.body),
            "{}",
            again.text()
        );
        assert_eq!(world.standing(&account).balance, balance);
    }
    // If the client wants a long answer whole, the gateway streams it from a vendor of the other
    // protocol.
    let mut body = Chat.body(endless, false, 9_000);
    body["model"] = Messages.model().into();
    let answer = world.ask(&Chat.request(&account.key, &body));
    assert_eq!(
        answer.json()["choices"][0]["finish_reason"],
        "length",
        "{}",
        answer.text()
    );
    let receipt = world.receipt(&account, &answer.request_id());
    assert_eq!(
        (&receipt["outcome"], receipt.get("writeoff")),
        (&"gateway_ended".into(), None),
        "{receipt}"
    );
}

#[test]
fn a_client_that_left_is_not_drained_past_the_hold() {
    let world = world();
    let account = world.funded(10_000_000_000);
    for (index, way) in ways().enumerate() {
        let marker = "overrun=1 bytes=40000 events=400 gap_ms=50 input=40 output=10000 usage=every";
        let mut connection = world.connect();
        assert!(connection.send(&request(way, &account, marker, LIMIT).bytes()));
        connection.begin();
        drop(connection);
        let ending = world.ended(&account, index + 1);
        assert_eq!(
            (ending["outcome"].as_str(), micro(&ending["writeoff"])),
            (Some("client_left"), 0),
            "{ending}"
        );
        assert!(
            micro(&ending["credits"]) <= way.1.cost(1_000, LIMIT),
            "{ending}"
        );
    }
    world.vendor.wait_idle();
    assert_eq!(world.vendor.stats()["client_gone"], 4);
}
