//! Sends the filtered rows as a CSV file.

use super::query::{ActivityQuery, restrict};
use super::row::key_names;
use crate::billing::Receipt;
use crate::billing::activity::{ActivityCursor, RequestOutcome};
use crate::refused_requests::{RefusedCursor, RefusedFilter, RefusedRequest};
use crate::sidecar::csv::{CsvFile, write_quoted};
use crate::sidecar::error::PageError;
use crate::sidecar::key_names::KeyNames;
use crate::sidecar::session::CurrentUser;
use crate::sidecar::state::SidecarState;
use crate::sidecar::stream_slots::StreamSlot;
use crate::sidecar::viewed_account::ViewedAccount;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::Response;
use base::clock::rfc3339;
use std::fmt::Write;
use std::sync::Arc;

/// Maximum number of rows in a file. The last line says so if rows are missing.
pub const MAX_ROWS: u32 = 100_000;

const CHUNK_ROWS: u32 = 500;

const CSV_HEADER: &str = "time,request_id,model,surface,key,outcome,estimated,input,cache_read,cache_write_5m,cache_write_1h,\
                    audio_input,output,reasoning,audio_output,web_searches,web_fetches,code_executions,\
                    tool_searches,mcp_calls,search_units,credits,balance_after,conversation,took_ms,\
                    first_token_ms,key_name,image_input,image_output,images,characters,seconds\r\n";

pub async fn download(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    query: Result<Query<ActivityQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(query) = query.map_err(|_| PageError::NotFound)?;
    let viewed = ViewedAccount::from_user(&user);
    let query = restrict(&app, &viewed, query)?;
    show_download(&app, &user, viewed.id, &query)
}

/// Sends the file of an account's responses to `user`, who is its holder or an operator.
pub fn show_download(
    app: &Arc<SidecarState>,
    user: &CurrentUser,
    account: String,
    query: &ActivityQuery,
) -> Result<Response, PageError> {
    let filter = query.filter().map_err(|_| PageError::NotFound)?;
    let slot = StreamSlot::try_acquire(&app.streams, &user.person.id, &app.settings.load().limits)
        .ok_or(PageError::Busy)?;
    let Some(filter) = filter.responses else {
        let filter = filter.refused.ok_or(PageError::NotFound)?;
        return download_refused(app, slot, account, filter);
    };
    let (billing, names_of) = (app.billing.clone(), Arc::clone(app));
    let start = DownloadPosition {
        before: None,
        left: MAX_ROWS,
    };
    let file = CsvFile::new(slot, CSV_HEADER, start, move |position| {
        // One more row than the file may have is read, to know whether the file was cut.
        let max_rows = CHUNK_ROWS.min(position.left.saturating_add(1));
        let receipts = billing
            .pages()
            .activity(&account, &filter, position.before, max_rows)?;
        let names = key_names(&names_of, &account, &receipts)?;
        Ok(encode_rows(&receipts, &names, position.left))
    });
    Ok(file.into_response("responses.csv"))
}

const REFUSED_CSV_HEADER: &str =
    "time,request_id,model,surface,key,status,code,message,key_name\r\n";

/// The file of an account's refused requests, newest first: all that are listed.
fn download_refused(
    app: &Arc<SidecarState>,
    slot: StreamSlot,
    account: String,
    filter: RefusedFilter,
) -> Result<Response, PageError> {
    let refused = app.refused.clone().ok_or(PageError::NotFound)?;
    let accounts = app.accounts.clone();
    let read = move |before: Option<RefusedCursor>| {
        let rows = refused.list(&account, &filter, before, CHUNK_ROWS)?;
        let keys = rows.iter().map(|(_, row)| &*row.key_id);
        let names = KeyNames::load(&accounts, &account, keys)?;
        let mut text = String::new();
        for (_, row) in &rows {
            write_refused_row(&mut text, row, &names);
        }
        Ok((text, rows.last().map(|(at, _)| Some(*at))))
    };
    let file = CsvFile::new(slot, REFUSED_CSV_HEADER, None, read);
    Ok(file.into_response("refused.csv"))
}

fn write_refused_row(text: &mut String, row: &RefusedRequest, names: &KeyNames) {
    let words = [
        &rfc3339(row.at_ms),
        &row.request_id,
        &row.model,
        row.surface,
        &*row.key_shown,
        &row.status.to_string(),
        &row.code,
        &row.message,
        &names.get(&row.key_id, "").name,
    ];
    for (index, word) in words.into_iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        write_quoted(text, word);
    }
    text.push_str("\r\n");
}

struct DownloadPosition {
    before: Option<ActivityCursor>,
    /// Number of rows that the file may still have.
    left: u32,
}

fn encode_rows(
    receipts: &[Receipt],
    names: &KeyNames,
    mut left: u32,
) -> (String, Option<DownloadPosition>) {
    let mut text = String::new();
    for receipt in receipts {
        if left == 0 {
            let _ = write!(
                text,
                "\"cut off here: a file has at most {MAX_ROWS} rows; choose fewer days\"\r\n"
            );
            return (text, None);
        }
        left -= 1;
        write_row(&mut text, receipt, names);
    }
    let next = receipts.last().map(|last| DownloadPosition {
        before: Some(last.cursor()),
        left,
    });
    (text, next)
}

/// Returns the value of the outcome column. Programs read the column, so its values stay the same
/// when a page's label changes.
fn outcome_value(outcome: RequestOutcome) -> &'static str {
    match outcome {
        RequestOutcome::Completed => "completed",
        RequestOutcome::ClientLeft => "client left",
        RequestOutcome::GatewayEnded => "gateway ended",
        RequestOutcome::RefusedFree => "refused, free",
        RequestOutcome::VendorError => "vendor error",
        RequestOutcome::VendorCut => "vendor cut",
        RequestOutcome::Interrupted => "interrupted",
    }
}

fn write_row(text: &mut String, receipt: &Receipt, names: &KeyNames) {
    let detail = &receipt.detail;
    let usage = &detail.usage;
    let words = [
        rfc3339(receipt.at_ms),
        receipt.request_id.clone(),
        detail.model.clone(),
        detail.surface.as_str().to_owned(),
        detail.key_shown.clone(),
        outcome_value(detail.outcome).to_owned(),
    ];
    for word in &words {
        write_quoted(text, word);
        text.push(',');
    }
    let estimated = if detail.estimated { "yes" } else { "no" };
    let _ = write!(
        text,
        "{estimated},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},",
        usage.input,
        usage.cache_read,
        usage.cache_write_5m,
        usage.cache_write_1h,
        usage.audio_input,
        usage.output,
        usage.reasoning,
        usage.audio_output,
        usage.web_searches,
        usage.web_fetches,
        usage.code_executions,
        usage.tool_searches,
        usage.mcp_calls,
        usage.search_units,
        receipt.credits,
        receipt.balance_after,
    );
    write_quoted(text, detail.conversation.as_deref().unwrap_or_default());
    for ms in [detail.took_ms, detail.first_token_ms] {
        text.push(',');
        if let Some(ms) = ms {
            let _ = write!(text, "{ms}");
        }
    }
    text.push(',');
    write_quoted(text, &names.of_request(detail).name);
    let _ = write!(
        text,
        ",{},{},{},{},{}\r\n",
        usage.image_input, usage.image_output, usage.images, usage.characters, usage.seconds,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_a_name() {
        assert_eq!(CSV_HEADER.trim_end().split(',').count(), 32);
    }
}
