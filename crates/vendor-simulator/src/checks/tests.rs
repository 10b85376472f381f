//! Tests the vendors' checks: each case changes one thing in a request that the vendor accepts.

mod chat;
mod messages;
mod responses;

use serde_json::Value;

use super::request_check::SimRequestCheck;
use crate::behaviour::Behaviour;
use crate::errors::SimVendor;

/// The vendor's error for the request; empty if it accepts the request.
fn verdict(vendor: SimVendor, body: &Value, marker: &str) -> String {
    let behaviour = Behaviour::parse(&format!("[[sim {marker}]]")).unwrap();
    let model = body["model"].as_str().unwrap();
    let call = SimRequestCheck {
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

/// `base` with the members of `change`; null removes a member.
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

/// Checks that each change alone causes this error, or none if the text is empty.
#[track_caller]
fn check_all(vendor: SimVendor, base: &Value, cases: &[(Value, &str)]) {
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
