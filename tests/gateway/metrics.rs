//! The metrics of the admin port: every promised family is there, and no label has a value that a
//! client chose.

use crate::client::Request;
use crate::surface::{BOTH, Chat, Messages};
use crate::world::{SOON, World, wait_for, wait_until};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

const ALERTS: &str = include_str!("../../deploy/prometheus/alerts.yaml");
const ALERT_TESTS: &str = include_str!("../../deploy/prometheus/alerts_test.yaml");
const DASHBOARD: &str = include_str!("../../deploy/grafana/model-gateway.json");
/// Labels that Prometheus adds, and one whose value is a port that the test chose.
const NOT_COMPARED: [&str; 3] = ["instance", "job", "endpoint"];

/// Every promised family, with the labels of its samples.
const FAMILIES: [(&str, &[&str]); 17] = [
    (
        "gateway_requests_total",
        &["route", "surface", "model", "status"],
    ),
    ("gateway_request_seconds_count", &["surface", "model"]),
    ("gateway_time_to_first_byte_seconds_count", &[]),
    ("gateway_overhead_seconds_count", &[]),
    (
        "gateway_upstream_requests_total",
        &["vendor", "endpoint", "status"],
    ),
    ("gateway_upstream_healthy", &["vendor", "endpoint"]),
    ("gateway_tokens_total", &["model", "class"]),
    ("gateway_credits_micro_total", &["model"]),
    ("gateway_open_holds", &[]),
    ("gateway_streams_open", &[]),
    ("gateway_journal_pending", &[]),
    ("gateway_index_lag_entries", &[]),
    ("gateway_journal_oldest_seconds", &[]),
    ("gateway_withheld_endings", &[]),
    ("gateway_rejected_total", &["reason"]),
    ("gateway_config_reloads_total", &["result"]),
    ("gateway_ledger_errors_total", &["reason"]),
];

fn series(world: &World) -> BTreeSet<String> {
    let text = world.metrics();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(series, _)| series.to_owned())
        .collect()
}

#[test]
fn every_promised_family_is_there_after_a_few_requests() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        world.works(surface, &account.key);
        world.ask(&surface.stream(&account.key, "input=5 output=5"));
        world.ask(&surface.whole(&account.key, "status=500"));
        world.ask(&surface.whole("gw-sk-none", "input=1"));
    }
    world.signal("HUP");
    world.wait_metric("gateway_config_reloads_total", &["result=\"ok\""], 1.0);
    let series = series(&world);
    for (family, labels) in FAMILIES {
        let sample = series
            .iter()
            .find(|sample| sample.split('{').next() == Some(family));
        let sample = sample.unwrap_or_else(|| panic!("no {family} in {series:#?}"));
        for label in labels {
            assert!(
                sample.contains(&format!("{label}=\"")),
                "{sample} has no {label}"
            );
        }
    }
    world.has_metric(
        "gateway_requests_total",
        &["surface=\"chat\"", "beta-5.2", "status=\"200\""],
        2.0,
    );
    world.has_metric(
        "gateway_requests_total",
        &["surface=\"messages\"", "status=\"401\""],
        1.0,
    );
    world.has_metric(
        "gateway_tokens_total",
        &[Messages.model(), "class=\"output\""],
        15.0,
    );
    let cost = Chat.cost(15, 15);
    assert_eq!(
        world.metric("gateway_credits_micro_total", &[Chat.model()]),
        cost as f64
    );
    world.has_metric("gateway_rejected_total", &["reason=\"bad_key\""], 2.0);
    world.has_metric(
        "gateway_upstream_requests_total",
        &["vendor=\"beta\"", "status=\"200\""],
        2.0,
    );
}

#[test]
fn what_a_client_sends_never_becomes_a_series() {
    let (world, account) = World::with_account();
    let junk = |round: usize| {
        for surface in BOTH {
            let mut body = surface.body("input=1", false, 100);
            body["model"] = format!("junk-{round}").into();
            world.ask(&surface.request(&account.key, &body));
            world.ask(
                &Request::get(&format!("/v1/junk-{round}"))
                    .header("anthropic-version", &format!("v{round}")),
            );
            world.ask(&Request::get(&format!("/v1/models/junk-{round}")).bearer(&account.key));
            world.ask(&Request::new(&format!("JUNK{round}"), surface.path()));
            world.ask(&surface.request(&format!("gw-sk-junk-{round}"), &json!({})));
            world.ask(&Request::get(&format!("/junk-{round}")));
            world.ask(&surface.whole(
                &account.key,
                &format!("model=junk-{round} finish=junk-{round} input=1"),
            ));
        }
    };
    junk(0);
    // The gateway counts a request after it has sent the answer, so the client may be faster.
    let asked = 7.0 * BOTH.len() as f64;
    wait_until("the first round to be counted", SOON, || {
        world.metric("gateway_requests_total", &[]) >= asked
    });
    let before = series(&world);
    for round in 1..if crate::is_long() { 1_000 } else { 40 } {
        junk(round);
    }
    let after = series(&world);
    let new: Vec<_> = after.difference(&before).collect();
    assert!(new.is_empty(), "{new:?}");
    let text = world.metrics();
    for word in [
        "junk",
        "JUNK",
        "gw-sk",
        &account.id,
        &account.email,
        "127.0.0.1:1234",
    ] {
        assert!(!text.contains(word), "{word} is in the metrics");
    }
}

/// A selector of an expression, or a series of `/metrics`: a family with label values.
#[derive(Debug, Clone)]
struct Selector {
    family: String,
    labels: BTreeMap<String, String>,
}

impl Selector {
    /// Parses `family{label="value",…}` and ignores the rest. Keeps only the values of `=`
    /// matchers.
    fn parse(text: &str) -> Self {
        let end = text
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(text.len());
        let inside = text[end..]
            .strip_prefix('{')
            .map_or("", |rest| rest.split('}').next().unwrap());
        let mut labels = BTreeMap::new();
        for pair in inside.split(',').filter(|pair| !pair.trim().is_empty()) {
            let (name, value) = pair.split_once('"').unwrap();
            let is_exact = name.ends_with('=') && !name.ends_with("!=");
            let name = name.trim_end_matches(['=', '~', '!']).trim();
            let value = if is_exact {
                value.trim_end_matches('"')
            } else {
                ""
            };
            labels.insert(name.to_owned(), value.to_owned());
        }
        labels.retain(|name, _| !["instance", "job"].contains(&name.as_str()));
        Self {
            family: text[..end].to_owned(),
            labels,
        }
    }

    /// Every selector in an expression.
    fn all_of(expression: &str) -> Vec<Self> {
        let starts = ["gateway_", "gen_ai_", "process_"]
            .into_iter()
            .flat_map(|start| expression.match_indices(start));
        let is_word =
            |at: usize| expression[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        starts
            .filter(|(at, _)| !is_word(*at))
            .map(|(at, _)| Self::parse(&expression[at..]))
            .collect()
    }

    /// Whether the series has this family and all these labels with their values.
    fn selects(&self, series: &Self) -> bool {
        self.family == series.family
            && self.labels.iter().all(|(name, value)| {
                let found = series.labels.get(name);
                found.is_some_and(|found| {
                    value.is_empty() || NOT_COMPARED.contains(&name.as_str()) || found == value
                })
            })
    }
}

/// The gateway's series with their values.
fn values(world: &World) -> Vec<(Selector, f64)> {
    let text = world.metrics();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(series, value)| (Selector::parse(series), value.parse().unwrap()))
        .collect()
}

/// A series that begins at 1 hides its first event from `increase()`, so an alert would miss the
/// first incident.
#[test]
fn a_gateway_that_has_just_started_has_every_series_of_the_alerts_and_the_dashboard_and_counters_at_zero()
 {
    let world = World::new();
    let mut series = values(&world);
    // The gateway first counts the ledger's segments while it already serves requests.
    while !series
        .iter()
        .any(|(one, _)| one.family == "gateway_ledger_segments")
    {
        series = values(&world);
    }
    let rules: serde_json::Value = serde_saphyr::from_str(ALERTS).unwrap();
    let rules = rules["groups"][0]["rules"].as_array().unwrap().clone();
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().clone();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let expressions: Vec<_> = rules
        .iter()
        .chain(targets)
        .map(|of| of["expr"].as_str().unwrap().to_owned())
        .collect();
    assert!(expressions.len() > 40);
    for expression in &expressions {
        for selector in Selector::all_of(expression) {
            assert!(
                series.iter().any(|(series, _)| selector.selects(series)),
                "{selector:?} of {expression}"
            );
        }
    }
    // The unit tests of the alerts start with the same series as a new gateway.
    let tests: serde_json::Value = serde_saphyr::from_str(ALERT_TESTS).unwrap();
    let inputs = tests["tests"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|test| test["input_series"].as_array().unwrap());
    for input in inputs.filter(|input| !input["series"].as_str().unwrap().starts_with("up{")) {
        let (text, first) = (
            input["series"].as_str().unwrap(),
            input["values"].as_str().unwrap(),
        );
        let selector = Selector::parse(text);
        let found = series.iter().find(|(series, _)| {
            selector.selects(series) && series.labels.len() == selector.labels.len()
        });
        let (_, value) = found.unwrap_or_else(|| panic!("a new gateway has no {text}"));
        // A process counts damage that it finds at its start before the first scrape. The alert for
        // it uses the value itself, not its increase.
        let is_found_at_start = text.starts_with("gateway_damaged_");
        if text.contains("_total{") && !is_found_at_start {
            assert!(
                first.starts_with('0') && *value == 0.0,
                "{text}: {value} here, {first} in the unit test"
            );
        }
    }
}

#[test]
fn no_counter_begins_above_zero_and_a_reload_adds_those_of_new_models() {
    let world = World::new();
    let before = values(&world);
    let is_counter = |family: &str| family.starts_with("gateway_") && family.ends_with("_total");
    let begun: Vec<_> = before
        .iter()
        .filter(|(series, value)| is_counter(&series.family) && *value > 0.0)
        .collect();
    assert!(begun.is_empty(), "{begun:?}");
    let count = |all: &[(Selector, f64)], model: &str| {
        all.iter()
            .filter(|(series, _)| series.labels.values().any(|value| value == model))
            .count()
    };
    let config = std::fs::read_to_string(&world.config).unwrap();
    std::fs::write(
        &world.config,
        config.replace("- id: beta-5.5", "- id: beta-new"),
    )
    .unwrap();
    world.signal("HUP");
    let loaded =
        || (world.metric("gateway_config_reloads_total", &["result=\"ok\""]) == 1.0).then_some(());
    wait_for("the reload to be counted", SOON, loaded);
    let after = values(&world);
    assert!(
        count(&before, "beta-5.5") > 50,
        "{}",
        count(&before, "beta-5.5")
    );
    assert_eq!(
        (count(&before, "beta-new"), count(&after, "beta-new")),
        (0, count(&before, "beta-5.5"))
    );
    // A request creates no new series.
    let account = world.account();
    let names = |world: &World| series(world).into_iter().collect::<BTreeSet<_>>();
    let fresh = names(&world);
    for surface in BOTH {
        world.works(surface, &account.key);
        world.ask(&surface.stream(&account.key, "input=5 output=5"));
        world.ask(&surface.whole(&account.key, "status=529"));
        world.ask(&surface.whole("gw-sk-none", "input=1"));
    }
    let operations = || {
        world.metric(
            "gen_ai_client_operation_duration_seconds_count",
            &["error_type=\"\""],
        )
    };
    wait_until("the requests to be counted", SOON, || operations() >= 4.0);
    let new: Vec<_> = names(&world)
        .difference(&fresh)
        .filter(|series| !series.contains("error_type=\""))
        .cloned()
        .collect();
    let new: Vec<_> = new
        .into_iter()
        .filter(|series| !series.contains("gen_ai_client_operation"))
        .collect();
    assert!(new.is_empty(), "{new:?}");
}

#[test]
fn the_process_the_build_and_the_conventions_for_generative_ai_have_their_usual_names() {
    let (world, account) = World::with_account();
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    world.has_metric(
        "gateway_build_info",
        &[
            &format!("version=\"{}\"", env!("CARGO_PKG_VERSION")),
            "arch=\"",
        ],
        1.0,
    );
    assert!((now - world.metric("process_start_time_seconds", &[])).abs() < 120.0);
    for (family, least) in [
        ("process_cpu_seconds_total", 0.001),
        ("process_resident_memory_bytes", 1e6),
        ("process_virtual_memory_bytes", 1e6),
        ("process_open_fds", 5.0),
        ("process_max_fds", 64.0),
        ("process_threads", 2.0),
    ] {
        assert!(world.metric(family, &[]) >= least, "{family}");
    }
    let labels = [
        "gen_ai_operation_name=\"chat\"",
        "gen_ai_provider_name=\"beta\"",
        "gen_ai_request_model=\"beta-5.2\"",
    ];
    let metric =
        |family: &str, more: &str| world.metric(family, &[labels[0], labels[1], labels[2], more]);
    world.ask(&Chat.stream(&account.key, "input=700 output=30"));
    wait_until("the tokens to be counted", SOON, || {
        metric(
            "gen_ai_client_token_usage_count",
            "gen_ai_token_type=\"output\"",
        ) == 1.0
    });
    assert_eq!(
        metric(
            "gen_ai_client_token_usage_sum",
            "gen_ai_token_type=\"input\""
        ),
        700.0
    );
    assert_eq!(
        metric(
            "gen_ai_client_token_usage_sum",
            "gen_ai_token_type=\"output\""
        ),
        30.0
    );
    assert_eq!(
        metric("gen_ai_server_time_to_first_token_seconds_count", ""),
        1.0
    );
    world.ask(&Chat.whole(&account.key, "status=500"));
    let operations = |error: &str| metric("gen_ai_client_operation_duration_seconds_count", error);
    wait_until("the failure to be counted", SOON, || operations("") == 2.0);
    assert_eq!(operations("error_type=\"\""), 1.0, "{}", world.metrics());
    // An unstreamed answer has no time to first token.
    world.ask(&Chat.whole(&account.key, "input=3 output=3"));
    wait_until("the answer to be counted", SOON, || {
        metric(
            "gen_ai_client_operation_duration_seconds_count",
            "error_type=\"\"",
        ) == 2.0
    });
    assert_eq!(
        metric("gen_ai_server_time_to_first_token_seconds_count", ""),
        1.0
    );
}
