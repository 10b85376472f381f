//! Writes CSV files (RFC 4180) that people open in a spreadsheet. A file is read piece by piece
//! while it is sent, so that memory use does not depend on its size.
//!
//! This file must not depend on a page.

use super::stream_slots::StreamSlot;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use ledger::StoreError;
use std::future::Future;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::task::JoinHandle;

/// Reads the rows from a position on, as text, and returns the position after them.
type CsvReader<P> = dyn Fn(P) -> CsvPiece<P> + Send + Sync;
type CsvPiece<P> = Result<(String, Option<P>), StoreError>;

pub struct CsvFile<P> {
    /// Holds one of the account's stream slots while the file is sent.
    _slot: StreamSlot,
    read: Arc<CsvReader<P>>,
    next: CsvStage<P>,
}

enum CsvStage<P> {
    Head(&'static str, P),
    Rows(P),
    Reading(JoinHandle<CsvPiece<P>>),
    Ended,
}

impl<P: Send + Unpin + 'static> CsvFile<P> {
    /// Builds a file with the header line `head` and the rows that `read` returns, starting at the
    /// position `start`.
    pub fn new(
        slot: StreamSlot,
        head: &'static str,
        start: P,
        read: impl Fn(P) -> CsvPiece<P> + Send + Sync + 'static,
    ) -> Self {
        Self {
            _slot: slot,
            read: Arc::new(read),
            next: CsvStage::Head(head, start),
        }
    }

    pub fn into_response(self, file_name: &str) -> Response {
        let disposition = format!("attachment; filename=\"{file_name}\"");
        let headers = [
            (header::CONTENT_TYPE, "text/csv; charset=utf-8".to_owned()),
            (header::CONTENT_DISPOSITION, disposition),
        ];
        (headers, Body::from_stream(self)).into_response()
    }
}

impl<P: Send + Unpin + 'static> Stream for CsvFile<P> {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match mem::replace(&mut self.next, CsvStage::Ended) {
                CsvStage::Head(head, start) => {
                    self.next = CsvStage::Rows(start);
                    return Poll::Ready(Some(Ok(Bytes::from_static(head.as_bytes()))));
                }
                CsvStage::Rows(position) => {
                    let read = Arc::clone(&self.read);
                    let reading = tokio::task::spawn_blocking(move || read(position));
                    self.next = CsvStage::Reading(reading);
                }
                CsvStage::Reading(mut reading) => {
                    let Poll::Ready(read) = Pin::new(&mut reading).poll(context) else {
                        self.next = CsvStage::Reading(reading);
                        return Poll::Pending;
                    };
                    let read = read
                        .map_err(io::Error::other)
                        .and_then(|piece| piece.map_err(io::Error::other));
                    let (text, next) = match read {
                        Ok(piece) => piece,
                        Err(error) => {
                            // The connection is closed early, so that an incomplete file does not
                            // look complete.
                            log::error!("sidecar: cannot read the rows of a CSV file: {error}");
                            return Poll::Ready(Some(Err(error)));
                        }
                    };
                    self.next = next.map_or(CsvStage::Ended, CsvStage::Rows);
                    if !text.is_empty() {
                        return Poll::Ready(Some(Ok(text.into())));
                    }
                }
                CsvStage::Ended => return Poll::Ready(None),
            }
        }
    }
}

/// Characters with which a spreadsheet formula begins. Some spreadsheets skip leading tabs and line
/// breaks, and some accept the full-width forms of East Asian keyboards.
const FORMULA_STARTS: [char; 11] = ['=', '+', '-', '@', '＝', '＋', '－', '＠', '\t', '\r', '\n'];

/// Writes a text cell. A text that a spreadsheet would take for a formula is escaped.
pub fn write_quoted(text: &mut String, word: &str) {
    text.push('"');
    if word.starts_with(FORMULA_STARTS) {
        text.push('\'');
    }
    text.push_str(&word.replace('"', "\"\""));
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_a_text_whatever_it_holds() {
        let cell = |word: &str| {
            let mut text = String::new();
            write_quoted(&mut text, word);
            text
        };
        assert_eq!(cell(""), "\"\"");
        assert_eq!(cell("a,b"), "\"a,b\"");
        assert_eq!(cell("a\"b"), "\"a\"\"b\"");
        assert_eq!(cell("a\r\nb"), "\"a\r\nb\"");
        for formula in [
            "=1+1", "+1", "-1", "@x", "＝1+1", "＋1", "－1", "＠x", "\t=1", "\r=1", "\n=1",
        ] {
            assert_eq!(cell(formula), format!("\"'{formula}\""), "{formula:?}");
        }
        for text in ["a=1", "1-1", "’=1", "名＝1"] {
            assert_eq!(cell(text), format!("\"{text}\""), "{text:?}");
        }
    }
}
