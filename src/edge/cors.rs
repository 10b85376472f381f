//! Answers browsers' cross-origin requests (CORS), so that a browser knows which pages may call the
//! API.
//!
//! CORS is off unless `cors.origins` lists an origin. It applies to API paths only, not to pages.
//! No response allows cookies: a page sends its key in a header that it sets itself.

use config::CorsOrigins;
use http::{HeaderMap, HeaderValue, header};
use pingora::Result;
use pingora::http::ResponseHeader;

pub struct CorsHeaders {
    /// `None` if the request has no origin, or its origin may not call the API.
    allow_origin: Option<HeaderValue>,
}

impl CorsHeaders {
    /// Reads the origin of a request. Returns `None` if no page of another origin may call the API.
    pub fn from_request(origins: &CorsOrigins, headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(header::ORIGIN).iter();
        let origin = values.next().filter(|_| values.next().is_none());
        let allow_origin = match origins {
            CorsOrigins::None => return None,
            CorsOrigins::Any => origin.map(|_| HeaderValue::from_static("*")),
            CorsOrigins::Listed(listed) => origin
                .filter(|origin| listed.iter().any(|one| one.as_bytes() == origin.as_bytes()))
                .cloned(),
        };
        Some(Self { allow_origin })
    }

    /// Returns whether the page that sent the request may call the API.
    pub fn allows_origin(&self) -> bool {
        self.allow_origin.is_some()
    }

    /// Adds the header fields that every response to a browser needs.
    pub fn apply(&self, head: &mut ResponseHeader) -> Result<()> {
        head.insert_header(header::VARY, "origin")?;
        if let Some(origin) = &self.allow_origin {
            head.insert_header(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin)?;
            // Expose every response header: a request without credentials may read all of them.
            head.insert_header(header::ACCESS_CONTROL_EXPOSE_HEADERS, "*")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow_origin(origins: &CorsOrigins, values: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for origin in values {
            headers.append(header::ORIGIN, origin.parse().unwrap());
        }
        let cors = CorsHeaders::from_request(origins, &headers)?;
        cors.allow_origin
            .map(|origin| origin.to_str().unwrap().to_owned())
    }

    #[test]
    fn an_origin_is_compared_as_a_whole() {
        let listed = CorsOrigins::Listed(vec![
            "https://app.example".into(),
            "http://localhost:3000".into(),
        ]);
        for origin in ["https://app.example", "http://localhost:3000"] {
            assert_eq!(allow_origin(&listed, &[origin]).as_deref(), Some(origin));
            assert_eq!(
                allow_origin(&CorsOrigins::Any, &[origin]).as_deref(),
                Some("*")
            );
            assert_eq!(allow_origin(&CorsOrigins::None, &[origin]), None);
        }
        for origin in [
            "https://app.example.evil",
            "https://evil.app.example",
            "http://app.example",
            "null",
            "",
        ] {
            assert_eq!(allow_origin(&listed, &[origin]), None, "{origin}");
        }
        assert_eq!(
            allow_origin(&listed, &["https://app.example", "https://app.example"]),
            None
        );
        assert_eq!(allow_origin(&listed, &[]), None);
    }
}
