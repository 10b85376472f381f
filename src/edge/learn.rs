//! Finds out which features a vendor's server supports, for `model-gateway vendors learn`. It sends
//! a table of small requests in the vendor's own protocol, without the gateway's profile, and
//! derives a profile from the answers.
//!
//! A feature without a clear answer is unknown, and the profile then assumes the minimum. This
//! module must not print anything or name a single probe. A report contains no secret.
//!
//! Read next: `learn/probes.yaml`, then `learn/session.rs`.

mod answer;
mod members;
mod profile;
mod session;
mod table;

use answer::Answer;
use llm_protocol::Protocol;
use llm_protocol::profile::outermost;
pub use profile::LearntProfile;
use serde_json::{Value, json};
pub use session::{LearnSession, MAX_REQUESTS};
use table::{Probe, ProbeFinding, Verdict};

impl LearnSession<'_> {
    /// Sends the requests of the table.
    ///
    /// # Errors
    /// Returns an error if the vendor does not answer the plainest request.
    pub async fn run(mut self) -> Result<LearntProfile, String> {
        let plain = &self.table.plain;
        let answer = self.send(&self.body(&plain.body, plain), 0).await;
        let mut answer = answer.map_err(|why| format!("no answer to the first request: {why}"))?;
        if answer.is_refused() && self.model.protocol() == Protocol::Chat {
            // The vendor may expect the output limit in the other member.
            self.limit_member = match self.limit_member {
                "max_tokens" => "max_completion_tokens",
                _ => "max_tokens",
            };
            answer = self.send(&self.body(&plain.body, plain), 0).await?;
        }
        if !answer.is_accepted() {
            let (_, words) = answer.classify(&self.client, &plain.expect);
            return Err(format!(
                "the vendor did not take the plainest request: {words}"
            ));
        }
        self.record(plain, answer);
        for probe in &self.table.probes {
            let body = match self.write_body(probe) {
                Ok(body) => body,
                Err(why) => {
                    self.add_finding(probe, (Verdict::NotAsked, why), None);
                    continue;
                }
            };
            match self.send(&body, probe.input_tokens).await {
                Ok(answer) => self.record(probe, answer),
                Err(why) => {
                    let value = probe.values.get(&Verdict::NotAsked).cloned();
                    self.add_finding(probe, (Verdict::NotAsked, why), value);
                }
            }
        }
        self.try_members().await;
        match self.budget.key_refusal.take() {
            Some(why) => Err(why),
            None => Ok(LearntProfile::new(self)),
        }
    }

    /// Returns whether a probe has decided this key of the profile. A key whose value is a list is
    /// never decided, because the lists of several probes are joined.
    fn is_decided(&self, key: &str) -> bool {
        let mut findings = self.findings.iter();
        findings.any(|finding| {
            let value = finding.value.as_ref();
            finding.decides.as_deref() == Some(key) && value.is_some_and(|value| !value.is_array())
        })
    }

    /// Writes the request, with the values that earlier answers provided, into the probe's body.
    /// Returns the reason if the probe must be skipped.
    fn write_body(&self, probe: &Probe) -> Result<Value, String> {
        for (name, needed) in &probe.needs {
            let found = self.findings.iter().find(|finding| finding.probe == *name);
            let verdict = found.map_or(Verdict::NotAsked, |finding| finding.verdict);
            if verdict != *needed {
                return Err(format!("since {name:?} is {}", verdict.as_str()));
            }
        }
        if let Some(key) = probe.decides.as_deref().filter(|key| self.is_decided(key)) {
            return Err(format!("since {key} is known"));
        }
        let mut members = self.reasoning_on.clone();
        members.extend(probe.body.clone());
        if let Some(Value::Array(messages)) = members.get_mut("messages") {
            let mut filled = Vec::new();
            for message in messages.drain(..) {
                let Some(kind) = message["fill"].as_str() else {
                    filled.push(message);
                    continue;
                };
                if kind == "long" {
                    let text = self.long_text().ok_or("the context is too large")?;
                    filled.push(json!({"role": "user", "content": text}));
                    continue;
                }
                let turn = self.turn.as_ref().ok_or("the model called no tool")?;
                match kind {
                    "turn" => filled.push(turn.whole.clone()),
                    "results" => filled.extend(turn.results.clone()),
                    _ if turn.state.is_empty() => Err("the turn has no state of its own")?,
                    _ => filled.push(turn.with_members(&message["message"], &message["call"])),
                }
            }
            *messages = filled;
        }
        Ok(self.body(&members, probe))
    }

    /// Classifies the answer, and stores the values that later probes need.
    fn record(&mut self, probe: &Probe, answer: Answer) {
        let (verdict, mut seen) = answer.classify(&self.client, &probe.expect);
        if self.findings.is_empty() {
            seen += &format!(", output limit in {}", self.limit_member);
        } else if probe.expect.get("reasoning") == Some(&true) && verdict == Verdict::Taken {
            self.reasoning_on.clone_from(&probe.body);
        }
        if probe.expect.contains_key("calls") {
            self.turn = answer.turn.or(self.turn.take());
        }
        let value = probe.values.get(&verdict).map(|value| {
            let state = self.turn.iter().flat_map(|turn| turn.state.iter());
            let name = |path: &String| {
                let path = path.strip_prefix("message.").unwrap_or(path);
                outermost(path).to_owned()
            };
            match value.as_str() {
                Some("$state") => state.cloned().collect(),
                Some("$state_names") => state.map(name).collect(),
                _ => value.clone(),
            }
        });
        self.add_finding(probe, (verdict, seen), value);
    }

    fn add_finding(
        &mut self,
        probe: &Probe,
        (verdict, evidence): (Verdict, String),
        value: Option<Value>,
    ) {
        self.findings.push(ProbeFinding {
            probe: probe.name.clone(),
            verdict,
            evidence,
            decides: probe.decides.clone(),
            value,
        });
    }
}

#[cfg(test)]
mod tests;
