//! Names a browser and its system in two words, so that users recognize their sessions.
//!
//! Only names from this file are stored, never text from the header.

use axum::http::{HeaderMap, header};

/// Browsers by their `User-Agent` token. Browsers also send tokens of browsers further down, so the
/// first match counts.
const BROWSERS: [(&str, &str); 8] = [
    ("Edg", "Edge"),
    ("OPR/", "Opera"),
    ("Firefox/", "Firefox"),
    ("FxiOS/", "Firefox"),
    ("Chrome/", "Chrome"),
    ("CriOS/", "Chrome"),
    ("Safari/", "Safari"),
    ("curl/", "curl"),
];

const SYSTEMS: [(&str, &str); 6] = [
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS", "macOS"),
    ("Linux", "Linux"),
];

/// Describes the browser, such as `Firefox on Linux`.
pub fn describe(headers: &HeaderMap) -> String {
    let user_agent = headers
        .get(header::USER_AGENT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let find = |names: &[(&str, &'static str)]| {
        names
            .iter()
            .find(|(mark, _)| user_agent.contains(mark))
            .map(|(_, name)| *name)
    };
    match (find(&BROWSERS), find(&SYSTEMS)) {
        (Some(browser), Some(system)) => format!("{browser} on {system}"),
        (Some(one), None) | (None, Some(one)) => one.to_owned(),
        (None, None) => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_browser_is_known_by_name_alone() {
        let describe_text = |text: &'static str| {
            describe(
                &[(header::USER_AGENT, HeaderValue::from_static(text))]
                    .into_iter()
                    .collect(),
            )
        };
        let chrome = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36";
        assert_eq!(describe_text(chrome), "Chrome on Linux");
        assert_eq!(
            describe_text("Mozilla/5.0 (Windows NT 10.0) Gecko/20100101 Firefox/140.0"),
            "Firefox on Windows"
        );
        assert_eq!(describe_text("<script>alert(1)</script>"), "unknown");
        assert_eq!(describe(&HeaderMap::new()), "unknown");
    }
}
