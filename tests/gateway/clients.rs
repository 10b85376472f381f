//! Recorded requests of real clients (`tests/clients/`; filler of the same length replaces long
//! texts). Each request goes to each model of both vendors. The simulated vendors refuse everything
//! that the real ones refuse. The gateway must answer and bill each request, and warn about each
//! loss.
//!
//! `tests/clients/warnings.json` lists the expected warnings. Users see every change of that file.

use crate::account::micro;
use crate::client::{Answer, Request};
use crate::surface::{Chat, Messages, Surface};
use crate::vendor_matrix;
use crate::world::{Simulator, World};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
struct Recorded {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Value,
}

const MODELS: [&str; 5] = [
    "alpha-opus-4-7",
    "alpha-sonnet-4-6",
    "alpha-haiku-4-5-20251001",
    "beta-5.2",
    "beta-5.5",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients")
}

fn recorded() -> Vec<(String, Recorded)> {
    let mut files: Vec<_> = std::fs::read_dir(folder())
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    files.retain(|file| !file.ends_with("warnings.json"));
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let requests: Vec<Recorded> =
            serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        all.extend(
            requests
                .into_iter()
                .enumerate()
                .map(|(index, request)| (format!("{name}#{index}"), request)),
        );
    }
    all
}

/// Copies those of the client's own headers that describe the client, not the connection.
fn request(recorded: &Recorded, model: &str, key: &str) -> Request {
    let mut body = recorded.body.clone();
    body["model"] = model.into();
    assert_eq!(recorded.method, "POST");
    let mut request = Request::post(&recorded.path, body.to_string()).bearer(key);
    for (name, value) in &recorded.headers {
        let own = [
            "host",
            "connection",
            "content-length",
            "transfer-encoding",
            "authorization",
            "x-api-key",
            "content-type",
        ];
        if !own.contains(&name.to_ascii_lowercase().as_str()) {
            request = request.header(name, value);
        }
    }
    request
}

/// A surface of `None` is the responses surface.
fn is_complete(surface: Option<Surface>, answer: &Answer) -> bool {
    let ends = || answer.has("\nevent: response.completed\n");
    surface.map_or_else(ends, |surface| surface.is_complete(answer))
}

#[test]
fn every_request_of_real_clients_goes_to_every_model() {
    let world = World::new();
    let expected: BTreeMap<String, BTreeMap<String, String>> =
        serde_json::from_str(&std::fs::read_to_string(folder().join("warnings.json")).unwrap())
            .unwrap();
    let mut found: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let mut faults = Vec::new();
    for (name, recorded) in recorded() {
        let account = world.account_with(&format!("{}@example.test", name.replace('#', "-")), &[]);
        world.grant(&account, "100000", &name);
        let surface = match recorded.path.as_str() {
            path if path.contains("chat") => Some(Chat),
            path if path.contains("responses") => None,
            _ => Some(Messages),
        };
        for model in MODELS {
            let answer = world.ask(&request(&recorded, model, &account.key));
            let is_thread = recorded.body.get("thread").is_some();
            if is_thread {
                let error = &answer.json()["error"];
                assert_eq!(
                    error["details"]["error_code"], "thread_unsupported_request",
                    "{name} {model}: {error}"
                );
                continue;
            }
            if answer.status != 200 {
                faults.push(format!(
                    "{name} {model}: {} {}",
                    answer.status,
                    answer.text()
                ));
                continue;
            }
            let streamed = recorded.body["stream"] == true;
            if streamed && !is_complete(surface, &answer) {
                faults.push(format!("{name} {model}: {}", answer.text()));
            }
            let receipt = world.receipt(&account, &answer.request_id());
            assert_eq!(
                (&receipt["outcome"], &receipt["estimated"]),
                (&"completed".into(), &false.into()),
                "{receipt}"
            );
            assert!(micro(&receipt["credits"]) > 0, "{name} {model}: {receipt}");
            if let Some(warnings) = answer.header("x-gateway-warnings") {
                found
                    .entry(name.clone())
                    .or_default()
                    .insert(model.to_owned(), warnings.to_owned());
            }
        }
    }
    assert!(
        faults.is_empty(),
        "{} refused:\n{}",
        faults.len(),
        faults.join("\n")
    );
    assert!(
        found == expected,
        "what is warned about has changed: {}",
        serde_json::to_string_pretty(&found).unwrap()
    );
}

/// Requests that no chat vendor but the one that defined the protocol takes: they have tools that
/// are not functions.
const WITH_OTHER_TOOLS: [&str; 3] = ["codex-0.80-chat", "copilot-openai", "cursor-as-reported"];
/// A vendor that wants its reasoning back. The recorded calls are another one's.
const WITHOUT_REASONING: (&str, &str) = ("codex-0.169", "openrouter");

/// The vendors are the simulator's profiles, known to the gateway by their presets only. A member
/// that one does not know is left out or learnt; the client's request gets its answer. The last
/// request of each client has the longest history.
#[test]
fn the_last_request_of_every_real_client_goes_to_every_vendor() {
    let vendors = vendor_matrix::vendors();
    let simulator = Simulator::start(None);
    let world = vendor_matrix::start(&vendors, &simulator);
    let account = world.funded(1_000_000_000_000);
    let mut faults = Vec::new();
    let of_client = |(name, recorded): (String, Recorded)| {
        let client = name.split('#').next().unwrap().to_owned();
        (client, (name, recorded))
    };
    let last: BTreeMap<_, _> = recorded().into_iter().map(of_client).collect();
    for (name, recorded) in last.into_values() {
        let is_refused = WITH_OTHER_TOOLS.iter().any(|other| name.starts_with(other));
        if is_refused || recorded.body.get("thread").is_some() {
            continue;
        }
        for vendor in &vendors {
            let (client, preset) = WITHOUT_REASONING;
            if name.starts_with(client) && vendor.preset == preset {
                continue;
            }
            let answer = world.ask(&request(&recorded, &vendor.model(), &account.key));
            if answer.status != 200 {
                let preset = &vendor.preset;
                let refusal = answer.text();
                faults.push(format!("{name} {preset}: {} {refusal}", answer.status));
            }
        }
    }
    assert!(
        faults.is_empty(),
        "{} refused:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

/// The table names only recorded requests and existing models.
#[test]
fn the_table_of_warnings_names_no_stranger() {
    let expected: BTreeMap<String, BTreeMap<String, String>> =
        serde_json::from_str(&std::fs::read_to_string(folder().join("warnings.json")).unwrap())
            .unwrap();
    let names: Vec<_> = recorded().into_iter().map(|(name, _)| name).collect();
    for (name, models) in expected {
        assert!(names.contains(&name), "{name}");
        assert!(
            models.keys().all(|model| MODELS.contains(&model.as_str())),
            "{name}: {models:?}"
        );
    }
    assert!(names.len() >= 56, "{}", names.len());
}
