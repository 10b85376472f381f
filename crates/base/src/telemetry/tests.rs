//! Checks that the Prometheus and Grafana files for operators match the metrics that the program
//! exports.

use super::metrics::LEDGER_ERROR_REASONS;
use std::collections::BTreeSet;

const SOURCE: &str = concat!(include_str!("metrics.rs"), include_str!("gen_ai.rs"));
const ALERTS: &str = include_str!("../../../../deploy/prometheus/alerts.yaml");
const DASHBOARD: &str = include_str!("../../../../deploy/grafana/model-gateway.json");

/// Words of a text that begin like a metric name.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("gateway_")).collect()
}

/// Label names of all families.
fn labels() -> BTreeSet<&'static str> {
    let lists = SOURCE
        .match_indices("&[\"")
        .map(|(at, _)| SOURCE[at..].split(']').next().unwrap());
    lists
        .flat_map(|list| list.split('"').skip(1).step_by(2))
        .collect()
}

/// All expressions in the alert rules and the dashboard.
fn expressions() -> Vec<String> {
    let rules: serde_json::Value = serde_saphyr::from_str(ALERTS).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let rules = rules["groups"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap());
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let text = |of: &serde_json::Value| of["expr"].as_str().unwrap().to_owned();
    rules.map(text).chain(targets.map(text)).collect()
}

#[test]
fn every_metric_in_the_alerts_and_the_dashboard_exists() {
    let families = names(SOURCE);
    assert!(families.len() > 15, "{families:?}");
    let expressions = expressions();
    assert!(expressions.len() > 25);
    for expression in &expressions {
        for name in names(expression) {
            let family = name.strip_suffix("_bucket").unwrap_or(name);
            assert!(
                families.contains(family),
                "{name} in {expression} is no metric of this program"
            );
        }
    }
}

#[test]
fn every_label_in_the_alerts_and_the_dashboard_exists() {
    let known = labels();
    // Labels that Prometheus itself adds.
    let added = ["instance", "job", "le"];
    for expression in expressions() {
        let matched = expression
            .match_indices('{')
            .map(|(at, _)| expression[at + 1..].split('}').next().unwrap());
        let matched = matched
            .flat_map(|list| list.split(','))
            .map(|pair| pair.split(['=', '~', '!']).next().unwrap());
        let grouped = expression
            .match_indices("by (")
            .map(|(at, _)| expression[at + 4..].split(')').next().unwrap());
        for label in matched
            .chain(grouped.flat_map(|list| list.split(',')))
            .map(str::trim)
        {
            assert!(
                known.contains(label) || added.contains(&label),
                "{label} in {expression} is no label"
            );
        }
    }
}

/// Compares the literals that the code passes to `ledger_error`, and the failures of the shared
/// store, with the list.
#[test]
fn every_reason_of_a_ledger_error_is_in_the_list_that_begins_at_zero() {
    fn read(folder: &std::path::Path, into: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => read(&path, into),
                false if path.ends_with("telemetry/tests.rs") => {}
                false => into.push_str(&std::fs::read_to_string(&path).unwrap()),
            }
        }
    }
    let mut source = String::new();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for folder in ["src", "crates/base/src"] {
        read(&root.join(folder), &mut source);
    }
    let literals = source
        .split("ledger_error(\"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap());
    let tasks = source.split("(IngestTask::").skip(1).filter_map(|rest| {
        rest.split_once(", ")?
            .1
            .strip_prefix('"')?
            .split('"')
            .next()
    });
    let tasks: Vec<_> = tasks.collect();
    assert!(tasks.len() > 5, "{tasks:?}");
    let store = source
        .split("\"store_")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap());
    let store: BTreeSet<_> = store
        .filter(|word| word.bytes().all(|b| b == b'_' || b.is_ascii_lowercase()))
        .collect();
    let known: BTreeSet<_> = LEDGER_ERROR_REASONS.into();
    for reason in literals.filter(|reason| !reason.contains(' ')).chain(tasks) {
        assert!(known.contains(reason), "{reason}");
    }
    for reason in ["out_of_memory", "timeout", "unreachable", "away", "refused"] {
        assert!(
            store.contains(reason) && known.contains(format!("store_{reason}").as_str()),
            "{reason}"
        );
    }
    assert!(known.len() == LEDGER_ERROR_REASONS.len() && known.len() > 30);
}

#[test]
fn every_alert_has_a_unit_test_that_fires_it_and_is_in_the_quiet_day() {
    let tests: serde_json::Value = serde_saphyr::from_str(include_str!(
        "../../../../deploy/prometheus/alerts_test.yaml"
    ))
    .unwrap();
    let tests = tests["tests"].as_array().unwrap();
    let fired: BTreeSet<_> = tests
        .iter()
        .flat_map(|test| names_in(&test["promql_expr_test"].to_string()))
        .collect();
    let quiet = tests
        .iter()
        .find(|test| test["name"] == "a quiet day")
        .unwrap();
    assert_eq!(
        quiet["promql_expr_test"][0]["exp_samples"],
        serde_json::json!([])
    );
    let series = quiet["input_series"].to_string();
    let rules: serde_json::Value = serde_saphyr::from_str(ALERTS).unwrap();
    for rule in rules["groups"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap())
    {
        let (alert, expression) = (
            rule["alert"].as_str().unwrap(),
            rule["expr"].as_str().unwrap(),
        );
        assert!(fired.contains(alert), "no unit test fires {alert}");
        for name in names(expression) {
            assert!(
                series.contains(&format!("{name}{{")),
                "the quiet day has no {name}"
            );
        }
    }
}

/// Values of `alertname` in a JSON text.
fn names_in(text: &str) -> Vec<String> {
    text.split("alertname=\\\"")
        .skip(1)
        .map(|rest| rest.split('\\').next().unwrap().to_owned())
        .collect()
}

/// An alert on `up` that names another job would never fire.
#[test]
fn the_scrape_config_has_the_job_that_the_alerts_name_and_loads_them() {
    let named = expressions().join("\n") + DASHBOARD;
    let named = named
        .split("job=\"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap());
    let named: BTreeSet<_> = named.map(str::to_owned).collect();
    for config in [
        include_str!("../../../../deploy/prometheus/prometheus.yml"),
        include_str!("../../../../deploy/prometheus/compose.yml"),
    ] {
        let scrape: serde_json::Value = serde_saphyr::from_str(config).unwrap();
        let jobs = scrape["scrape_configs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|job| job["job_name"].as_str().unwrap());
        assert_eq!(jobs.map(str::to_owned).collect::<BTreeSet<_>>(), named);
        assert_eq!(scrape["rule_files"], serde_json::json!(["alerts.yaml"]));
    }
}

#[test]
fn every_alert_says_what_it_means_and_what_to_do() {
    let rules: serde_json::Value = serde_saphyr::from_str(ALERTS).unwrap();
    for rule in rules["groups"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap())
    {
        for text in ["summary", "action"] {
            assert!(
                rule["annotations"][text]
                    .as_str()
                    .is_some_and(|text| text.len() > 10),
                "{text} of {rule}"
            );
        }
        assert!(
            matches!(rule["labels"]["severity"].as_str(), Some("page" | "ticket")),
            "{rule}"
        );
    }
}
