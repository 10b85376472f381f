//! Every way in which a vendor's answer can break off: after each frame of a recorded stream of
//! each protocol, on each surface. An answer is complete once its stop reason has arrived, and the
//! same cut gets the same verdict on all surfaces.
//!
//! `crates/llm-protocol/src/vendor_response/completion.rs` states the rule. The request's text asks
//! the simulated vendor for a cut.

use crate::account::{Account, micro};
use crate::cut_vendor::made::{LETTERS, NO_ANSWERS};
use crate::cut_vendor::{
    CUTS, Cut, CutVendor, GATEWAY_MARK, H2_CONNECTION_CUTS, H2_STREAM_CUTS, Kind, h2_steps,
    recording,
};
use crate::is_long;
use crate::scripted_vendor::{Authority, Flow, H2Vendor, Step};
use crate::world::{Plan, Simulator, World};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

mod read;

use read::{Read, post};

/// The protocols, which are also the names of the surfaces.
pub const PROTOCOLS: [&str; 3] = ["chat", "messages", "responses"];
const MODELS: [&str; 3] = ["beta-5.2", "alpha-haiku-4-5-20251001", "gamma-1"];
const CREDIT: i64 = 1_000_000_000_000;
/// Concurrent requests.
const MANY: usize = 48;

/// A vendor of the responses protocol, besides the two shipped ones.
const GAMMA: &str = r#"  gamma:
    protocol: responses
    official: true
    endpoints: [ENDPOINTS]
    sticky: false
    api_key: "sim-gamma-key"
models:
  - id: gamma-1
    vendor: gamma
    upstream_model: gpt-5.5
    context_tokens: 400000
    max_output_tokens: 128000
    price: {input: "175", cache_read: "17.5", output: "1400"}
"#;

/// A world whose vendors of all three protocols use these URLs.
fn plan(urls: &[&str]) -> Plan {
    let endpoints: Vec<_> = urls
        .iter()
        .map(|url| format!("{{url: \"{url}\"}}"))
        .collect();
    let gamma = GAMMA.replace("ENDPOINTS", &endpoints.join(", "));
    let plan = Plan::default()
        .turns()
        .endpoints_as(&endpoints)
        .edit("models:\n", &gamma);
    let limits = [
        ("idle_seconds", 3),
        ("attempts", urls.len() as u64),
        ("breaker_failures", 0),
        ("open_requests_per_account", 1_000),
        ("retry_budget_percent", 100),
    ];
    limits
        .into_iter()
        .fold(plan, |plan, (key, value)| plan.limit(key, value))
}

/// One request: its vendor, its surface, and how the answer breaks off.
#[derive(Clone, Copy, Debug)]
struct Cell {
    vendor: &'static str,
    surface: &'static str,
    streams: bool,
    cut: Cut,
}

/// What the gateway must make of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Billed like the uncut answer.
    Complete,
    /// Billed from an estimate.
    Estimated,
    /// Not billed.
    CutOff,
}

impl Cell {
    /// The verdict according to the table in `completion.rs`.
    fn verdict(&self) -> Verdict {
        let recording = recording(self.vendor, self.vendor_streams());
        let (has_stop, has_usage) = recording.seen(self.cut.frames);
        let is_last = self.cut.frames == recording.frames.len();
        match (has_stop, has_usage) {
            (false, _) => Verdict::CutOff,
            (true, true) => Verdict::Complete,
            (true, false) if self.cut.kind == Kind::ErrorEvent && !is_last => Verdict::CutOff,
            (true, false) => Verdict::Estimated,
        }
    }

    /// The gateway streams from a messages vendor when the client of another protocol wants a long
    /// answer whole.
    fn vendor_streams(&self) -> bool {
        self.streams || self.vendor == "messages" && self.surface != "messages"
    }

    fn body(&self) -> Value {
        let model = MODELS[PROTOCOLS
            .iter()
            .position(|name| *name == self.vendor)
            .unwrap()];
        let Cut { kind, frames } = self.cut;
        let text = format!("{GATEWAY_MARK}{} {} {frames}]]", self.vendor, kind.name());
        // Above 8 192 tokens the gateway treats an answer as long.
        let limit = if self.cut.kind.is_cut() { 9_000 } else { 1_000 };
        let mut body = json!({"model": model, "stream": self.streams});
        match self.surface {
            "responses" => (body["input"], body["max_output_tokens"]) = (json!(text), json!(limit)),
            "messages" => {
                body["messages"] = json!([{"role": "user", "content": text}]);
                body["max_tokens"] = json!(limit);
            }
            _ => {
                body["messages"] = json!([{"role": "user", "content": text}]);
                body["max_completion_tokens"] = json!(limit);
                if self.streams {
                    body["stream_options"] = json!({"include_usage": true});
                }
            }
        }
        body
    }
}

struct Outcome {
    cell: Cell,
    read: Read,
    request_id: String,
}

/// Sends the requests of all cells, with as many concurrent requests as there are workers.
fn ask_all(world: &World, account: &Account, cells: &[Cell], workers: usize) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut outcomes = Vec::new();
        while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
            let answer = world.ask(&post(cell.surface, &account.key, &cell.body()));
            let read = Read::new(cell.surface, cell.streams, &answer, &format!("{cell:?}"));
            outcomes.push(Outcome {
                cell: *cell,
                read,
                request_id: answer.request_id(),
            });
        }
        outcomes
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap())
            .collect()
    })
}

fn pairs() -> impl Iterator<Item = (&'static str, &'static str, bool)> {
    PROTOCOLS.into_iter().flat_map(|vendor| {
        PROTOCOLS
            .into_iter()
            .flat_map(move |surface| [true, false].map(move |streams| (vendor, surface, streams)))
    })
}

/// The frame counts after which an answer is cut. A long run cuts after each frame, a short run
/// only around the beginning and the end.
fn places(frames: usize, stop: usize) -> Vec<usize> {
    let is_chosen = |at: &usize| is_long() || *at < 2 || *at == stop / 2 || *at + 1 >= stop;
    (0..=frames).filter(is_chosen).collect()
}

fn cells(kinds: &[Kind]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (vendor, surface, streams) in pairs() {
        let cell = |kind, frames| Cell {
            vendor,
            surface,
            streams,
            cut: Cut { kind, frames },
        };
        let recording = recording(vendor, cell(Kind::None, 0).vendor_streams());
        for kind in kinds.iter().filter(|kind| kind.fits(&recording)) {
            cells.extend(
                places(recording.frames.len(), recording.stop)
                    .into_iter()
                    .map(|frames| cell(*kind, frames)),
            );
        }
    }
    cells
}

/// One uncut answer for each pair of vendor and surface, streamed and whole.
fn uncut() -> Vec<Cell> {
    let whole = |(vendor, surface, streams)| {
        let cell = Cell {
            vendor,
            surface,
            streams,
            cut: Cut {
                kind: Kind::None,
                frames: 0,
            },
        };
        let frames = recording(vendor, cell.vendor_streams()).frames.len();
        Cell {
            cut: Cut {
                kind: Kind::None,
                frames,
            },
            ..cell
        }
    };
    pairs().map(whole).collect()
}

/// Sends all requests and checks the table's verdict against the client's answer, the bill and the
/// metric.
fn check(world: &World, kinds: &[Kind], workers: usize) {
    let account = world.funded(CREDIT);
    let baseline = ask_all(world, &account, &uncut(), workers);
    let (complete, cut): (Vec<_>, Vec<_>) = cells(kinds)
        .into_iter()
        .partition(|cell| cell.verdict() != Verdict::CutOff);
    assert!(!complete.is_empty() && !cut.is_empty());
    let complete = ask_all(world, &account, &complete, workers);
    assert_eq!(
        world.metric("gateway_vendor_cut_tokens_total", &[]),
        0.0,
        "what is billed is not lost"
    );
    let cut = ask_all(world, &account, &cut, workers);

    let asked = baseline.len() + complete.len() + cut.len();
    world.ended(&account, asked);
    let endings: HashMap<String, Value> = world
        .endings(&account)
        .into_iter()
        .map(|ending| (id(&ending), ending))
        .collect();
    let of_pair = |cell: &Cell| (cell.vendor, cell.surface, cell.streams);
    let uncut: HashMap<_, _> = baseline
        .iter()
        .map(|outcome| (of_pair(&outcome.cell), outcome))
        .collect();
    for outcome in baseline.iter().chain(&complete).chain(&cut) {
        let (cell, ending) = (&outcome.cell, &endings[&outcome.request_id]);
        let uncut = uncut[&of_pair(cell)];
        let (credits, full) = (
            micro(&ending["credits"]),
            micro(&endings[&uncut.request_id]["credits"]),
        );
        match cell.verdict() {
            Verdict::CutOff => {
                assert!(outcome.read.has_failed(), "{cell:?}: {:?}", outcome.read);
                assert_eq!(credits, 0, "{cell:?}: {ending}");
            }
            verdict => {
                assert!(!outcome.read.has_failed(), "{cell:?}: {:?}", outcome.read);
                assert_eq!(outcome.read.said(), uncut.read.said(), "{cell:?}");
                assert_eq!(ending["outcome"], "completed", "{cell:?}: {ending}");
                let is_estimated = verdict == Verdict::Estimated;
                assert!(
                    credits > 0 && (is_estimated || credits == full),
                    "{cell:?}: {credits} of {full}: {ending}"
                );
            }
        }
    }
    // For each vendor the metric counts tokens of cut answers that nobody paid for.
    for vendor in ["alpha", "beta", "gamma"] {
        for class in ["input", "output"] {
            let labels = [format!("vendor=\"{vendor}\""), format!("class=\"{class}\"")];
            let lost = world.metric(
                "gateway_vendor_cut_tokens_total",
                &labels.each_ref().map(String::as_str),
            );
            assert!(lost > 0.0, "{vendor} {class}");
        }
    }
}

fn id(ending: &Value) -> String {
    ending["request_id"].as_str().unwrap().to_owned()
}

#[test]
fn an_answer_is_complete_once_its_stop_reason_has_come_whatever_its_connection_does() {
    let vendor = CutVendor::start();
    let world = plan(&[&format!("http://127.0.0.1:{}", vendor.port)]).start();
    check(&world, &CUTS, MANY);
}

/// One request of this kind for each vendor on each surface, streamed and whole. The kind is not a
/// cut of the usual recording.
fn each(kind: Kind, frames: usize) -> Vec<Cell> {
    let cell = |(vendor, surface, streams)| Cell {
        vendor,
        surface,
        streams,
        cut: Cut { kind, frames },
    };
    pairs().map(cell).collect()
}

#[test]
fn a_200_without_an_answer_is_a_failed_answer_and_another_vendor_is_asked() {
    let vendor = CutVendor::start();
    let url = format!("http://127.0.0.1:{}", vendor.port);
    let cells: Vec<_> = (0..NO_ANSWERS.len())
        .flat_map(|number| each(Kind::NoAnswer, number))
        .collect();
    let world = plan(&[&url]).start();
    let account = world.funded(CREDIT);
    for outcome in ask_all(&world, &account, &cells, MANY) {
        let (cell, receipt) = (&outcome.cell, world.receipt(&account, &outcome.request_id));
        assert!(
            outcome.read.has_failed(),
            "{cell:?} {}: {:?}",
            NO_ANSWERS[cell.cut.frames],
            outcome.read
        );
        assert_eq!(
            (micro(&receipt["credits"]), &receipt["outcome"]),
            (0, &json!("vendor_error")),
            "{cell:?}: {receipt}"
        );
    }
    // The operator pays for usage that a vendor reports with a response that is no answer.
    assert!(world.metric("gateway_vendor_cut_tokens_total", &["class=\"output\""]) >= 9.0);
    world.close();

    let good = Simulator::start_in_the_clear(None);
    let world = plan(&[&url, &format!("http://127.0.0.1:{}", good.port)]).start();
    let account = world.funded(CREDIT);
    for outcome in ask_all(&world, &account, &cells, MANY) {
        assert!(
            !outcome.read.has_failed(),
            "{:?}: {:?}",
            outcome.cell,
            outcome.read
        );
    }
}

#[test]
fn a_stream_of_events_in_the_place_of_a_whole_answer_is_that_answer() {
    let vendor = CutVendor::start();
    let world = plan(&[&format!("http://127.0.0.1:{}", vendor.port)]).start();
    let account = world.funded(CREDIT);
    for outcome in ask_all(&world, &account, &each(Kind::Events, 0), MANY) {
        let (cell, receipt) = (&outcome.cell, world.receipt(&account, &outcome.request_id));
        assert!(
            !outcome.read.has_failed() && !outcome.read.text.is_empty(),
            "{cell:?}: {:?}",
            outcome.read
        );
        assert_eq!(receipt["outcome"], "completed", "{cell:?}: {receipt}");
    }
}

#[test]
fn the_event_that_completes_a_response_is_its_stop_reason_also_where_it_holds_no_response() {
    let vendor = CutVendor::start();
    let world = plan(&[&format!("http://127.0.0.1:{}", vendor.port)]).start();
    let account = world.funded(CREDIT);
    let cells: Vec<_> = each(Kind::BareEnd, 0)
        .into_iter()
        .filter(|cell| cell.vendor == "responses" && cell.streams)
        .collect();
    assert_eq!(cells.len(), PROTOCOLS.len());
    for outcome in ask_all(&world, &account, &cells, MANY) {
        let (cell, receipt) = (&outcome.cell, world.receipt(&account, &outcome.request_id));
        assert!(
            !outcome.read.has_failed() && !outcome.read.text.is_empty(),
            "{cell:?}: {:?}",
            outcome.read
        );
        let ending = (&receipt["outcome"], &receipt["estimated"]);
        assert_eq!(
            ending,
            (&json!("completed"), &json!(true)),
            "{cell:?}: {receipt}"
        );
        assert!(micro(&receipt["credits"]) > 0, "{cell:?}: {receipt}");
    }
}

#[test]
fn a_letter_that_is_split_over_segments_or_events_arrives_whole() {
    let vendor = CutVendor::start();
    let world = plan(&[&format!("http://127.0.0.1:{}", vendor.port)]).start();
    let account = world.funded(CREDIT);
    for outcome in ask_all(&world, &account, &each(Kind::Escapes, 0), MANY) {
        let arguments: Value = serde_json::from_str(&outcome.read.arguments).unwrap_or_default();
        let said = (outcome.read.text.as_str(), &arguments["k"]);
        assert_eq!(
            said,
            (LETTERS, &json!(LETTERS)),
            "{:?}: {:?}",
            outcome.cell,
            outcome.read
        );
    }
    let uncut = ask_all(&world, &account, &uncut(), MANY);
    for outcome in ask_all(&world, &account, &each(Kind::Segments, 0), MANY) {
        let cell = outcome.cell;
        let same = |other: &&Outcome| {
            (other.cell.vendor, other.cell.surface, other.cell.streams)
                == (cell.vendor, cell.surface, cell.streams)
        };
        let whole = uncut.iter().find(same).unwrap();
        // Only the messages vendor's streams contain this character.
        assert!(
            cell.vendor != "messages" || !cell.streams || outcome.read.text.contains('🌦'),
            "{cell:?}"
        );
        if cell.streams {
            assert_eq!(outcome.read.said(), whole.read.said(), "{cell:?}");
        }
    }
}

#[test]
fn a_call_that_was_cut_off_is_neither_finished_nor_repaired() {
    let vendor = CutVendor::start();
    let world = plan(&[&format!("http://127.0.0.1:{}", vendor.port)]).start();
    let account = world.funded(CREDIT);
    for outcome in ask_all(
        &world,
        &account,
        &[each(Kind::Call, 0), each(Kind::BareCall, 0)].concat(),
        MANY,
    ) {
        let (cell, read) = (&outcome.cell, &outcome.read);
        let stop = read.stop.as_deref().unwrap_or_default();
        let is_cut = matches!(
            stop,
            "length" | "max_tokens" | "response.incomplete" | "incomplete"
        );
        assert!(
            is_cut && read.text == "Ok." && read.finished_calls == 0,
            "{cell:?}: {read:?}"
        );
        if cell.vendor == cell.surface {
            continue;
        }
        // The input that the client's tool would get.
        let input = serde_json::from_str::<Value>(&read.arguments)
            .ok()
            .filter(Value::is_object);
        let is_wrapped =
            |input: &Value| input.as_object().unwrap().keys().eq(["_invalid_arguments"]);
        assert!(input.as_ref().is_none_or(is_wrapped), "{cell:?}: {read:?}");
    }
}

/// Runs [`check`] in a world whose vendors use HTTP/2 with one concurrent stream per connection.
fn with_h2(kinds: &[Kind], workers: usize) {
    let authority = Authority::new();
    let flow = Flow {
        max_streams: 1,
        ..Flow::default()
    };
    let vendor = H2Vendor::start(
        &authority.signs("localhost"),
        flow,
        Arc::new(|_| vec![Step::Answer(h2_steps)]),
    );
    let plan = plan(&[&format!("https://localhost:{}", vendor.port)])
        .environment("SSL_CERT_FILE", &authority.file);
    let world = plan.start();
    check(&world, kinds, workers);
}

#[test]
fn over_http2_an_answer_is_complete_once_its_stop_reason_has_come_whatever_its_stream_does() {
    with_h2(&H2_STREAM_CUTS, MANY);
}

/// Over HTTP/2, one request at a time, so that a connection's end affects no other request.
#[test]
fn over_http2_an_answer_is_complete_once_its_stop_reason_has_come_whatever_its_connection_does() {
    with_h2(&H2_CONNECTION_CUTS, 1);
}
