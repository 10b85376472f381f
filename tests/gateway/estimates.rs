//! Answers whose usage no vendor reported: what they cost beside the same answer with its usage
//! reported.
//!
//! What is true is computed from the simulated vendor's own books. Who leaves at which moment is
//! `disconnect.rs`.

use crate::account::{Account, micro};
use crate::client::Request;
use crate::surface::{Chat, Messages, Surface};
use crate::world::{Plan, World};
use base64::Engine;
use serde_json::{Value, json};

/// Seconds that a stream is read on, of a model that shows its reasoning and of one that hides it.
const DRAIN: u64 = 1;
const DRAIN_HIDDEN: u64 = 6;

/// Text of a long conversation, in bytes.
const LONG_BYTES: usize = 198_000;
/// What the vendor counts of it: nearly all of it was cached.
const CACHED: &str = "input=1500 cache_read=48000 output=300";
/// Streamed for longer than any drain.
const LASTS: &str = "events=120 bytes=1200 gap_ms=100";
/// Streamed for longer than a usual drain, and not for longer than one of a model that hides its
/// reasoning.
const SLOW: &str = "events=30 bytes=1200 gap_ms=100";

const CHAT_MODEL: &str = "beta-5.2";
const MESSAGES_MODEL: &str = "alpha-opus-4-7";

/// A chat model that shows its reasoning, so that nothing but the bill asks for a longer drain.
fn plan() -> Plan {
    Plan::default()
        .limit("drain_after_client_seconds", DRAIN)
        .limit("drain_hidden_seconds", DRAIN_HIDDEN)
        .edit(
            "    upstream_model: gpt-5.2\n",
            "    upstream_model: gpt-5.2\n    capabilities: {reasoning: false}\n",
        )
}

/// A turn of a conversation of `bytes`, whose vendor behaves as `marker` says.
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
    let answer = world.ask(request);
    assert_eq!(answer.status, 200, "{}", answer.text());
    world.receipt(account, &answer.request_id())
}

/// The receipt of a stream whose client leaves after a few events.
fn left_early(world: &World, account: &Account, request: &Request) -> Value {
    let before = world.endings(account).len();
    let mut connection = world.connect();
    assert!(connection.send(&request.bytes()));
    let mut answer = connection.begin();
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

/// `CACHED` at the prices of each model, in µc.
fn cost_of_cached(model: &str) -> i64 {
    match model {
        CHAT_MODEL => 1_500 * 175 + 48_000 * 175 / 10 + 300 * 1_400,
        _ => 1_500 * 500 + 48_000 * 50 + 300 * 2_500,
    }
}

/// A whole turn, and then one that is left early, of each surface and vendor of a world.
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
    world.close();
}

#[test]
fn leaving_a_cached_conversation_of_a_responses_vendor_costs_no_more_either() {
    let world = plan()
        .edit("    protocol: chat\n", "    protocol: responses\n")
        .start();
    leaves_cached_conversations(&world, &[CHAT_MODEL]);
    world.close();
}

/// A vendor that caches on its own reports 0 cached tokens of the first turn, for nothing was
/// cached yet.
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
    // A vendor that does not cache: once it has reported so of a turn that repeated the first,
    // nothing is assumed.
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
    world.close();
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
    // Too small for any vendor's cache: nothing is to be learned that would be worth the output.
    let body = turn(
        Chat,
        CHAT_MODEL,
        2_000,
        &format!("input=520 output=300 {SLOW}"),
        true,
    );
    let left = left_early(&world, &account, &request(Chat, &account, "small", &body));
    assert_eq!(left["estimated"], true, "{left}");
    world.close();
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
    world.close();
}

/// A PNG's first chunk, and as much more as makes it so large.
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
    world.close();
}

#[test]
fn an_image_is_set_aside_for_as_an_image() {
    let world = plan().start();
    // 5 000 tokens of image, some text, and 1 000 of output: 5 credits and a little.
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
        world.json(&[
            "account",
            "grant",
            &account.id,
            "0.805",
            "--ref",
            &format!("{surface:?}"),
        ]);
    }
    // What is no image is set aside for by its bytes, and is too much.
    let mut body = with_image(Messages, MESSAGES_MODEL, &image, "text=seen");
    body["messages"][0]["content"][0] = json!({"type": "text", "text": image});
    let refused = world.ask(&Messages.request(&account.key, &body));
    assert_eq!(refused.status, 402, "{}", refused.text());
    world.close();
}
