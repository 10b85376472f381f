//! Tests many members with few requests: all members at once, then without those that the vendor
//! names, or in halves if it names none.
//!
//! This file must not name a member: the table does.

use super::session::LearnSession;
use super::table::{Probe, ProbeFinding, Verdict};
use llm_protocol::failure;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The verdict on a group of members, and the key of the profile that lists them.
type MemberVerdict = (Verdict, Option<&'static str>);

impl LearnSession<'_> {
    /// Tests the members of the table.
    pub(super) async fn try_members(&mut self) {
        let members = self.table.members.clone();
        if self.is_decided("strict") {
            let taken = (Verdict::Taken, Some("request"));
            let refused = (Verdict::Refused, None);
            self.eliminate(members, Some(taken), refused).await;
            return;
        }
        let refused = (Verdict::Refused, Some("drop"));
        let mut ignored = self.eliminate(members, None, refused).await;
        // The server accepts any member: only a complaint about a value shows that it reads one.
        for value in ignored.values_mut() {
            *value = match value {
                Value::Object(_) => json!(1),
                _ => json!({"x": 1}),
            };
        }
        let read = (Verdict::Taken, Some("request"));
        let unknown = (Verdict::Unknown, None);
        self.eliminate(ignored, Some(unknown), read).await;
    }

    /// Repeats the request with fewer members until the server accepts it, and returns the accepted
    /// members.
    async fn eliminate(
        &mut self,
        members: Map<String, Value>,
        on_accepted: Option<MemberVerdict>,
        on_named: MemberVerdict,
    ) -> Map<String, Value> {
        let (mut accepted, mut groups) = (Map::new(), vec![members]);
        while let Some(mut group) = groups.pop() {
            if group.is_empty() {
                continue;
            }
            let mut body = self.table.members_with.clone();
            body.extend(group.clone());
            let body = self.body(&body, &Probe::default());
            let names: Vec<_> = group.keys().map(String::as_str).collect();
            let answer = match self.send(&body, 0).await {
                Ok(answer) => answer,
                Err(why) => {
                    self.add_members(&names, (Verdict::NotAsked, None), why);
                    continue;
                }
            };
            let (_, words) = answer.classify(&self.client, &BTreeMap::new());
            if answer.is_accepted() {
                if let Some(outcome) = on_accepted {
                    self.add_members(&names, outcome, words);
                }
                accepted.extend(group);
                continue;
            }
            let named = failure::named_members(&answer.response.body, &names);
            if !answer.is_refused() {
                self.add_members(&names, (Verdict::Unknown, None), words);
            } else if !named.is_empty() {
                self.add_members(&named, on_named, words);
                let named: Vec<_> = named.into_iter().map(str::to_owned).collect();
                group.retain(|name, _| !named.contains(name));
                groups.push(group);
            } else if names.len() == 1 {
                // The server may refuse a wrong value for another reason.
                let outcome = match on_named.0 {
                    Verdict::Refused => on_named,
                    _ => (Verdict::Unknown, None),
                };
                self.add_members(&names, outcome, words);
            } else {
                let half = names.len() / 2;
                let mut rest = group.into_iter();
                let first = rest.by_ref().take(half).collect();
                groups.extend([rest.collect(), first]);
            }
        }
        accepted
    }

    fn add_members(&mut self, names: &[&str], (verdict, key): MemberVerdict, evidence: String) {
        self.findings.push(ProbeFinding {
            probe: names.join(", "),
            verdict,
            evidence,
            decides: Some(key.unwrap_or("request").to_owned()),
            value: key.map(|_| names.iter().copied().collect()),
        });
    }
}
