//! Parts common to all pages: the frame, static files, and the format of times.

use super::authz::may_view;
use super::error::PageError;
use super::session::CurrentUser;
use crate::account::AccountStatus;
use crate::clock::rfc3339;
use askama::Template;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

/// A static file. Its name contains a hash of its contents, so that browsers can cache it forever.
struct Asset {
    name: String,
    etag: String,
    content_type: &'static str,
    bytes: &'static [u8],
}

impl Asset {
    fn new(stem: &str, extension: &str, content_type: &'static str, bytes: &'static [u8]) -> Self {
        let digest = Sha256::digest(bytes);
        let hash = digest
            .iter()
            .take(8)
            .fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        Self {
            name: format!("{stem}-{hash}.{extension}"),
            etag: format!("\"{hash}\""),
            content_type,
            bytes,
        }
    }
}

/// Constant, except for the hash.
static STYLE: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new(
        "style",
        "css",
        "text/css; charset=utf-8",
        include_bytes!("../../dashboard/static/style.css"),
    )
});
static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new(
        "app",
        "js",
        "text/javascript; charset=utf-8",
        include_bytes!("../../dashboard/static/app.js"),
    )
});
/// Vendored; the license is next to it in `uplot-LICENSE`.
static CHART_STYLE: LazyLock<Asset> = LazyLock::new(|| {
    let bytes = include_bytes!("../../dashboard/static/vendor/uplot-1.6.32.css");
    Asset::new("uplot", "css", "text/css; charset=utf-8", bytes)
});
static CHART_SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    let bytes = include_bytes!("../../dashboard/static/vendor/uplot-1.6.32.js");
    Asset::new("uplot", "js", "text/javascript; charset=utf-8", bytes)
});

/// Values of the frame template.
pub struct Frame {
    pub title: &'static str,
    pub style: &'static str,
    pub script: &'static str,
    /// Style and script for charts, on pages that have charts.
    pub charts: Option<(&'static str, &'static str)>,
    pub viewer: Option<FrameUser>,
    /// Passwords and keys cross a network unencrypted.
    pub insecure: bool,
}

/// The signed-in user, as the frame shows it.
pub struct FrameUser {
    pub email: String,
    pub csrf: String,
    pub suspended: bool,
    /// The user may view the operator pages.
    pub operator: bool,
}

impl Frame {
    pub fn public(title: &'static str) -> Self {
        Self {
            title,
            style: &STYLE.name,
            script: &SCRIPT.name,
            charts: None,
            viewer: None,
            insecure: false,
        }
    }

    pub fn new(title: &'static str, user: &CurrentUser) -> Self {
        let viewer = FrameUser {
            email: user.account.email.clone(),
            csrf: user.csrf.clone(),
            suspended: user.account.status == AccountStatus::Suspended,
            operator: may_view(&user.account),
        };
        Self {
            viewer: Some(viewer),
            insecure: user.insecure,
            ..Self::public(title)
        }
    }

    #[must_use]
    pub fn with_charts(self) -> Self {
        Self {
            charts: Some((&CHART_STYLE.name, &CHART_SCRIPT.name)),
            ..self
        }
    }

    /// True for the section of the dashboard that is being shown.
    pub fn is_current(&self, title: &str) -> bool {
        self.title == title
    }
}

/// Renders a page.
pub fn html(status: StatusCode, page: &impl Template) -> Response {
    match page.render() {
        Ok(text) => (status, Html(text)).into_response(),
        Err(error) => {
            // Not a `PageError`: that would render a page again.
            log::error!("sidecar: cannot render a page: {error}");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Formats `200000` as `200 000`, with narrow no-break spaces.
pub fn group_digits(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Formats a time as `2026-11-21 12:00:00 UTC`.
pub fn format_time(ms: i64) -> String {
    let text = rfc3339(ms);
    text.get(..19).map_or_else(
        || text.clone(),
        |start| format!("{} UTC", start.replace('T', " ")),
    )
}

pub async fn redirect_to_dashboard() -> Redirect {
    Redirect::to("/dashboard")
}

pub async fn asset(Path(file): Path<String>, headers: HeaderMap) -> Result<Response, PageError> {
    let assets = [&STYLE, &SCRIPT, &CHART_STYLE, &CHART_SCRIPT];
    let asset = assets
        .into_iter()
        .find(|asset| asset.name == file)
        .ok_or(PageError::NotFound)?;
    let known = headers
        .get(header::IF_NONE_MATCH)
        .is_some_and(|etag| etag.as_bytes() == asset.etag.as_bytes());
    let mut response = if known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(header::CONTENT_TYPE, asset.content_type)], asset.bytes).into_response()
    };
    let etag = HeaderValue::from_str(&asset.etag)
        .map_err(|error| PageError::Internal(error.to_string()))?;
    response.headers_mut().insert(header::ETAG, etag);
    let forever = HeaderValue::from_static("public, max-age=31536000, immutable");
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, forever);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(group_digits(0), "0");
        assert_eq!(group_digits(999), "999");
        assert_eq!(group_digits(1_234_567), "1\u{202f}234\u{202f}567");
    }

    #[test]
    fn what_draws_the_charts_is_the_release_that_it_says_it_is() {
        let sha256 = |bytes: &[u8]| {
            Sha256::digest(bytes)
                .iter()
                .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
        };
        let script = include_bytes!("../../dashboard/static/vendor/uplot-1.6.32.js");
        let style = include_bytes!("../../dashboard/static/vendor/uplot-1.6.32.css");
        // `dist/uPlot.iife.min.js` and `dist/uPlot.min.css` of uplot 1.6.32 in the npm registry.
        assert_eq!(
            sha256(script),
            "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
        );
        assert_eq!(
            sha256(style),
            "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"
        );
    }
}
