//! What `vendors learn` finds out about each strict stand-in, against the preset of the vendor.
//!
//! The stand-ins (`crates/vendor-simulator/dialects/`) are written from the vendors' SDKs and docs,
//! never from the presets. `learnt_profiles.yaml` has the differences, each with its reason: a
//! new one is a fault of a preset, of a stand-in or of a probe.

use crate::world::{Simulator, command_on};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

const DIALECTS: &str = include_str!("../../crates/vendor-simulator/dialects/dialects.json");
const PRESETS: &str = include_str!("../../crates/config/src/presets.yaml");
const PROBES: &str = include_str!("../../src/edge/learn/probes.yaml");
const DIFFERENCES: &str = include_str!("learnt_profiles.yaml");
/// Members that probes of their own try.
const TRIED_ELSEWHERE: [&str; 4] = [
    "extra_content",
    "reasoning_content",
    "reasoning_details",
    "stream_options",
];
/// Profile of a server that nothing describes.
const DEFAULTS: [&str; 6] = [
    "roles.alternate: false",
    "roles.developer: false",
    "roles.prefix: false",
    "roles.system: \"first\"",
    "roles.user_after_tool: true",
    "strict: false",
];

/// The entries of a profile as `KEY: VALUE`, without the defaults; lists have an entry for each
/// item.
fn entries(profile: &Value) -> BTreeSet<String> {
    let mut entries = BTreeSet::new();
    let mut profile = profile.as_object().cloned().unwrap_or_default();
    let names = |value: &Value| -> Vec<String> {
        let names = value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        names.map(str::to_owned).collect()
    };
    let mut request = match profile.remove("request") {
        Some(written) => names(&written),
        None => vec!["stream_options".to_owned()],
    };
    // As the config reads it: what a server's state and its switch are made of, it takes.
    let state = profile.get("state").map(names).unwrap_or_default();
    request.extend(
        state
            .iter()
            .map(|path| path.split('.').next().unwrap().to_owned()),
    );
    let switches = profile.get("thinking").and_then(Value::as_object).cloned();
    let switches = switches.unwrap_or_default();
    let members = switches.values().filter_map(Value::as_object);
    request.extend(members.flat_map(Map::keys).cloned());
    profile.insert("request".to_owned(), request.into());
    for (key, value) in &profile {
        match value {
            Value::Array(_) => {
                entries.extend(names(value).iter().map(|name| format!("{key}: {name}")));
            }
            Value::Object(inner) => {
                entries.extend(
                    inner
                        .iter()
                        .map(|(name, value)| format!("{key}.{name}: {value}")),
                );
            }
            _ => {
                entries.insert(format!("{key}: {value}"));
            }
        }
    }
    entries.retain(|entry| !DEFAULTS.contains(&entry.as_str()));
    entries
}

#[test]
fn a_learnt_profile_differs_from_the_shipped_one_for_a_reason() {
    let presets: Value = serde_saphyr::from_str(PRESETS).unwrap();
    let probes: Value = serde_saphyr::from_str(PROBES).unwrap();
    let mut dialects: BTreeMap<String, Value> = serde_json::from_str(DIALECTS).unwrap();
    // A profile of another protocol has few keys, and responses none that can be learnt.
    dialects.retain(|_, dialect| dialect["protocol"].is_null());
    let reasons: Vec<BTreeMap<String, Value>> = serde_saphyr::from_str(DIFFERENCES).unwrap();
    // Vendors' own members are not tried.
    let is_tried = |entry: &String| {
        let member = entry.strip_prefix("request: ");
        member.is_none_or(|name| {
            TRIED_ELSEWHERE.contains(&name) || probes["chat"]["members"][name] != Value::Null
        })
    };
    let simulator = Simulator::start_in_the_clear(None);
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("gateway.yaml");
    let head = include_str!("../../conf/local.yaml");
    let mut text = head.split("vendors:\n").next().unwrap().to_owned() + "vendors:\n";
    for name in dialects.keys() {
        let url = format!("http://127.0.0.1:{}/as/{name}/v1", simulator.port);
        text += &format!(
            "  {name}: {{protocol: chat, api_key: sk-one, endpoints: [{{url: \"{url}\"}}]}}\n"
        );
    }
    text += "models:\n";
    for (name, dialect) in &dialects {
        text += &format!(
            "  - {{id: {name}, vendor: {name}, upstream_model: {}, context_tokens: 2000, max_output_tokens: 900, \
             price: {{input: \"1\", output: \"1\"}}}}\n",
            dialect["model"]
        );
    }
    std::fs::write(&config, text).unwrap();
    let mut found = BTreeSet::new();
    for name in dialects.keys() {
        let output = command_on(&config, &["vendors", "learn", name, "--json"]);
        let learnt: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!(
                "{name}: {error}: {}",
                String::from_utf8_lossy(&output.stderr)
            )
        });
        let findings = learnt["findings"].as_array().unwrap().iter();
        let mut evidence = findings.filter_map(|finding| finding["evidence"].as_str());
        assert!(
            !evidence.any(|words| words.contains("requests are sent")),
            "{name}: too many requests: {learnt:#}"
        );
        let shipped = entries(&presets["presets"][name]["profile"]);
        let learnt = entries(&learnt["profile"]);
        let added = learnt.difference(&shipped);
        found.extend(added.map(|entry| format!("{name}: + {entry}")));
        let missing = shipped.difference(&learnt).filter(|entry| is_tried(entry));
        found.extend(missing.map(|entry| format!("{name}: - {entry}")));
    }
    let mut explained = BTreeSet::new();
    for group in &reasons {
        assert!(group["reason"].as_str().unwrap().len() > 20, "{group:?}");
        for (name, entries) in group["differences"].as_object().unwrap() {
            for entry in entries.as_array().unwrap() {
                let entry = entry.as_str().unwrap();
                assert!(
                    explained.insert(format!("{name}: {entry}")),
                    "{name}: {entry} is there twice"
                );
            }
        }
    }
    let list = |one: &BTreeSet<String>, other| {
        one.difference(other)
            .map(|entry| format!("\n{entry}"))
            .collect::<String>()
    };
    assert!(
        found == explained,
        "differences without a reason (+ learnt, - shipped):{}\nreasons without a difference:{}",
        list(&found, &explained),
        list(&explained, &found)
    );
}
