//! Answers whose usage no vendor reported: their cost, compared with the cost of the same answer
//! with reported usage.
//!
//! The tests compute the true cost from the usage that the simulated vendor sets. `disconnect.rs`
//! tests at which moments clients disconnect.

use crate::account::{Account, micro};
use crate::client::Request;
use crate::surface::{Chat, Messages, Surface};
use crate::world::{Plan, World};
use base64::Engine;
use serde_json::{Value, json};

/// Seconds for which the gateway reads a stream on after the client disconnected: for a model that
/// shows its reasoning, and for one that hides it.
const DRAIN: u64 = 1;
const DRAIN_HIDDEN: u64 = 6;

/// Size of a long conversation's text, in bytes.
const LONG_BYTES: usize = 198_000;
/// The usage that the vendor counts for this text: nearly all of it is cached.
const CACHED: &str = "input=1500 cache_read=48000 output=300";
/// A stream that lasts longer than any drain.
const LASTS: &str = "events=120 bytes=1200 gap_ms=100";
/// A stream that lasts longer than the usual drain, but not longer than the drain of a model that
/// hides its reasoning.
const SLOW: &str = "events=30 bytes=1200 gap_ms=100";

const CHAT_MODEL: &str = "beta-5.2";
const MESSAGES_MODEL: &str = "alpha-opus-4-7";

/// A chat model that shows its reasoning, so that only an uncertain estimate can cause the longer
/// drain.
fn plan() -> Plan {
    Plan::default()
        .limit("drain_after_client_seconds", DRAIN)
        .limit("drain_reasoning_seconds", DRAIN_HIDDEN)
        .edit(
            "    upstream_model: gpt-5.2\n",
            "    upstream_model: gpt-5.2\n    capabilities: {reasoning: false}\n",
        )
}

/// One turn of a conversation of `bytes` bytes. `marker` sets the vendor's behaviour.
fn turn(surface: Surface, model: &str, bytes: usize, marker: &str, stream: bool) -> Value {
    let mut body = surface.body(marker, stream, 2_000);
    body["model"] = model.into();
    let mut messages = vec![
        json!({"role": "user", "content": "a line of an ordinary text ".repeat(bytes / 27)}),
        json!({"role": "assistant", "content": "Yes."}),
    ];
    messages.append(body["messages"].as_array_mut().unwrap());
    body["messages"] = messages.into();
    body
}

fn request(surface: Surface, account: &Account, session: &str, body: &Value) -> Request {
    surface
        .request(&account.key, body)
        .header("x-session-id", session)
}

/// The receipt of an answer that the client reads to its end.
fn whole(world: &World, account: &Account, request: &Request) -> Value {
    let answer = world.expect(200, request);
    world.receipt(account, &answer.request_id())
}

/// The receipt of a stream whose client disconnects after a few events.
fn left_early(world: &World, account: &Account, request: &Request) -> Value {
    let before = world.endings(account).len();
    let (mut connection, mut answer) = world.begin(request);
    while answer.text().matches("\n\n").count() < 8 {
        assert!(connection.more(&mut answer), "{}", answer.text());
    }
    drop(connection);
    let ending = world.ended(account, before + 1);
    assert_eq!(ending["outcome"], "client_left", "{ending}");
    world.receipt(account, ending["request_id"].as_str().unwrap())
}

#[track_caller]
fn assert_at_most_a_tenth_more(left: &Value, whole: &Value) {
    let (left_cost, whole_cost) = (micro(&left["credits"]), micro(&whole["credits"]));
    assert!(left_cost > 0, "{left}");
    assert!(
        left_cost * 10 <= whole_cost * 11,
        "left: {left_cost}, whole: {whole_cost}: {left} {whole}"
    );
}

/// The cost of `CACHED` at the model's prices, in µc.
fn cost_of_cached(model: &str) -> i64 {
    match model {
        CHAT_MODEL => 1_500 * 175 + 48_000 * 175 / 10 + 300 * 1_400,
        _ => 1_500 * 500 + 48_000 * 50 + 300 * 2_500,
    }
}

/// For each surface and model: one complete turn, then one whose client disconnects early.
fn leaves_cached_conversations(world: &World, models: &[&str]) {
    let account = world.funded(1_000_000_000);
    for surface in [Chat, Messages] {
        for model in models {
            let session = format!("cached-{surface:?}-{model}");
            let ask = |marker: &str, stream| {
                request(
                    surface,
                    &account,
                    &session,
                    &turn(surface, model, LONG_BYTES, marker, stream),
                )
            };
            let whole = whole(world, &account, &ask(CACHED, false));
            assert_eq!(micro(&whole["credits"]), cost_of_cached(model), "{whole}");
            let left = left_early(world, &account, &ask(&format!("{CACHED} {LASTS}"), true));
            assert_eq!(left["estimated"], true, "{left}");
            assert_at_most_a_tenth_more(&left, &whole);
            assert!(
                left["usage"]["cache_read"].as_u64().unwrap() >= 48_000,
                "{left}"
            );
        }
    }
    for model in models {
        assert_eq!(
            world.metric("gateway_estimated_total", &[&format!("model=\"{model}\"")]),
            2.0,
            "{model}"
        );
    }
}

#[test]
fn leaving_a_cached_conversation_costs_no_more_than_its_whole_answer() {
    let world = plan().start();
    leaves_cached_conversations(&world, &[CHAT_MODEL, MESSAGES_MODEL]);
}

#[test]
fn leaving_a_cached_conversation_of_a_responses_vendor_costs_no_more_either() {
    let world = plan()
        .edit("    protocol: chat\n", "    protocol: responses\n")
        .start();
    leaves_cached_conversations(&world, &[CHAT_MODEL]);
}

/// A vendor that caches automatically reports 0 cached tokens for the first turn, because nothing
/// is cached yet.
#[test]
fn leaving_the_second_turn_costs_no_more_than_its_whole_answer() {
    let world = plan().start();
    let account = world.funded(1_000_000_000);
    let ask = |marker: &str, stream| {
        request(
            Chat,
            &account,
            "second-turn",
            &turn(Chat, CHAT_MODEL, LONG_BYTES, marker, stream),
        )
    };
    let first = whole(&world, &account, &ask("input=49500 output=300", false));
    assert_eq!(first["usage"]["cache_read"], 0, "{first}");
    let left = left_early(&world, &account, &ask(&format!("{CACHED} {LASTS}"), true));
    assert_eq!(left["estimated"], true, "{left}");
    assert!(
        left["usage"]["cache_read"].as_u64() >= Some(48_000),
        "{left}"
    );
    let second = whole(&world, &account, &ask(CACHED, false));
    assert_eq!(
        micro(&second["credits"]),
        cost_of_cached(CHAT_MODEL),
        "{second}"
    );
    assert_at_most_a_tenth_more(&left, &second);
    // A vendor that does not cache. Once it has reported no cached tokens for a turn that repeated
    // the first, the gateway assumes no caching.
    let ask = |marker: &str, stream| {
        request(
            Chat,
            &account,
            "never-cached",
            &turn(Chat, CHAT_MODEL, LONG_BYTES, marker, stream),
        )
    };
    for _ in 0..2 {
        whole(&world, &account, &ask("input=49500 output=300", false));
    }
    let left = left_early(
        &world,
        &account,
        &ask(&format!("input=49500 output=300 {LASTS}"), true),
    );
    assert_eq!(
        (&left["estimated"], &left["usage"]["cache_read"]),
        (&true.into(), &0.into()),
        "{left}"
    );
}

#[test]
fn what_was_cached_is_learned_where_the_conversation_is_new() {
    let world = plan().start();
    let account = world.funded(1_000_000_000);
    for surface in [Chat, Messages] {
        let body = turn(
            surface,
            CHAT_MODEL,
            LONG_BYTES,
            &format!("{CACHED} {SLOW}"),
            true,
        );
        let left = left_early(
            &world,
            &account,
            &request(surface, &account, &format!("new-{surface:?}"), &body),
        );
        assert_eq!(left["estimated"], false, "{left}");
        assert_eq!(
            micro(&left["credits"]),
            1_500 * 175 + 48_000 * 175 / 10 + 300 * 1_400,
            "{left}"
        );
    }
    // The text is too small for any vendor's cache. The gateway does not drain for longer, because
    // what it could learn is worth less than the output.
    let body = turn(
        Chat,
        CHAT_MODEL,
        2_000,
        &format!("input=520 output=300 {SLOW}"),
        true,
    );
    let left = left_early(&world, &account, &request(Chat, &account, "small", &body));
    assert_eq!(left["estimated"], true, "{left}");
}

#[test]
fn one_accounts_conversation_says_nothing_of_anothers() {
    let world = plan().start();
    let (account, stranger) = (
        world.funded(1_000_000_000),
        world.account_with("stranger@example.test", &[]),
    );
    let ask = |account: &Account, marker: &str, stream| {
        request(
            Chat,
            account,
            "shared-name",
            &turn(Chat, CHAT_MODEL, LONG_BYTES, marker, stream),
        )
    };
    whole(&world, &account, &ask(&account, CACHED, false));
    let own = left_early(
        &world,
        &account,
        &ask(&account, &format!("{CACHED} {LASTS}"), true),
    );
    assert!(own["usage"]["cache_read"].as_u64() > Some(0), "{own}");
    let other = left_early(
        &world,
        &stranger,
        &ask(&stranger, &format!("{CACHED} {LASTS}"), true),
    );
    assert_eq!(
        (&other["estimated"], &other["usage"]["cache_read"]),
        (&true.into(), &0.into()),
        "{other}"
    );
}

/// A PNG's first chunk, padded to `bytes` bytes.
fn png(width: u32, height: u32, bytes: usize) -> String {
    let mut image = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    image.extend(width.to_be_bytes());
    image.extend(height.to_be_bytes());
    image.extend([8, 2, 0, 0, 0]);
    image
        .extend((0..bytes.saturating_sub(image.len())).map(|at| ((at * 2_654_435_761) >> 7) as u8));
    base64::engine::general_purpose::STANDARD.encode(image)
}

fn with_image(surface: Surface, model: &str, image: &str, marker: &str) -> Value {
    let mut body = surface.body(marker, false, 1_000);
    body["model"] = model.into();
    let text = body["messages"][0]["content"].take();
    let image = match surface {
        Chat => {
            json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{image}")}})
        }
        Messages => {
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}})
        }
    };
    body["messages"][0]["content"] = json!([image, {"type": "text", "text": text}]);
    body
}

#[test]
fn an_image_whose_usage_is_not_reported_is_no_text() {
    let world = plan().start();
    let account = world.funded(10_000_000_000);
    let image = png(1_200, 1_000, 750_000);
    for surface in [Chat, Messages] {
        for model in [CHAT_MODEL, MESSAGES_MODEL] {
            let ask =
                |marker| surface.request(&account.key, &with_image(surface, model, &image, marker));
            let reported = whole(&world, &account, &ask("text=seen"));
            assert_eq!(reported["estimated"], false, "{reported}");
            let input = reported["usage"]["input"].as_i64().unwrap();
            assert!(
                (500..3_000).contains(&input),
                "the vendor counts an image: {reported}"
            );
            let estimated = whole(&world, &account, &ask("text=seen usage=none"));
            assert_eq!(estimated["estimated"], true, "{estimated}");
            let (least, most) = (micro(&reported["credits"]), micro(&estimated["credits"]));
            assert!(
                least <= most * 11 / 10 && most <= least * 3,
                "{surface:?} {model}: {reported} {estimated}"
            );
        }
    }
}

#[test]
fn an_image_is_set_aside_for_as_an_image() {
    let world = plan().start();
    // 5 000 tokens for the image, some for text, and 1 000 of output cost slightly more than 5
    // credits.
    let account = world.funded(6_000_000);
    let image = png(1_200, 1_000, 750_000);
    for surface in [Chat, Messages] {
        let body = with_image(
            surface,
            MESSAGES_MODEL,
            &image,
            "text=seen input=1600 output=2",
        );
        let answer = world.ask(&surface.request(&account.key, &body));
        assert_eq!(
            (answer.status, answer.header("x-gateway-warnings")),
            (200, None),
            "{}",
            answer.text()
        );
        let receipt = world.receipt(&account, &answer.request_id());
        assert_eq!(
            micro(&receipt["credits"]),
            1_600 * 500 + 2 * 2_500,
            "{receipt}"
        );
        assert_eq!(world.standing(&account).held, 0);
        world.grant(&account, "0.805", &format!("{surface:?}"));
    }
    // The gateway reserves credits for text by its bytes, and this text exceeds the balance.
    let mut body = with_image(Messages, MESSAGES_MODEL, &image, "text=seen");
    body["messages"][0]["content"][0] = json!({"type": "text", "text": image});
    world.expect(402, &Messages.request(&account.key, &body));
}
