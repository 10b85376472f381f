//! Encodes the refused requests of a second as JSON, which an edge sends to the sidecar.
//!
//! This file must not send a batch.

use super::note::RequestNote;
use super::request::{RefusedRequest, WaitingRefusals, known_surface};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub struct RefusedBatch {
    /// Id of the batch. A batch that arrives twice counts once.
    pub id: String,
    listed: Vec<ListedRefusal>,
    counts: Vec<CountedRefusals>,
    /// Edges of earlier versions send none.
    #[serde(default)]
    notes: Vec<RequestNote>,
}

#[derive(Serialize, Deserialize)]
struct ListedRefusal {
    request_id: String,
    account: String,
    at_ms: i64,
    status: u16,
    code: String,
    message: String,
    surface: String,
    model: String,
    key_id: String,
    key_shown: String,
}

#[derive(Serialize, Deserialize)]
struct CountedRefusals {
    account: String,
    day: i64,
    status: u16,
    code: String,
    requests: u64,
}

impl RefusedBatch {
    pub fn new(waiting: &WaitingRefusals) -> Self {
        let (mut listed, mut counts, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        for (account, waiting) in &waiting.accounts {
            for ((day, status, code), requests) in &waiting.counts {
                counts.push(CountedRefusals {
                    account: account.to_string(),
                    day: *day,
                    status: *status,
                    code: code.clone(),
                    requests: *requests,
                });
            }
            notes.extend(waiting.notes.iter().cloned());
            listed.extend(waiting.listed.iter().map(|refused| ListedRefusal {
                account: refused.account.to_string(),
                key_id: refused.key_id.to_string(),
                key_shown: refused.key_shown.to_string(),
                surface: refused.surface.to_owned(),
                request_id: refused.request_id.clone(),
                at_ms: refused.at_ms,
                status: refused.status,
                code: refused.code.clone(),
                message: refused.message.clone(),
                model: refused.model.clone(),
            }));
        }
        Self {
            id: uuid::Uuid::now_v7().simple().to_string(),
            listed,
            counts,
            notes,
        }
    }

    /// Adds the batch to the refusals that wait for a write.
    pub fn add_to(self, waiting: &mut WaitingRefusals) {
        for counted in self.counts {
            let reason = (counted.day, counted.status, counted.code);
            waiting.count(&counted.account.into(), reason, counted.requests);
        }
        for note in self.notes {
            waiting.note(note);
        }
        for refused in self.listed {
            waiting.list(RefusedRequest {
                account: refused.account.into(),
                key_id: refused.key_id.into(),
                key_shown: refused.key_shown.into(),
                surface: known_surface(&refused.surface),
                request_id: refused.request_id,
                at_ms: refused.at_ms,
                status: refused.status,
                code: refused.code,
                message: refused.message,
                model: refused.model,
            });
        }
    }
}
