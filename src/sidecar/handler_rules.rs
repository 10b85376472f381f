//! Decides which requests need a thread that may read files, and which clients share these threads.
//!
//! It decides before any file is read, so a session's token stands for its account. This file must
//! not depend on a page.

use super::edge_api::ACCOUNT_HEADER;
use super::error::PageError;
use super::session::{ClientIp, UNNAMED_CLIENT_HEADER, session_token, site_url};
use crate::handler_threads::{HandlerClient, HandlerRefusal, HandlerRules};
use arc_swap::ArcSwap;
use axum::extract::Request;
use axum::http::Method;
use axum::response::{IntoResponse as _, Response};
use config::Settings;
use config::address::network_block;
use std::sync::Arc;

/// Pages that read no file, by their path or its start; and whether that is so for signed-in
/// readers, too.
const WITHOUT_FILES: &[(&str, bool)] = &[
    ("/dashboard/static/*", true),
    ("/dashboard/brand/*", true),
    ("/dashboard/sign-in", true),
    ("/dashboard/sign-up", true),
    ("/docs", false),
    ("/docs/*", false),
];

/// Returns the rules for pages.
pub fn page_rules(settings: Arc<ArcSwap<Settings>>) -> HandlerRules {
    HandlerRules {
        clients: Arc::new(move |request| page_clients(request, &settings.load().base_url)),
        refuse,
    }
}

/// Returns the rules for the API of edges.
pub fn edge_rules() -> HandlerRules {
    let account = |request: &Request| {
        let account = request.headers().get(ACCOUNT_HEADER)?.to_str().ok()?;
        Some(HandlerClient::Name(account.to_owned()))
    };
    HandlerRules {
        clients: Arc::new(move |request| Some(account(request).into_iter().collect())),
        refuse,
    }
}

fn refuse(refusal: HandlerRefusal) -> Response {
    let error = match refusal {
        HandlerRefusal::Stuck => PageError::Storage("the threads of the pages are stuck".into()),
        HandlerRefusal::ClientShare => PageError::Busy,
    };
    error.into_response()
}

fn page_clients(request: &Request, base_url: &str) -> Option<Vec<HandlerClient>> {
    let headers = request.headers();
    let session = session_token(headers, &site_url(headers, base_url));
    if reads_no_file(request, session.is_some()) {
        return None;
    }
    // The address of a proxy that names no client belongs to everybody.
    let is_named = !headers.contains_key(UNNAMED_CLIENT_HEADER);
    let network = is_named.then(|| {
        let address = ClientIp::from_head(headers, request.extensions()).0;
        HandlerClient::Network(network_block(address))
    });
    let session = session.map(HandlerClient::Name);
    Some(network.into_iter().chain(session).collect())
}

fn reads_no_file(request: &Request, is_signed_in: bool) -> bool {
    let path = request.uri().path();
    let is_path = |pattern: &str| match pattern.strip_suffix('*') {
        Some(start) => path.starts_with(start),
        None => path == pattern,
    };
    let mut pages = WITHOUT_FILES.iter();
    matches!(*request.method(), Method::GET | Method::HEAD)
        && pages.any(|(pattern, for_all)| is_path(pattern) && (*for_all || !is_signed_in))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    const TOKEN: &str = "gw-session=token";

    fn clients(method: &str, path: &str, headers: &[(&str, &str)]) -> Option<String> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        let clients = page_clients(&request, "http://127.0.0.1:8080")?;
        let names = clients.into_iter().map(|client| match client {
            HandlerClient::Network(network) => network.to_string(),
            HandlerClient::Name(name) => name,
        });
        Some(names.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_page_that_reads_no_file_needs_no_thread() {
        for (method, path, cookie, needs_thread) in [
            ("GET", "/dashboard/static/style.css", TOKEN, false),
            ("HEAD", "/dashboard/brand/logo.svg", TOKEN, false),
            ("GET", "/dashboard/sign-in", TOKEN, false),
            ("GET", "/dashboard/sign-up", "", false),
            ("GET", "/docs", "", false),
            ("GET", "/docs/models", "other=token", false),
            // The reader's name and banners are read.
            ("GET", "/docs", TOKEN, true),
            ("GET", "/docs/models", TOKEN, true),
            ("POST", "/dashboard/sign-in", "", true),
            ("GET", "/dashboard/sign-in/provider", "", true),
            ("GET", "/dashboard/sign-inn", "", true),
            ("GET", "/dashboard", "", true),
        ] {
            let clients = clients(method, path, &[("cookie", cookie)]);
            assert_eq!(clients.is_some(), needs_thread, "{method} {path} {cookie}");
        }
    }

    #[test]
    fn a_request_counts_for_its_network_and_its_session() {
        let (forwarded, unnamed) = ("x-forwarded-for", UNNAMED_CLIENT_HEADER);
        let cases: [(&[(&str, &str)], &str); 5] = [
            (&[(forwarded, "192.0.2.7")], "192.0.2.7"),
            (&[(forwarded, "2001:db8::7")], "2001:db8::"),
            (
                &[(forwarded, "192.0.2.7"), ("cookie", TOKEN)],
                "192.0.2.7 token",
            ),
            (
                &[(forwarded, "192.0.2.7"), (unnamed, "1"), ("cookie", TOKEN)],
                "token",
            ),
            (&[(unnamed, "1")], ""),
        ];
        for (headers, expected) in cases {
            let clients = clients("GET", "/dashboard", headers);
            assert_eq!(clients.as_deref(), Some(expected), "{headers:?}");
        }
    }
}
