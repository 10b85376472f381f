//! The filtered rows as a CSV file. It is read page by page while it is sent, so that memory use
//! does not depend on its size.

use super::query::ActivityQuery;
use crate::billing::activity::{ActivityCursor, ActivityFilter, RequestOutcome};
use crate::billing::{Billing, Receipt};
use crate::clock::rfc3339;
use crate::sidecar::csv::write_quoted;
use crate::sidecar::error::PageError;
use crate::sidecar::session::CurrentUser;
use crate::sidecar::state::SidecarState;
use crate::sidecar::stream_slots::StreamSlot;
use crate::store::StoreError;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use std::fmt::Write;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::task::JoinHandle;

/// Maximum number of rows in a file. If there are more, the last line says so.
pub const MAX_ROWS: u32 = 100_000;

/// Rows per read.
const CHUNK_ROWS: u32 = 500;

const CSV_HEADER: &str = "time,request_id,model,surface,key,outcome,estimated,input,cache_read,cache_write_5m,cache_write_1h,\
                    audio_input,output,reasoning,audio_output,web_searches,web_fetches,code_executions,\
                    tool_searches,mcp_calls,credits,balance_after,conversation,took_ms,\
                    first_token_ms\r\n";

pub async fn download(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    query: Result<Query<ActivityQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(query) = query.map_err(|_| PageError::NotFound)?;
    let filter = query.filter().map_err(|_| PageError::NotFound)?;
    let account = user.account.id;
    let slot = StreamSlot::try_acquire(&app.streams, &account, &app.settings.load().limits)
        .ok_or(PageError::Busy)?;
    let file = CsvDownload {
        _slot: slot,
        billing: app.billing.clone(),
        account,
        filter,
        next: DownloadStage::Head,
        left: MAX_ROWS,
    };
    let headers = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8"),
        (
            header::CONTENT_DISPOSITION,
            "attachment; filename=\"responses.csv\"",
        ),
    ];
    Ok((headers, Body::from_stream(file)).into_response())
}

struct CsvDownload {
    /// Counts as one of the account's streams.
    _slot: StreamSlot,
    billing: Billing,
    account: String,
    filter: ActivityFilter,
    next: DownloadStage,
    left: u32,
}

enum DownloadStage {
    Head,
    Rows(Option<ActivityCursor>),
    Reading(JoinHandle<Result<Vec<Receipt>, StoreError>>),
    Ended,
}

impl CsvDownload {
    fn spawn_read(
        &self,
        before: Option<ActivityCursor>,
    ) -> JoinHandle<Result<Vec<Receipt>, StoreError>> {
        let (billing, account, filter) = (
            self.billing.clone(),
            self.account.clone(),
            self.filter.clone(),
        );
        // One more row than the file may have, to know whether it was cut.
        let max_rows = CHUNK_ROWS.min(self.left.saturating_add(1));
        tokio::task::spawn_blocking(move || billing.activity(&account, &filter, before, max_rows))
    }

    fn encode_rows(&mut self, receipts: &[Receipt]) -> String {
        let mut text = String::new();
        for receipt in receipts {
            if self.left == 0 {
                let _ = write!(
                    text,
                    "\"cut off here: a file has at most {MAX_ROWS} rows; choose fewer days\"\r\n"
                );
                self.next = DownloadStage::Ended;
                return text;
            }
            self.left -= 1;
            write_row(&mut text, receipt);
        }
        self.next = receipts.last().map_or(DownloadStage::Ended, |last| {
            DownloadStage::Rows(Some(last.cursor()))
        });
        text
    }
}

impl Stream for CsvDownload {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match &mut self.next {
                DownloadStage::Head => {
                    self.next = DownloadStage::Rows(None);
                    return Poll::Ready(Some(Ok(Bytes::from_static(CSV_HEADER.as_bytes()))));
                }
                DownloadStage::Rows(before) => {
                    let before = *before;
                    self.next = DownloadStage::Reading(self.spawn_read(before));
                }
                DownloadStage::Reading(reading) => {
                    let read = ready!(Pin::new(reading).poll(context));
                    let receipts = match read
                        .map_err(io::Error::other)
                        .and_then(|read| read.map_err(io::Error::other))
                    {
                        Ok(receipts) => receipts,
                        Err(error) => {
                            // The connection is cut, so that an incomplete file does not look
                            // complete.
                            log::error!(
                                "sidecar: cannot write an account's responses to the CSV file: {error}"
                            );
                            self.next = DownloadStage::Ended;
                            return Poll::Ready(Some(Err(error)));
                        }
                    };
                    let text = self.encode_rows(&receipts);
                    if !text.is_empty() {
                        return Poll::Ready(Some(Ok(text.into())));
                    }
                }
                DownloadStage::Ended => return Poll::Ready(None),
            }
        }
    }
}

/// The value of the outcome column. Programs read it, so it stays as it is when a page's label
/// changes.
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

fn write_row(text: &mut String, receipt: &Receipt) {
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
        "{estimated},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},",
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
    text.push_str("\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_a_name() {
        assert_eq!(CSV_HEADER.trim_end().split(',').count(), 25);
    }
}
