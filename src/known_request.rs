//! What is known of a request by any id that its client got: its receipt, its refusal, or that it
//! was free; and how its vendor failed it.
//!
//! The API, the admin API and the pages look requests up here. Must not know who asks.

use crate::billing::Receipt;
use crate::billing::json;
use crate::refused_requests::{
    NoteKind, RefusedRequest, RefusedRequests, RequestNote, VendorFault,
};
use base::clock::rfc3339;
use ledger::StoreError;
use serde_json::{Value, json};

pub enum KnownRequest {
    /// It has a receipt, and perhaps a note beside it.
    Billed(Box<Receipt>, Option<RequestNote>),
    Refused(RefusedRequest),
    /// It has no receipt.
    Free(RequestNote),
}

/// Finds a request by its own id, or by an id that its vendor gave it; of any account if `account`
/// is `None`. `receipt` finds a receipt by the id of a request and its account, if that is known. A
/// receipt is found even if `refused.db` cannot be read, then without its note.
///
/// # Errors
/// Returns an error if a file cannot be read.
pub fn find_request(
    refused: Option<&RefusedRequests>,
    account: Option<&str>,
    id: &str,
    receipt: impl Fn(&str, Option<&str>) -> Result<Option<Receipt>, StoreError>,
) -> Result<Option<KnownRequest>, StoreError> {
    let (note, is_read) = match refused.map_or(Ok(None), |it| it.find_note(account, id)) {
        Ok(note) => (note, Ok(())),
        Err(error) => (None, Err(error)),
    };
    let (request_id, of) = match &note {
        Some(note) => (&*note.request_id, Some(&*note.account)),
        None => (id, account),
    };
    if let Some(receipt) = receipt(request_id, of)? {
        return Ok(Some(KnownRequest::Billed(Box::new(receipt), note)));
    }
    is_read?;
    if let Some(refused) = refused
        && let Some(found) = refused.find(account, id)?
    {
        return Ok(Some(KnownRequest::Refused(found)));
    }
    let free = note.filter(|note| !note.asked_for.is_empty());
    Ok(free.map(KnownRequest::Free))
}

impl KnownRequest {
    /// The request as the APIs show it. `is_operator`: what a vendor said of the operator's own
    /// account is shown too.
    pub fn to_json(&self, is_operator: bool) -> Value {
        match self {
            Self::Billed(receipt, note) => {
                let mut value = json::receipt(receipt);
                if let Some(note) = note {
                    add_note(&mut value, note, is_operator);
                }
                value
            }
            Self::Refused(refused) => json!({
                "request_id": refused.request_id,
                "at": rfc3339(refused.at_ms),
                "model": refused.model,
                "surface": refused.surface,
                "key": &*refused.key_shown,
                "outcome": "refused",
                "status": refused.status,
                "code": refused.code,
                "message": refused.message,
                "credits": "0",
            }),
            Self::Free(note) => {
                let mut value = json!({
                    "request_id": note.request_id,
                    "at": rfc3339(note.at_ms),
                    "outcome": NoteKind::Free.as_str(),
                    "status": note.status,
                    "asked_for": note.asked_for,
                    "credits": "0",
                });
                add_note(&mut value, note, is_operator);
                value
            }
        }
    }
}

fn add_note(value: &mut Value, note: &RequestNote, is_operator: bool) {
    let ids = [
        ("upstream_request_id", &note.header_id),
        ("answer_id", &note.answer_id),
    ];
    for (name, id) in ids {
        if let Some(id) = id {
            value[name] = json!(id);
        }
    }
    if let Some(fault) = &note.fault {
        value["vendor_failure"] = vendor_failure(fault, is_operator);
    }
}

fn vendor_failure(fault: &VendorFault, is_operator: bool) -> Value {
    let mut value = json!({"vendor": fault.vendor, "cause": fault.cause});
    if let Some(status) = fault.status {
        value["status"] = json!(status);
    }
    if let Some(words) = fault.words_for(is_operator) {
        value["message"] = json!(words);
    }
    value
}
