//! Derives the profile from the findings, as YAML for the config file. It contains only the
//! differences from the default profile.
//!
//! This file must not decide a value: the table of probes does. Where two findings have values for
//! one key, the lists are joined.

use super::session::LearnSession;
use super::table::{ProbeFinding, Verdict};
use config::is_chat_only;
use credits::money::Micro;
use llm_protocol::Protocol;
use llm_protocol::profile::VendorProfile;
use serde::Serialize;
use serde_json::{Map, Value, json};
use serde_saphyr::{FlowMap, FlowSeq};
use std::collections::BTreeMap;
use std::fmt::Write;

#[derive(Debug, Serialize)]
pub struct LearntProfile {
    pub vendor: String,
    pub model: String,
    pub url: String,
    pub requests: u32,
    /// Cost by the configured price and the vendor's usage; the quoted maximum where the vendor
    /// reported none.
    pub credits: Micro,
    pub header_limits: BTreeMap<String, String>,
    pub findings: Vec<ProbeFinding>,
    /// Members of `vendors.*.profile`.
    pub profile: Map<String, Value>,
    /// Members of `models[].capabilities`, which apply to all models of the vendor.
    pub capabilities: Map<String, Value>,
}

impl LearntProfile {
    pub fn new(session: LearnSession<'_>) -> Self {
        let profile = profile_of(&session.findings, session.model.protocol());
        let mut capabilities = Map::new();
        if session.model.protocol() == Protocol::Chat {
            capabilities.insert("output_limit_field".to_owned(), session.limit_member.into());
        }
        let state = profile.get("state").and_then(|state| state[0].as_str());
        if let Some(member) = state.filter(|member| VendorProfile::is_reasoning(member)) {
            capabilities.insert("reasoning_replay".to_owned(), member.into());
        }
        Self {
            vendor: session.report.vendor,
            model: session.model.upstream_model.clone(),
            url: session.report.url,
            requests: session.budget.requests,
            credits: session.budget.spent,
            header_limits: session.header_limits,
            findings: session.findings,
            profile,
            capabilities,
        }
    }

    /// Returns the profile as a part of the config file, with the findings as comments.
    pub fn to_yaml(&self) -> String {
        let mut text = String::new();
        // Writing to a `String` cannot fail.
        let _ = self.write_yaml(&mut text);
        text
    }

    fn write_yaml(&self, out: &mut String) -> std::fmt::Result {
        let (vendor, model, url) = (flow(&json!(self.vendor)), &self.model, &self.url);
        let (requests, credits) = (self.requests, self.credits);
        writeln!(
            out,
            "# `model-gateway vendors learn {vendor}`: model {model} at {url}."
        )?;
        writeln!(
            out,
            "# {requests} requests, at most {credits} credits by the price."
        )?;
        for (name, value) in &self.header_limits {
            writeln!(out, "# Limit in a header field: {name}: {value}")?;
        }
        let is_learnt =
            |finding: &&ProbeFinding| matches!(finding.verdict, Verdict::Taken | Verdict::Refused);
        let (learnt, other): (Vec<_>, Vec<_>) = self.findings.iter().partition(is_learnt);
        let heads = ["Learnt:", "Not learnt, so that the profile has the least:"];
        for (head, findings) in heads.into_iter().zip([learnt, other]) {
            writeln!(out, "# {head}")?;
            for finding in findings {
                let (probe, verdict) = (&finding.probe, finding.verdict.as_str());
                // The vendor may have made up names of members that contain line breaks.
                let evidence = finding.evidence.replace(char::is_control, " ");
                writeln!(out, "#   {probe}: {verdict} ({evidence})")?;
            }
        }
        let is_default = self.profile.is_empty();
        let empty = if is_default { " {}" } else { "" };
        writeln!(out, "vendors:\n  {vendor}:\n    profile:{empty}")?;
        for (key, value) in &self.profile {
            writeln!(out, "      {key}: {}", flow(value))?;
        }
        if !self.capabilities.is_empty() {
            let capabilities = flow(&json!(self.capabilities));
            writeln!(
                out,
                "# For the entries of its models:\n#    capabilities: {capabilities}"
            )?;
        }
        Ok(())
    }
}

/// Returns the profile that the findings decide, without the keys that the config refuses for a
/// vendor of this protocol.
pub(super) fn profile_of(findings: &[ProbeFinding], protocol: Protocol) -> Map<String, Value> {
    let mut profile = Map::new();
    for finding in findings {
        if let (Some(key), Some(value)) = (&finding.decides, &finding.value)
            && (protocol == Protocol::Chat || !is_chat_only(key))
        {
            insert(&mut profile, key, value);
        }
    }
    // With a place of the usage, `request` says that streams must ask for it.
    let is_default = profile.get("request") == Some(&json!(VendorProfile::compatible().request));
    if is_default && !profile.contains_key("usage") {
        profile.remove("request");
    }
    profile
}

fn insert(profile: &mut Map<String, Value>, key: &str, value: &Value) {
    if value.is_null() {
        return;
    }
    if let Some((outer, name)) = key.split_once('.') {
        let inner = profile.entry(outer).or_insert_with(|| json!({}));
        let inner = inner.as_object_mut();
        return inner.map_or((), |inner| insert(inner, name, value));
    }
    let mut value = value.clone();
    if let (Some(Value::Array(known)), Value::Array(new)) = (profile.get(key), &mut value) {
        new.extend(known.clone());
        new.sort_by_key(Value::to_string);
        new.dedup();
    }
    profile.insert(key.to_owned(), value);
}

/// Formats a value as YAML in one line.
fn flow(value: &Value) -> String {
    let text = match value {
        Value::Array(items) => serde_saphyr::to_string(&FlowSeq(items)),
        Value::Object(members) => serde_saphyr::to_string(&FlowMap(members)),
        _ => serde_saphyr::to_string(value),
    };
    text.map_or_else(|_| value.to_string(), |text| text.trim_end().to_owned())
}
