//! Clients that leave at every moment of an answer: the gateway bills the vendor's own count, or
//! the estimate that the billing rule prescribes.
//!
//! The tests compute the expected bill from the simulated vendor's own records (the usage, and the
//! bytes sent before the cut), never from the gateway's receipt. `leaving.rs` tests single cases of
//! a client that leaves.

use crate::account::{Account, micro};
use crate::client::{Answer, Connection, Request};
use crate::surface::{BOTH, Chat, Messages, Surface};
use crate::world::{Plan, SOON, World, wait_for};
use serde_json::Value;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The seconds for which the gateway reads on a stream that it cuts off after that.
const DRAIN: u64 = 4;
/// The same for a stream that it reads to its end, however slow the machine is.
const PATIENT_DRAIN: u64 = 600;
/// With this output limit, the gateway does not ask the vendor to stream a translated answer that
/// the client does not want streamed.
const LIMIT: u64 = 8_000;

/// Every kind of frame: role or start, thinking, text with multi-byte characters, a call, usage,
/// the end.
const FRAMES: &str = r#"blocks=[{"thinking":"let me think about it"},{"text":"Grüße, 世界: naïve façade"},{"tool":"look","args":{"at":"Zürich"}}] events=3 gap_ms=120 input=311 output=97"#;
/// Shows few bytes and has used far more tokens. It goes on for longer than [`DRAIN`].
const HIDES_CHAT: &str = "text=\"short words after long thoughts\" events=6 gap_ms=1000 input=311 output=5097 reasoning=5000";
const HIDES_MESSAGES: &str = r#"blocks=[{"thinking":"many words that nobody sees","omitted":true},{"text":"short words after long thoughts"}] events=8 gap_ms=700 input=311 output=5097 reasoning=5000"#;
/// Text of 120 characters, of which most have two bytes.
macro_rules! long_text {
    () => {
        "'äöüß äöüß äöüß äöüß äöüß äöüß äöüß äöüß äöüß äöüß äöüß äöüß äöüß äöüß äöüß äöüß äöüß äöüß äöüß äöüß äöüß äöüß äöüß äöüß '"
    };
}
/// Goes on for far longer than the gateway reads on, and hides nothing.
const GOES_ON: &str = concat!(
    "text=",
    long_text!(),
    " events=120 gap_ms=100 input=311 output=40"
);
/// Breaks off some seconds after a client left that reads a few frames. Its client may be slow.
const BREAKS_OFF_LATER: &str = concat!(
    "text=",
    long_text!(),
    " events=120 gap_ms=100 input=311 output=40 cut=57"
);
/// The vendor's stream breaks off before the client disconnects.
const BREAKS_OFF: &str =
    "text=\"äöüß äöüß äöüß äöüß\" events=19 gap_ms=100 input=311 output=40 cut=17";
/// The answer arrives in one piece, later than [`DRAIN`].
const LATE: &str = "delay_ms=7000 text=late input=301 output=21";
/// Streams for longer than [`DRAIN`], also if the client asked for a whole answer.
const SLOW: &str = "events=20 gap_ms=350 input=302 output=22";

/// The facts of a model that the tests need: its id, its vendor's protocol, and its prices per
/// token in µc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Model {
    id: &'static str,
    vendor: Surface,
    prices: (i64, i64),
}

const SHOWS: [Model; 2] = [
    Model {
        id: "beta-5.2",
        vendor: Chat,
        prices: (175, 1_400),
    },
    Model {
        id: "alpha-haiku-4-5-20251001",
        vendor: Messages,
        prices: (100, 500),
    },
];
const HIDES: [Model; 2] = [
    Model {
        id: "beta-5.5",
        vendor: Chat,
        prices: (500, 3_000),
    },
    Model {
        id: "alpha-opus-4-7",
        vendor: Messages,
        prices: (500, 2_500),
    },
];

impl Model {
    fn cost(self, input: i64, output: i64) -> i64 {
        input * self.prices.0 + output * self.prices.1
    }
}

/// When the client leaves, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    /// At the head, before the client has read a frame.
    AtHead,
    After(usize),
    /// With the next frame in transit or unread: the client's close resets the connection.
    Within(usize),
    /// The client closes its sending side and reads on.
    Half(usize),
    /// As soon as the gateway has reported that the vendor broke off.
    Told,
    /// The client asked for a whole answer, and leaves while the vendor is generating it.
    Waiting,
}

/// The end of the vendor's answer, which determines the bill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// The gateway reads it to its end, and bills the vendor's own count.
    Told,
    /// The gateway cuts it off, and bills the bytes that the vendor sent, at three tokens for ten
    /// bytes.
    Cut,
    /// The vendor breaks off after the client left: the gateway bills the bytes that the vendor
    /// sent.
    BrokeOff,
    /// The vendor broke off before the client left: the gateway bills nothing.
    Nothing,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    surface: Surface,
    model: Model,
    marker: &'static str,
    limit: u64,
    leaves: Leaves,
    due: Due,
    /// The client leaves so close to the end that the answer may complete before the gateway
    /// notices. The price is the same.
    may_complete: bool,
}

/// The facts known after a case was played.
struct Played {
    case: Case,
    tag: String,
    id: Option<String>,
    /// The billed input tokens if the vendor did not report its count.
    estimate: i64,
    body_bytes: i64,
}

impl Case {
    fn request(&self, account: &Account, tag: &str) -> (Request, String) {
        let mut body = self
            .surface
            .body(self.marker, self.leaves != Leaves::Waiting, self.limit);
        body["model"] = self.model.id.into();
        let body = body
            .to_string()
            .replace("]] hello", &format!("]] hello {tag};"));
        (
            Request::post(self.surface.path(), body.clone()).bearer(&account.key),
            body,
        )
    }

    fn play(self, world: &World, account: &Account, number: usize) -> Played {
        let tag = format!("case-{number}");
        let (request, body) = self.request(account, &tag);
        let mut connection = world.connect();
        assert!(connection.send(&request.bytes()));
        let id = match self.leaves {
            Leaves::Waiting => {
                wait_for("the call", SOON, || recorded(world, &tag).map(drop));
                None
            }
            Leaves::Told => {
                let mut answer = connection.begin();
                connection.until(&mut answer, self.surface.error_frame());
                Some(answer.request_id())
            }
            Leaves::AtHead => Some(connection.begin().request_id()),
            Leaves::After(frames) | Leaves::Half(frames) => {
                Some(read(&mut connection, frames).request_id())
            }
            Leaves::Within(frames) => {
                let answer = read(&mut connection, frames);
                connection.wait_unread();
                Some(answer.request_id())
            }
        };
        if let Leaves::Half(_) = self.leaves {
            connection.half_close();
            while !connection.is_closed() {
                connection.forget();
            }
        }
        Played {
            case: self,
            tag,
            id,
            estimate: input_estimate(&body),
            body_bytes: body.len() as i64,
        }
    }
}

/// Three tokens for ten bytes, rounded up.
fn text_tokens(bytes: i64) -> i64 {
    (bytes * 3 + 9) / 10
}

/// The estimated input tokens of a body without media. Each escape in the body counts as one byte.
fn input_estimate(body: &str) -> i64 {
    text_tokens((body.len() - body.matches('\\').count()) as i64)
}

/// Reads this many frames of a stream.
fn read(connection: &mut Connection, frames: usize) -> Answer {
    let mut answer = connection.begin();
    while answer.text().matches("\n\n").count() < frames {
        assert!(connection.more(&mut answer), "only: {}", answer.text());
    }
    answer
}

/// The vendor's record of a request.
fn recorded(world: &World, tag: &str) -> Option<Value> {
    let sought = format!("{tag};");
    let calls = world.vendor.requests();
    let found = calls.as_array().unwrap().iter().find(|call| {
        call["body"]
            .as_str()
            .is_some_and(|body| body.contains(&sought))
    });
    found.cloned()
}

/// The bytes of text that may be in transit when the gateway cuts a stream off: what the vendor
/// sends in two seconds, in which a busy machine may not run the gateway. In [`DRAIN`] it sends
/// twice as many.
const IN_TRANSIT: i64 = 40;

/// The least and the most that the gateway may bill, in µc, computed from the vendor's own records.
fn due(played: &Played, answer: &Value) -> (i64, i64) {
    let Played {
        case,
        estimate: unreported,
        ..
    } = played;
    let count = |value: &Value| {
        value
            .as_i64()
            .unwrap_or_else(|| panic!("not counted: {answer}"))
    };
    let (input, output) = (
        count(&answer["usage"]["input"]),
        count(&answer["usage"]["output"]),
    );
    if case.due == Due::Told {
        assert_eq!(answer["end"], "sent", "read to its end: {case:?}");
        let cost = case.model.cost(input, output);
        return (cost, cost);
    }
    if case.due == Due::Nothing {
        return (0, 0);
    }
    let end = if case.due == Due::Cut { "gone" } else { "sent" };
    assert_eq!(answer["end"], end, "{case:?}");
    // A messages vendor reports the input at the start, a chat vendor at the end.
    let input = if case.model.vendor == Messages {
        input
    } else {
        *unreported
    };
    let shown = count(&answer["shown_bytes"]);
    let estimate = |bytes: i64| case.model.cost(input, text_tokens(bytes));
    (estimate((shown - IN_TRANSIT).max(0)), estimate(shown))
}

/// Plays all cases until each has shown what it is about.
fn play_all(world: &World, mut cases: Vec<Case>) {
    let deadline = Instant::now() + 3 * SOON;
    for round in 0.. {
        cases = play_round(world, &cases, round);
        if cases.is_empty() {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "no client leaves in time: {cases:?}"
        );
    }
}

/// Plays all cases at once and compares each bill with the vendor's records. Returns the cases
/// whose answer was complete before the gateway noticed that the client had left, which happens on
/// a busy machine and shows nothing.
fn play_round(world: &World, cases: &[Case], round: usize) -> Vec<Case> {
    let email = format!("round-{round}@example.test");
    let account = world.account_with(&email, &["--no-trial"]);
    world.grant(&account, "1000000", &format!("funds of round {round}"));
    let played: Vec<Played> = std::thread::scope(|scope| {
        let account = &account;
        let plays = cases.iter().enumerate();
        let plays: Vec<_> = plays
            .map(|(number, case)| {
                scope.spawn(move || case.play(world, account, round * 1_000 + number))
            })
            .collect();
        plays.into_iter().map(|play| play.join().unwrap()).collect()
    });
    let endings = wait_for("all to end", SOON, || {
        let endings = world.endings(&account);
        (endings.len() >= cases.len()).then_some(endings)
    });
    world.vendor.wait_idle();
    assert_eq!(endings.len(), cases.len(), "one ending for each");
    assert_eq!(world.standing(&account).held, 0);
    let mut by_id: HashMap<&str, &Value> = endings
        .iter()
        .map(|ending| (ending["request_id"].as_str().unwrap(), ending))
        .collect();
    let mut of_unknown: Vec<i64> = Vec::new();
    let mut too_late = Vec::new();
    for play in &played {
        let (case, record) = (play.case, recorded(world, &play.tag).unwrap());
        let (least, most) = due(play, &record["answer"]);
        let input_most = record["body_length"].as_i64().unwrap().max(play.body_bytes);
        assert!(
            most <= case.model.cost(input_most, case.limit as i64),
            "within the hold: {case:?}"
        );
        let Some(id) = &play.id else {
            of_unknown.push(most);
            continue;
        };
        let ending = by_id
            .remove(id.as_str())
            .unwrap_or_else(|| panic!("no ending of {id}: {case:?}"));
        let outcome = ending["outcome"].as_str().unwrap();
        match case.due {
            Due::Nothing => assert_eq!(outcome, "vendor_cut", "{case:?}: {ending}"),
            Due::Told if outcome == "completed" => {
                too_late.extend((!case.may_complete).then_some(case));
            }
            _ => assert_eq!(outcome, "client_left", "{case:?}: {ending}"),
        }
        let receipt = world.receipt(&account, id);
        let billed = micro(&receipt["credits"]);
        assert!(
            (least..=most).contains(&billed),
            "{case:?}: {least}..={most}: {receipt} {record}"
        );
        let is_estimate = matches!(case.due, Due::Cut | Due::BrokeOff);
        assert_eq!(receipt["estimated"], is_estimate, "{case:?}: {receipt}");
        assert_eq!(micro(&ending["writeoff"]), 0, "{ending}");
    }
    // The ids of clients that left before a head came are unknown. Compare all their bills
    // together.
    assert!(
        by_id
            .values()
            .all(|ending| ending["outcome"] == "client_left"),
        "{by_id:?}"
    );
    let mut unknown: Vec<i64> = by_id
        .values()
        .map(|ending| micro(&ending["credits"]))
        .collect();
    unknown.sort_unstable();
    of_unknown.sort_unstable();
    assert_eq!(
        unknown, of_unknown,
        "the bills of those that waited for the whole"
    );
    too_late
}

/// `drain`: the seconds for which the gateway reads on a stream that shows its reasoning.
fn world(drain: u64) -> World {
    Plan::default()
        .limit("drain_after_client_seconds", drain)
        .limit("drain_reasoning_seconds", PATIENT_DRAIN)
        .edit(
            "    upstream_model: gpt-5.2\n",
            "    upstream_model: gpt-5.2\n    capabilities: {reasoning: false}\n",
        )
        .start()
}

/// Each of the models over each of the surfaces.
fn ways(models: [Model; 2]) -> impl Iterator<Item = (Surface, Model)> {
    BOTH.into_iter()
        .flat_map(move |surface| models.into_iter().map(move |model| (surface, model)))
}

fn case(
    (surface, model): (Surface, Model),
    marker: &'static str,
    leaves: Leaves,
    due: Due,
) -> Case {
    Case {
        surface,
        model,
        marker,
        limit: LIMIT,
        leaves,
        due,
        may_complete: false,
    }
}

/// The number of frames of an answer that a client sees.
fn frames(
    world: &World,
    account: &Account,
    (surface, model): (Surface, Model),
    marker: &'static str,
) -> usize {
    let whole = case((surface, model), marker, Leaves::AtHead, Due::Told);
    let answer = world.ask(&whole.request(account, "counted").0);
    assert!(surface.is_complete(&answer), "{}", answer.text());
    answer.text().matches("\n\n").count()
}

#[test]
fn a_client_that_leaves_at_any_frame_pays_what_the_vendor_counted() {
    let world = world(PATIENT_DRAIN);
    let counter = world.account();
    let mut cases = Vec::new();
    let counts: Vec<_> = std::thread::scope(|scope| {
        let count = |way| frames(&world, &counter, way, FRAMES);
        let counts = ways(SHOWS).map(|way| (way, scope.spawn(move || count(way))));
        let counts: Vec<_> = counts.collect();
        let joined = counts.into_iter();
        joined
            .map(|(way, count)| (way, count.join().unwrap()))
            .collect()
    });
    for (way, count) in counts {
        assert!(count > 12, "{way:?}: only {count} frames");
        let step = if crate::is_long() { 1 } else { 2 };
        let mut add = |leaves, frame: usize| {
            let may_complete = frame + 6 > count;
            cases.push(Case {
                may_complete,
                ..case(way, FRAMES, leaves, Due::Told)
            });
        };
        add(Leaves::AtHead, 0);
        (1..count)
            .step_by(step)
            .for_each(|frame| add(Leaves::After(frame), frame));
        (1..count - 7)
            .step_by(step * 4)
            .for_each(|frame| add(Leaves::Within(frame), frame));
        (2..count)
            .step_by(step * 4)
            .for_each(|frame| add(Leaves::Half(frame), frame));
        add(Leaves::After(count - 1), count - 1);
    }
    play_all(&world, cases);
}

#[test]
fn a_vendor_that_breaks_off_after_its_client_left_is_paid_for_what_it_sent() {
    let world = world(PATIENT_DRAIN);
    let cases = ways(SHOWS).map(|way| {
        let leaves = Leaves::After(7);
        case(way, BREAKS_OFF_LATER, leaves, Due::BrokeOff)
    });
    play_all(&world, cases.collect());
}

#[test]
fn what_is_not_learned_in_time_is_estimated_and_what_was_hidden_is_waited_for() {
    let world = world(DRAIN);
    let mut cases = Vec::new();
    for way in ways(SHOWS) {
        let moments = [
            Leaves::AtHead,
            Leaves::After(7),
            Leaves::After(11),
            Leaves::Within(8),
            Leaves::Half(9),
        ];
        cases.extend(moments.map(|leaves| case(way, GOES_ON, leaves, Due::Cut)));
        if crate::is_long() {
            cases.extend((6..30).map(|frame| case(way, GOES_ON, Leaves::After(frame), Due::Cut)));
        }
        cases.push(case(way, BREAKS_OFF, Leaves::Told, Due::Nothing));
        cases.push(case(way, LATE, Leaves::Waiting, Due::Told));
        if way == (Chat, SHOWS[1]) {
            // With a higher output limit, the gateway asks the vendor to stream, although the
            // client wants a whole answer.
            cases.push(Case {
                limit: 9_000,
                ..case(way, SLOW, Leaves::Waiting, Due::Told)
            });
        }
    }
    for (surface, model) in ways(HIDES) {
        // The frame with the first text.
        let frame = match (surface, model.vendor) {
            (Chat, _) => 2,
            (Messages, Chat) => 4,
            (Messages, Messages) => 7,
        };
        let marker = if model.vendor == Chat {
            HIDES_CHAT
        } else {
            HIDES_MESSAGES
        };
        for leaves in [
            Leaves::AtHead,
            Leaves::After(frame),
            Leaves::Half(frame + 1),
        ] {
            cases.push(case((surface, model), marker, leaves, Due::Told));
        }
    }
    // What is hidden goes on for longer than the drain of the others, and is read to its end.
    play_all(&world, cases);
}

/// More than the buffers of any connection hold.
const LARGE_BYTES: i64 = 6_000_000;
/// So little that the gateway need not wait for the client to read, however slow the client is.
const SMALL_BYTES: i64 = 6_000;
const LARGE_EVENTS: usize = 600;
/// How long the vendor sends nothing more before the client that pauses reads on. Far longer than
/// the second after which the gateway blames the client for the delay.
const HELD_UP: Duration = Duration::from_secs(4);

/// A request and the estimate of its input. `end` says what the vendor does once it has sent all of
/// the text.
fn large(
    (surface, model): (Surface, Model),
    account: &Account,
    bytes: i64,
    end: &str,
) -> (Request, i64) {
    // The vendor sends other events before the text: a chat vendor the role; a messages vendor the
    // start, a ping and the start of the block.
    let events = LARGE_EVENTS + if model.vendor == Chat { 1 } else { 3 };
    let end = if end.is_empty() {
        String::new()
    } else {
        format!("{end}={events}")
    };
    let marker = format!(
        "lenient=1 overrun=1 bytes={bytes} events={LARGE_EVENTS} input=311 output=900 {end}"
    );
    let mut body = surface.body(&marker, true, 6_000_000);
    body["model"] = model.id.into();
    (
        surface.request(&account.key, &body),
        input_estimate(&body.to_string()),
    )
}

/// The outcome and the bill of an answer that the client reads as `how` does, and the estimate of
/// its input.
fn bill(
    world: &World,
    account: &Account,
    way: (Surface, Model),
    (bytes, end): (i64, &str),
    how: fn(&World, &mut Connection, &mut Answer),
) -> (String, i64, i64) {
    let (request, body) = large(way, account, bytes, end);
    let (mut connection, mut answer) = world.begin(&request);
    how(world, &mut connection, &mut answer);
    let id = answer.request_id();
    let receipt = wait_for("the receipt", SOON, || {
        let answer = world.ask(&Request::get(&format!("/v1/receipts/{id}")).bearer(&account.key));
        (answer.status == 200).then(|| answer.json())
    });
    drop(connection);
    (
        receipt["outcome"].as_str().unwrap().to_owned(),
        micro(&receipt["credits"]),
        body,
    )
}

fn stops(_: &World, _: &mut Connection, _: &mut Answer) {}

/// Reads the answer after a pause in which the vendor is held up: long enough that the gateway
/// blames the client for the delay.
fn pauses(world: &World, connection: &mut Connection, answer: &mut Answer) {
    let paused = format!("bytes={LARGE_BYTES} ");
    let sent = || -> u64 {
        let calls = world.vendor.requests();
        let is_paused = |call: &&Value| call["body"].as_str().unwrap().contains(&paused);
        let of_paused = calls.as_array().unwrap().iter().filter(is_paused);
        of_paused
            .filter_map(|call| call["answer"]["shown_bytes"].as_u64())
            .sum()
    };
    let mut last = (0, Instant::now());
    wait_for("the vendor to be held up", SOON, || {
        let now = sent();
        if now != last.0 {
            last = (now, Instant::now());
        }
        (now > 0 && last.1.elapsed() > HELD_UP).then_some(())
    });
    connection.finish(answer);
}

fn reads_on(_: &World, connection: &mut Connection, answer: &mut Answer) {
    connection.finish(answer);
}

#[test]
fn a_client_that_holds_the_stream_up_is_the_cause_of_what_its_vendor_does_then() {
    let world = |write_seconds: u64| {
        let plan = Plan::default().limit("client_write_seconds", write_seconds);
        plan.limit("drain_after_client_seconds", PATIENT_DRAIN)
            .start()
    };
    // The one that stops reading is given up soon, and the one that pauses is not.
    let (impatient, world) = (world(2), world(600));
    let account = world.funded(1_000_000_000_000);
    let of_impatient = impatient.funded(1_000_000_000_000);
    std::thread::scope(|scope| {
        for way in
            ways(SHOWS).filter(|(surface, model)| *surface == model.vendor || crate::is_long())
        {
            let (world, account, model) = (&world, &account, way.1);
            let (impatient, of_impatient) = (&impatient, &of_impatient);
            scope.spawn(move || {
                let (outcome, billed, _) =
                    bill(impatient, of_impatient, way, (LARGE_BYTES, ""), stops);
                assert_eq!(
                    (outcome.as_str(), billed),
                    ("client_left", model.cost(311, 900)),
                    "{way:?} stops reading"
                );
            });
            scope.spawn(move || {
                let (outcome, billed, body) =
                    bill(world, account, way, (LARGE_BYTES, "cut"), pauses);
                assert_eq!(outcome, "client_left", "{way:?} holds it up");
                if way.0 == model.vendor {
                    let input = if model.vendor == Messages { 311 } else { body };
                    assert_eq!(
                        billed,
                        model.cost(input, text_tokens(LARGE_BYTES)),
                        "{way:?} holds it up"
                    );
                } else {
                    // The output limit is the model's own here. So is the hold, which limits the
                    // estimate.
                    assert!(
                        billed > model.cost(0, 60_000) && billed < model.cost(1_000, 128_000),
                        "{way:?}: {billed}"
                    );
                }
            });
            scope.spawn(move || {
                let (outcome, billed, _) =
                    bill(world, account, way, (SMALL_BYTES, "cut"), reads_on);
                assert_eq!(
                    (outcome.as_str(), billed),
                    ("vendor_cut", 0),
                    "{way:?} reads on"
                );
            });
        }
    });
    impatient.close();
    world.close();
}

#[test]
fn a_key_is_free_exactly_where_nothing_was_billed_whoever_went_first() {
    let world = world(DRAIN);
    let account = world.funded(1_000_000_000);
    let count: u64 = if crate::is_long() { 160 } else { 32 };
    let request = |number: u64| {
        let surface = BOTH[number as usize % 2];
        let request = surface.stream(&account.key, "events=8 gap_ms=20 cut=7 input=311 output=40");
        request.header("idempotency-key", &format!("key-{number}"))
    };
    let ids: Vec<String> = std::thread::scope(|scope| {
        let (world, request) = (&world, &request);
        let plays: Vec<_> = (0..count)
            .map(|number| {
                scope.spawn(move || {
                    let mut connection = world.connect();
                    assert!(connection.send(&request(number).bytes()));
                    let id = connection.begin().request_id();
                    // The vendor breaks off about 100 ms from here.
                    std::thread::sleep(Duration::from_millis(60 + number * 80 / count));
                    id
                })
            })
            .collect();
        plays.into_iter().map(|play| play.join().unwrap()).collect()
    });
    let endings = wait_for("all to end", SOON, || {
        Some(world.endings(&account)).filter(|endings| endings.len() >= count as usize)
    });
    for (number, id) in ids.iter().enumerate() {
        let ending = endings
            .iter()
            .find(|ending| ending["request_id"] == id.as_str())
            .unwrap();
        let again = world.ask(&request(number as u64));
        let is_free = micro(&ending["credits"]) == 0;
        assert_eq!(ending["outcome"] == "client_left", !is_free, "{ending}");
        assert_eq!(
            again.status == 409,
            !is_free,
            "{ending}: {} {}",
            again.status,
            again.text()
        );
    }
    world.close();
}
