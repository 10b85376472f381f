//! Checks the header of a vendor's response, and replaces it with the gateway's own.
//!
//! The status decides how the body is processed. This file must not look at the body.

use crate::edge::intake::ContentCoding;
use crate::edge::state::admitted::AdmittedRequest;
use crate::edge::state::record::RequestRecord;
use crate::edge::state::responding::ResponseMode;
use crate::edge::{rate_limits, upstream};
use base::clock;
use base::failpoint::{self, Point};
use http::{HeaderName, HeaderValue, StatusCode, header};
use llm_protocol::failure::{Failure, Kind};
use pingora::http::ResponseHeader;
use pingora::{Error, ErrorType, Result};
use std::time::Instant;

const JSON: &str = "application/json";

/// Maximum size of a vendor's header, names and values together. Over HTTP/1.1 Pingora's own limit
/// applies; over HTTP/2 the library accepts 16 MiB.
const MAX_HEADER_BYTES: usize = 262_144;

/// Checks the vendor's header and replaces it with the gateway's.
///
/// # Errors
/// Returns an error if the header is too large, or if the status permits another attempt.
pub fn filter_header(
    record: &mut RequestRecord,
    call: &mut AdmittedRequest,
    header: &mut ResponseHeader,
) -> Result<()> {
    if header.status == StatusCode::SWITCHING_PROTOCOLS {
        return reject_protocol_switch(call);
    }
    if header.status.is_informational() {
        return Ok(());
    }
    if let Some(trace) = &mut record.trace {
        trace.record_status(header.status.as_u16());
    }
    failpoint::hit(Point::VendorAnswered);
    check_size(header)?;
    let status = header.status.as_u16();
    call.response.answered_at = Some(Instant::now());
    call.response.unsent.clear();
    call.response.unbilled_usage = None;
    let text = |name: &str| text_of(header, name);
    let retry_after =
        text("retry-after").map(|value| normalize_retry_after(value, clock::now_ms()));
    let request = (&mut *call, record.request_id.as_str());
    if upstream::record_status(request, status, retry_after.as_deref()) {
        return Error::e_explain(
            ErrorType::HTTPStatus(status),
            "the vendor answered with this status",
        )
        .map_err(|error: Box<Error>| error.into_up());
    }
    call.response.mode = first_mode(header, retry_after);
    if !header.status.is_success() {
        call.exchange.mark_vendor_failed();
    }
    let content_type = text("content-type").unwrap_or_default();
    let content_type = match call.metered {
        Some(terms) if header.status.is_success() => {
            let (form, content_type) = terms.endpoint.answer_form(&content_type);
            call.response.answer_form = form;
            content_type
        }
        _ => JSON,
    };
    if status != 400 {
        // Only status 400 can mean that the vendor refused the reasoning.
        call.reasoning_retry = None;
    }
    let vendor_request_id = text("request-id").or_else(|| text("x-request-id"));
    let vendor_request_id =
        vendor_request_id.filter(|id| is_forwardable_id(id, call.model.vendor.api_key.reveal()));
    call.response.header_id.clone_from(&vendor_request_id);
    let status = match header.status.is_success() {
        true => 200,
        false => status,
    };
    let client_header =
        build_response_header(record, call, status, vendor_request_id, content_type)?;
    record.status = client_header.status.as_u16();
    *header = client_header;
    Ok(())
}

fn check_size(header: &ResponseHeader) -> Result<()> {
    let fields = header.headers.iter();
    let bytes: usize = fields
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    if bytes <= MAX_HEADER_BYTES {
        return Ok(());
    }
    Error::e_explain(
        ErrorType::InvalidHTTPHeader,
        "the vendor's header is too large",
    )
    .map_err(|error: Box<Error>| error.into_up())
}

fn text_of(header: &ResponseHeader, name: &str) -> Option<String> {
    let value = header.headers.get(name)?;
    value.to_str().ok().map(str::to_owned)
}

/// Returns the mode of a response of which only the header has arrived.
fn first_mode(header: &ResponseHeader, retry_after: Option<String>) -> ResponseMode {
    if header.status.is_success() {
        let content_type = text_of(header, "content-type");
        return ResponseMode::Undecided {
            is_named_events: content_type.is_some_and(|kind| kind.starts_with("text/event-stream")),
            opening: Vec::new(),
        };
    }
    let coding = text_of(header, "content-encoding");
    ResponseMode::Error {
        status: header.status.as_u16(),
        retry_after,
        coding: coding.and_then(|name| ContentCoding::parse(name.as_bytes()).ok()?),
        body: Vec::new(),
    }
}

/// Fails the attempt if the vendor switches protocols. The gateway did not request that, and cannot
/// read the bytes that follow.
fn reject_protocol_switch(call: &mut AdmittedRequest) -> Result<()> {
    call.failure = Some(Failure::new(
        Kind::UpstreamFailed,
        "The vendor answered with status 101, although the request did not ask to switch protocols.",
    ));
    upstream::record_protocol_switch(call);
    Error::e_explain(
        ErrorType::InvalidHTTPHeader,
        "the vendor switched protocols",
    )
    .map_err(|error: Box<Error>| error.into_up())
}

fn build_response_header(
    record: &RequestRecord,
    call: &mut AdmittedRequest,
    status: u16,
    vendor_request_id: Option<String>,
    content_type: &str,
) -> Result<ResponseHeader> {
    let mut client_header = ResponseHeader::build_no_case(status, Some(10))?;
    // A client that asked for a stream gets one, regardless of the vendor's answer.
    let stream = call.wants_stream && matches!(call.response.mode, ResponseMode::Undecided { .. });
    call.response.client_gets_stream = stream;
    client_header.insert_header(
        header::CONTENT_TYPE,
        if stream {
            "text/event-stream; charset=utf-8"
        } else {
            content_type
        },
    )?;
    client_header.insert_header("x-request-id", &record.request_id)?;
    client_header.insert_header("request-id", &record.request_id)?;
    if let Some(vendor_request_id) =
        vendor_request_id.and_then(|id| HeaderValue::from_str(&id).ok())
    {
        client_header.insert_header("x-upstream-request-id", vendor_request_id)?;
    }
    if stream {
        client_header.insert_header(header::CACHE_CONTROL, "no-cache")?;
        client_header.insert_header("x-accel-buffering", "no")?;
    }
    if !call.warnings.is_empty() {
        client_header.insert_header(WARNINGS_HEADER, encode_warnings(&mut call.warnings))?;
    }
    if status == 200
        && let Some(hold) = &call.hold
    {
        for (name, value) in
            rate_limits::headers(record.surface, &hold.rate_limits(), clock::now_ms())
        {
            client_header.insert_header(name, value)?;
        }
    }
    if let Some(mut idempotency) = call.exchange.take_idempotency() {
        idempotency.set_headers(replayable_headers(&client_header));
        call.exchange.set_idempotency(Some(idempotency));
    }
    // The field is added after the copy for a replay was made, because the replay may go to another
    // page.
    if let Some(cors) = &record.cors {
        cors.apply(&mut client_header)?;
    }
    let phases = call.phases(record.arrived);
    client_header.insert_header("server-timing", phases.to_string())?;
    Ok(client_header)
}

/// Converts a vendor's `retry-after`, which may be a date, to seconds.
fn normalize_retry_after(retry_after: String, now_ms: i64) -> String {
    let Some(at_ms) = clock::http_date_ms(&retry_after) else {
        return retry_after;
    };
    at_ms
        .saturating_sub(now_ms)
        .max(0)
        .unsigned_abs()
        .div_ceil(1_000)
        .to_string()
}

/// Maximum length of a vendor's request id that is passed on, in bytes.
const MAX_ID_BYTES: usize = 128;

/// Returns whether a text can be forwarded as a vendor's request id. It must not contain `key`,
/// which is empty for a vendor without a key.
fn is_forwardable_id(text: &str, key: &str) -> bool {
    let is_part =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':');
    let holds_key = !key.is_empty() && text.contains(key);
    text.len() <= MAX_ID_BYTES && text.bytes().all(is_part) && !holds_key
}

/// Returns the header fields that a replay repeats. Its request ids and rate limits are new.
fn replayable_headers(header: &ResponseHeader) -> Vec<(String, String)> {
    let is_id = |name: &HeaderName| {
        matches!(name.as_str(), "request-id" | "x-request-id")
            || name.as_str().contains("ratelimit")
    };
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = header.headers.iter().filter(|(name, _)| !is_id(name));
    headers
        .map(|(name, value)| (name.as_str().to_owned(), text(value)))
        .collect()
}

pub(super) const WARNINGS_HEADER: &str = "x-gateway-warnings";

/// Maximum length of the list of warnings, in bytes.
const MAX_WARNINGS_BYTES: usize = 1_024;

/// Replaces the rest of a longer list.
const TRUNCATION_MARK: &str = "...more";

/// Encodes the warnings as the value of one header, sorted.
pub(super) fn encode_warnings(tokens: &mut [String]) -> Vec<u8> {
    tokens.sort();
    let all = tokens.join(", ");
    if all.len() <= MAX_WARNINGS_BYTES {
        return all.into_bytes();
    }
    let mut value = String::new();
    for token in tokens {
        if value.len() + token.len() + 2 + TRUNCATION_MARK.len() > MAX_WARNINGS_BYTES {
            break;
        }
        value.push_str(token);
        value.push_str(", ");
    }
    value.push_str(TRUNCATION_MARK);
    value.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::is_forwardable_id;

    #[test]
    fn a_vendors_request_id_is_passed_on_unless_it_holds_the_key() {
        for (id, key, expected) in [
            ("req_011:a.b-c", "sk-1", true),
            ("req_011", "", true),
            ("req_sk-1_011", "sk-1", false),
            ("req 011", "", false),
            (&"a".repeat(129), "", false),
        ] {
            assert_eq!(is_forwardable_id(id, key), expected, "{id} {key}");
        }
    }
}
