//! The files that operators give to Prometheus and Grafana speak of what the program really tells.

use std::collections::BTreeSet;

const SOURCE: &str = include_str!("../telemetry.rs");
const ALERTS: &str = include_str!("../../deploy/prometheus/alerts.yaml");
const DASHBOARD: &str = include_str!("../../deploy/grafana/model-gateway.json");

/// Words of a text that begin as a metric's name does.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("gateway_")).collect()
}

/// Names of labels that the families have.
fn labels() -> BTreeSet<&'static str> {
    let lists = SOURCE.match_indices("&[\"").map(|(at, _)| SOURCE[at..].split(']').next().unwrap());
    lists.flat_map(|list| list.split('"').skip(1).step_by(2)).collect()
}

/// Every expression in the alert rules and the dashboard.
fn expressions() -> Vec<String> {
    let rules: serde_json::Value = serde_saphyr::from_str(ALERTS).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let rules = rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
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
            assert!(families.contains(family), "{name} in {expression} is no metric of this program");
        }
    }
}

#[test]
fn every_label_in_the_alerts_and_the_dashboard_exists() {
    let known = labels();
    // What Prometheus itself adds.
    let added = ["instance", "job", "le"];
    for expression in expressions() {
        let matched = expression.match_indices('{').map(|(at, _)| expression[at + 1..].split('}').next().unwrap());
        let matched = matched.flat_map(|list| list.split(',')).map(|pair| pair.split(['=', '~', '!']).next().unwrap());
        let grouped = expression.match_indices("by (").map(|(at, _)| expression[at + 4..].split(')').next().unwrap());
        for label in matched.chain(grouped.flat_map(|list| list.split(','))).map(str::trim) {
            assert!(known.contains(label) || added.contains(&label), "{label} in {expression} is no label");
        }
    }
}

#[test]
fn every_alert_says_what_it_means_and_what_to_do() {
    let rules: serde_json::Value = serde_saphyr::from_str(ALERTS).unwrap();
    for rule in rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap()) {
        for text in ["summary", "action"] {
            assert!(rule["annotations"][text].as_str().is_some_and(|text| text.len() > 10), "{text} of {rule}");
        }
        assert!(matches!(rule["labels"]["severity"].as_str(), Some("page" | "ticket")), "{rule}");
    }
}
