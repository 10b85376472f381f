//! Defines the appearance of each kind of failure: `failure/table.txt` has one row for each kind,
//! in the order of `Kind`. A kind without a row is a compile error.
//!
//! The columns are the kind, the status and error type on the surfaces chat (also responses) and
//! messages, and the members of `FailureRow`. `retry` is the seconds to wait, or `never`. A `-`
//! marks an empty cell. The appearance must depend on the kind alone.
//!
//! Read next: `failure/vendor.rs`.

use super::kind::Kind;
use crate::Protocol;
use crate::table_text::split_at_byte;

/// The text of the table. Its first line has the names of the columns.
const TABLE: &str = include_str!("table.txt");

static ROWS: [FailureRow; Kind::ALL.len()] = parse_table(TABLE);

#[derive(Clone, Copy)]
pub(super) struct FailureRow {
    /// Status and error type on the chat surface.
    chat: (u16, &'static str),
    /// Status and error type on the messages surface.
    messages: (u16, &'static str),
    /// The value of `error.code` in chat and of `error.details.error_code` in messages.
    pub code: Option<&'static str>,
    pub param: Option<&'static str>,
    /// Seconds to wait before a retry, if waiting helps.
    pub retry_after: Option<u32>,
    /// True to send `x-should-retry: false` although clients would retry the status.
    pub never_retry: bool,
    pub reason: &'static str,
    pub message: &'static str,
}

impl FailureRow {
    pub fn status_and_type(&self, surface: Protocol) -> (u16, &'static str) {
        match surface {
            Protocol::Chat | Protocol::Responses => self.chat,
            Protocol::Messages => self.messages,
        }
    }

    /// Returns the default `param` for a failure whose exact member is unknown.
    pub fn param_for(&self, surface: Protocol) -> Option<&'static str> {
        self.param.map(|param| {
            if surface == Protocol::Responses && param == "messages" {
                "input"
            } else {
                param
            }
        })
    }
}

impl Kind {
    /// Returns the label for metrics and logs, from a closed set. Several kinds may share a label.
    pub fn reason(self) -> &'static str {
        failure_row(self).reason
    }

    pub fn status(self, surface: Protocol) -> u16 {
        failure_row(self).status_and_type(surface).0
    }
}

pub(super) fn failure_row(kind: Kind) -> &'static FailureRow {
    &ROWS[kind as usize]
}

const fn parse_table(text: &'static str) -> [FailureRow; Kind::ALL.len()] {
    let (_, mut rest) = split_at_byte(text, b'\n');
    let (first, _) = split_at_byte(rest, b'\n');
    let mut rows = [parse_row(first); Kind::ALL.len()];
    let mut at = 0;
    while at < rows.len() {
        let (line, behind) = split_at_byte(rest, b'\n');
        rows[at] = parse_row(line);
        rest = behind;
        at += 1;
    }
    assert!(
        rest.is_empty(),
        "the table has more rows than there are kinds"
    );
    rows
}

const fn parse_row(line: &'static str) -> FailureRow {
    let (_kind, rest) = split_at_byte(line, b'|');
    let (chat, rest) = split_at_byte(rest, b'|');
    let (messages, rest) = split_at_byte(rest, b'|');
    let (reason, rest) = split_at_byte(rest, b'|');
    let (code, rest) = split_at_byte(rest, b'|');
    let (param, rest) = split_at_byte(rest, b'|');
    let (retry, message) = split_at_byte(rest, b'|');
    let (retry_after, never_retry) = match parse_cell(retry) {
        Some(seconds) if matches!(seconds.as_bytes(), b"never") => (None, true),
        Some(seconds) => (Some(parse_number(seconds)), false),
        None => (None, false),
    };
    FailureRow {
        chat: parse_status(chat),
        messages: parse_status(messages),
        code: parse_cell(code),
        param: parse_cell(param),
        retry_after,
        never_retry,
        reason: reason.trim_ascii(),
        message: message.trim_ascii(),
    }
}

/// Returns the text of a cell, or `None` for an empty cell.
const fn parse_cell(cell: &'static str) -> Option<&'static str> {
    match cell.trim_ascii().as_bytes() {
        b"-" => None,
        _ => Some(cell.trim_ascii()),
    }
}

/// Parses a status and an error type.
const fn parse_status(cell: &'static str) -> (u16, &'static str) {
    let (status, error_type) = split_at_byte(cell.trim_ascii(), b' ');
    (parse_number(status) as u16, error_type)
}

#[expect(clippy::panic, reason = "only the compiler runs this")]
const fn parse_number(text: &str) -> u32 {
    match u32::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => panic!("a cell of the table is not a number"),
    }
}

/// Returns the chat `code` and the messages `type` of an error frame inside a stream. All
/// refusals with the same status share one code.
pub(super) fn stream_error_codes(kind: Kind) -> (&'static str, &'static str) {
    match (failure_row(kind).chat.0, kind) {
        (503, _) => ("overloaded", "overloaded_error"),
        (429, _) => ("rate_limit_exceeded", "rate_limit_error"),
        (_, Kind::UpstreamClosed) => ("upstream_closed", "api_error"),
        (_, Kind::UpstreamTimeout) => ("upstream_timeout", "timeout_error"),
        _ => ("upstream_error", "api_error"),
    }
}

/// Returns the code of a failure inside a stream of the responses surface. Its clients use it to
/// decide whether to retry.
pub(super) fn responses_code(kind: Kind) -> &'static str {
    match (failure_row(kind).chat.0, kind) {
        (503, _) => OVERLOADED_CODE,
        (429, _) => "rate_limit_exceeded",
        (_, Kind::ContextTooLong) => "context_length_exceeded",
        // A retry would fail for the same reason.
        (
            _,
            Kind::InvalidRequest
            | Kind::ContentPolicy
            | Kind::Unprocessable
            | Kind::UpstreamEventTooLarge
            | Kind::VendorRefusedUs
            | Kind::Internal,
        ) => "invalid_prompt",
        _ => "server_error",
    }
}

/// Code for missing capacity at which clients of the responses surface stop.
pub(super) const OVERLOADED_CODE: &str = "server_is_overloaded";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_stand_in_the_order_of_the_kinds() {
        let names = TABLE.lines().skip(1).map(|row| row.split('|').next());
        let kinds = Kind::ALL.iter().map(|kind| format!("{kind:?}"));
        for (name, kind) in names.zip(kinds) {
            assert_eq!(name.unwrap().trim(), kind);
        }
    }
}
