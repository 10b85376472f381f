//! Leads a browser back, after its sign-in, to the page that needed one.
//!
//! That page leaves its path in a cookie. So every way to sign in leads back, also by a provider
//! or by the link of a mail, and no address decides where a browser goes. A cookie can be forged,
//! so only the pages of a table count. This file must not depend on a page.

use super::error::PageError;
use super::session::{CookieKind, read_cookie, site_url, write_cookie};
use super::state::SidecarState;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderValue, Uri, header};
use axum::response::Response;

/// The cookie with the path. It lasts as long as a person has to answer a program.
const RETURN_COOKIE: CookieKind = CookieKind {
    secure: "__Host-gw-return",
    plain: "gw-return",
    max_age_seconds: Some(600),
};

/// Pages to which a sign-in leads back: the start of the path with its query, and the maximum
/// number of letters, digits and hyphens that follow.
const PAGES: [(&str, usize); 3] = [
    ("/device", 0),
    ("/device?user_code=", 16),
    ("/dashboard/join/", 64),
];

/// Adds to the page at `uri` the cookie by which a sign-in leads back to it, if it is in the table.
pub fn remember(
    app: &SidecarState,
    headers: &HeaderMap,
    uri: &Uri,
    mut page: Response,
) -> Result<Response, PageError> {
    let path = uri.path_and_query().map_or("", PathAndQuery::as_str);
    if is_known(path) {
        let site = site_url(headers, &app.settings.load().base_url);
        let cookie = write_cookie(&RETURN_COOKIE, path, &site)?;
        page.headers_mut().append(header::SET_COOKIE, cookie);
    }
    Ok(page)
}

/// Returns the path to which the sign-in of a browser leads back, if there is one, and the cookie
/// that forgets it.
pub fn take(headers: &HeaderMap, site: &str) -> Result<Option<(String, HeaderValue)>, PageError> {
    let path = read_cookie(&RETURN_COOKIE, headers, site).filter(|path| is_known(path));
    let forget = |path| Ok((path, write_cookie(&RETURN_COOKIE, "", site)?));
    path.map(forget).transpose()
}

fn is_known(path: &str) -> bool {
    let is_plain = |rest: &str| {
        rest.bytes()
            .all(|it| it.is_ascii_alphanumeric() || it == b'-')
    };
    PAGES.iter().any(|(start, max)| {
        let rest = path.strip_prefix(start);
        rest.is_some_and(|rest| rest.len() <= *max && is_plain(rest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pages_of_the_table_are_known() {
        let token = "0a".repeat(32);
        for page in [
            "/device",
            "/device?user_code=",
            "/device?user_code=BCDF-GHJK",
            &format!("/dashboard/join/{token}"),
        ] {
            assert!(is_known(page), "{page}");
        }
        for other in [
            "",
            "/",
            "/dashboard",
            "/dashboard/keys",
            "device",
            "/device/",
            "/devices",
            "/Device",
            " /device",
            "/device ",
            "/device?user_code=BCDF-GHJK&next=/x",
            "/device?user_code=BCDF-GHJK#x",
            "/device?user_code=BCDFGHJKBCDFGHJKB",
            "/device?user_code=../x",
            "/device?user_code=%2f%2fevil.example",
            "/device?user_code=a\r\nset-cookie: a=b",
            "/device?user_code=\u{ff0f}",
            "/device?answer=approve",
            "/dashboard/join/../../device",
            "/dashboard/join/..%2fkeys",
            "/dashboard/join/a/b",
            &format!("/dashboard/join/{token}0"),
            "//device",
            "///device",
            "//evil.example/device",
            "/\\evil.example",
            "\\\\evil.example",
            "/%5cevil.example",
            "/%2fevil.example",
            "%2f%2fevil.example",
            "/\t/evil.example",
            "/device@evil.example",
            "/device.evil.example",
            "https://evil.example/device",
            "https:/device",
            "javascript:alert(1)",
            "data:text/html,/device",
        ] {
            assert!(!is_known(other), "{other}");
        }
    }
}
