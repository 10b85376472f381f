//! What each vendor refuses, by one change to a request that it takes.

mod chat;
mod messages;
mod responses;

use serde_json::Value;

use super::Call;
use crate::simulator::behaviour::Behaviour;
use crate::simulator::errors::Vendor;

/// What the vendor has against the request; nothing if it is empty.
fn verdict(vendor: Vendor, body: &Value, marker: &str) -> String {
    let behaviour = Behaviour::read(&format!("[[sim {marker}]]")).unwrap();
    let model = body["model"].as_str().unwrap();
    let call = Call {
        model,
        body,
        behaviour: &behaviour,
        previews: "",
    };
    call.check(vendor)
        .err()
        .map(|problem| problem.message)
        .unwrap_or_default()
}

/// `base` with the members of `change`; null takes one away.
fn changed(base: &Value, change: &Value) -> Value {
    let mut body = base.clone();
    for (name, value) in change.as_object().unwrap() {
        match value {
            Value::Null => drop(body.as_object_mut().unwrap().remove(name)),
            value => body[name] = value.clone(),
        }
    }
    body
}

/// Each change alone must draw these words, or none if there are none.
#[track_caller]
fn check_all(vendor: Vendor, base: &Value, cases: &[(Value, &str)]) {
    for (change, words) in cases {
        let verdict = verdict(vendor, &changed(base, change), "");
        match words.is_empty() {
            true => assert_eq!(verdict, "", "{change}"),
            false => assert!(
                verdict.contains(words),
                "{change}: {verdict:?} instead of {words:?}"
            ),
        }
    }
}
