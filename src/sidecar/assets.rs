//! Serves the static files of the pages, which are part of the program. They are compressed if the
//! client accepts a coding.
//!
//! Only these files are compressed, never a page: the length of a compressed page that holds a
//! secret beside text from a request reveals the secret bit by bit (BREACH). This file must not
//! depend on a page.

use super::error::PageError;
use super::state::SidecarState;
use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use std::cmp::Reverse;
use std::io::{self, Write};
use std::sync::{Arc, LazyLock};

/// Quality of Brotli, of at most 11. The last two levels take ten times as long and save a few
/// percent.
const BROTLI_QUALITY: i32 = 9;

/// Codings of static files, in descending order of compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AssetCoding {
    Brotli,
    Gzip,
}

impl AssetCoding {
    const ALL: [Self; 2] = [Self::Brotli, Self::Gzip];

    fn name(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }

    fn encode(self, mut bytes: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::Brotli => {
                let mut encoded = Vec::new();
                let parameters = brotli::enc::BrotliEncoderParams {
                    quality: BROTLI_QUALITY,
                    ..Default::default()
                };
                brotli::BrotliCompress(&mut bytes, &mut encoded, &parameters)?;
                Ok(encoded)
            }
            Self::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
                encoder.write_all(bytes)?;
                encoder.finish()
            }
        }
    }
}

/// The bytes of a file in one coding.
struct AssetVariant {
    /// Coding of the bytes; `None` for the uncompressed file.
    coding: Option<AssetCoding>,
    etag: String,
    bytes: Bytes,
}

/// Returns a hash of a file's contents, for its name.
pub fn short_hash(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let bytes = digest.iter().take(8);
    bytes.fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// A static file. Its name contains a hash of its contents, so that browsers can cache it forever.
pub struct Asset {
    pub name: String,
    content_type: &'static str,
    /// The uncompressed file, followed by its codings.
    variants: Vec<AssetVariant>,
}

impl Asset {
    fn new(
        stem: &str,
        extension: &str,
        content_type: &'static str,
        bytes: impl Into<Bytes>,
    ) -> Self {
        let bytes = bytes.into();
        let hash = short_hash(&bytes);
        let plain = AssetVariant {
            coding: None,
            etag: format!("\"{hash}\""),
            bytes: bytes.clone(),
        };
        let coded = AssetCoding::ALL.into_iter().filter_map(|coding| {
            // Writing to memory does not fail. If it failed, the uncompressed file would be sent.
            let encoded = coding.encode(&bytes).ok()?;
            let etag = format!("\"{hash}-{}\"", coding.name());
            (encoded.len() < bytes.len()).then(|| AssetVariant {
                coding: Some(coding),
                etag,
                bytes: encoded.into(),
            })
        });
        Self {
            name: format!("{stem}-{hash}.{extension}"),
            content_type,
            variants: std::iter::once(plain).chain(coded).collect(),
        }
    }

    fn style(stem: &str, bytes: impl Into<Bytes>) -> Self {
        Self::new(stem, "css", "text/css; charset=utf-8", bytes)
    }

    fn script(stem: &str, bytes: &'static [u8]) -> Self {
        Self::new(stem, "js", "text/javascript; charset=utf-8", bytes)
    }

    /// Returns the variant that the client prefers: the smallest of those with the highest quality.
    fn select(&self, accepted: &AcceptedCodings) -> Option<&AssetVariant> {
        self.variants.iter().min_by_key(|variant| {
            let quality = accepted.quality(variant.coding);
            (Reverse(quality), variant.bytes.len())
        })
    }
}

/// The codings of the header `Accept-Encoding` with their qualities, in thousandths.
struct AcceptedCodings(Vec<(String, u16)>);

impl AcceptedCodings {
    fn from_headers(headers: &HeaderMap) -> Self {
        let lists = headers.get_all(header::ACCEPT_ENCODING).iter();
        let items = lists
            .filter_map(|list| list.to_str().ok())
            .flat_map(|list| list.split(','))
            .map(|item| {
                let mut parts = item.split(';').map(str::trim);
                let name = parts.next().unwrap_or_default().to_ascii_lowercase();
                let quality = parts.find_map(|part| {
                    let (key, value) = part.split_once('=')?;
                    key.trim().eq_ignore_ascii_case("q").then(|| value.trim())
                });
                (name, quality.map_or(1_000, parse_quality))
            });
        Self(items.collect())
    }

    /// Returns the quality of a coding in thousandths; zero excludes the coding. If the header does
    /// not name the uncompressed file, it has the lowest quality above zero. If every variant is
    /// excluded, the uncompressed file is sent all the same.
    fn quality(&self, coding: Option<AssetCoding>) -> u16 {
        let quality_of = |wanted: &str| {
            let found = self.0.iter().find(|(name, _)| name == wanted);
            found.map(|(_, quality)| *quality)
        };
        match coding {
            Some(coding) => quality_of(coding.name())
                .or_else(|| quality_of("*"))
                .unwrap_or(0),
            None => quality_of("identity").unwrap_or(1).max(1),
        }
    }
}

/// Parses `0.85` as 850. An invalid quality counts as zero, so that the coding is not used.
fn parse_quality(text: &str) -> u16 {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_short = fraction.len() <= 3 && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let thousandths = format!("{fraction:0<3}").parse().ok().filter(|_| is_short);
    match (whole, thousandths) {
        ("1", Some(0)) => 1_000,
        ("0", Some(thousandths)) => thousandths,
        _ => 0,
    }
}

/// The vendored font of the pages, which `scripts/subset-font` creates. Its license is in
/// `inter-LICENSE` next to it.
pub static FONT: LazyLock<Asset> = LazyLock::new(|| {
    let bytes = include_bytes!("../../dashboard/static/vendor/inter-5.3.0.woff2");
    Asset::new("inter", "woff2", "font/woff2", &bytes[..])
});
pub static STYLE: LazyLock<Asset> = LazyLock::new(|| {
    let text = include_str!("../../dashboard/static/style.css");
    let text = text.replace("url(inter.woff2)", &format!("url({})", FONT.name));
    Asset::style("style", text.into_bytes())
});
pub static SCRIPT: LazyLock<Asset> =
    LazyLock::new(|| Asset::script("app", &include_bytes!("../../dashboard/static/app.js")[..]));
pub static MARK: LazyLock<Asset> = LazyLock::new(|| {
    let bytes = include_bytes!("../../dashboard/static/mark.svg");
    Asset::new("mark", "svg", "image/svg+xml", &bytes[..])
});
pub static CHART_SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    let bytes = include_bytes!("../../dashboard/static/charts.js");
    Asset::script("charts", &bytes[..])
});
pub static DOCS_SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    let bytes = include_bytes!("../../dashboard/static/docs.js");
    Asset::script("docs", &bytes[..])
});
pub static PLAYGROUND_SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    let bytes = include_bytes!("../../dashboard/static/playground.js");
    Asset::script("playground", &bytes[..])
});
pub static SPENDING_SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    let bytes = include_bytes!("../../dashboard/static/spending.js");
    Asset::script("spending", &bytes[..])
});
pub static AUDIT_SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    let bytes = include_bytes!("../../dashboard/static/audit.js");
    Asset::script("audit", &bytes[..])
});

/// Lists all static files. A new file needs a line here.
static ASSETS: [&LazyLock<Asset>; 9] = [
    &DOCS_SCRIPT,
    &FONT,
    &STYLE,
    &SCRIPT,
    &MARK,
    &CHART_SCRIPT,
    &PLAYGROUND_SCRIPT,
    &SPENDING_SCRIPT,
    &AUDIT_SCRIPT,
];

/// Lists the routes, which are all public.
pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new().route("/dashboard/static/{file}", get(asset))
}

async fn asset(Path(file): Path<String>, headers: HeaderMap) -> Result<Response, PageError> {
    let asset = ASSETS.into_iter().find(|asset| asset.name == file);
    respond(asset.ok_or(PageError::NotFound)?, &headers)
}

fn respond(asset: &Asset, headers: &HeaderMap) -> Result<Response, PageError> {
    let variant = asset
        .select(&AcceptedCodings::from_headers(headers))
        .ok_or(PageError::NotFound)?;
    let known = headers
        .get(header::IF_NONE_MATCH)
        .is_some_and(|etag| etag.as_bytes() == variant.etag.as_bytes());
    let mut response = if known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let content_type = [(header::CONTENT_TYPE, asset.content_type)];
        (content_type, variant.bytes.clone()).into_response()
    };
    let etag = HeaderValue::from_str(&variant.etag)
        .map_err(|error| PageError::Internal(error.to_string()))?;
    let forever = HeaderValue::from_static("public, max-age=31536000, immutable");
    let vary = HeaderValue::from_static("accept-encoding");
    let sent = response.headers_mut();
    sent.insert(header::ETAG, etag);
    sent.insert(header::CACHE_CONTROL, forever);
    sent.insert(header::VARY, vary);
    if let Some(coding) = variant.coding.filter(|_| !known) {
        let name = HeaderValue::from_static(coding.name());
        sent.insert(header::CONTENT_ENCODING, name);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn headers(pairs: &[(header::HeaderName, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().cloned();
        pairs
            .map(|(name, value)| (name, HeaderValue::from_static(value)))
            .collect()
    }

    fn coding_for(accept: &'static str) -> Option<AssetCoding> {
        let accepted =
            AcceptedCodings::from_headers(&headers(&[(header::ACCEPT_ENCODING, accept)]));
        SCRIPT.select(&accepted).unwrap().coding
    }

    #[test]
    fn a_client_gets_the_coding_that_it_prefers() {
        let (brotli, gzip) = (Some(AssetCoding::Brotli), Some(AssetCoding::Gzip));
        for (accept, expected) in [
            ("gzip, deflate, br, zstd", brotli),
            ("GZIP", gzip),
            ("br;q=0.5, gzip;q=0.8", gzip),
            ("br; Q=1.0 , gzip", brotli),
            ("*", brotli),
            ("*, br;q=0", gzip),
            ("identity, br;q=0.9", None),
            ("deflate", None),
            ("", None),
            // Quality 0 means: not this one.
            ("br;q=0, gzip;q=0.000", None),
            ("*;q=0", None),
            // What is not a quality is not one.
            ("br;q=x", None),
            ("br;q=1.5", None),
            ("br;q=0.9999", None),
            ("br;q=-1", None),
            // Nothing may be sent, so the file as it is must do.
            ("identity;q=0", None),
        ] {
            assert_eq!(coding_for(accept), expected, "{accept:?}");
        }
        let none = AcceptedCodings::from_headers(&HeaderMap::new());
        assert_eq!(SCRIPT.select(&none).unwrap().coding, None);
    }

    #[tokio::test]
    async fn every_file_has_the_same_contents_in_each_coding() {
        for asset in ASSETS {
            let plain = &asset.variants[0].bytes;
            // A font is compressed as it is.
            if asset.content_type.starts_with("font/") {
                assert_eq!(asset.variants.len(), 1, "{}", asset.name);
                continue;
            }
            assert_eq!(asset.variants.len(), 3, "{}", asset.name);
            for (accept, coding) in [("br", "br"), ("gzip", "gzip"), ("identity", "")] {
                let asked = headers(&[(header::ACCEPT_ENCODING, accept)]);
                let response = respond(asset, &asked).unwrap();
                let sent = response.headers().get(header::CONTENT_ENCODING);
                assert_eq!(sent.map_or("", |sent| sent.to_str().unwrap()), coding);
                assert_eq!(response.headers()[header::VARY], "accept-encoding");
                let etag = response.headers()[header::ETAG].clone();
                let body = axum::body::to_bytes(response.into_body(), 1 << 20).await;
                let body = body.unwrap();
                let mut decoded = Vec::new();
                match coding {
                    "br" => {
                        let mut decoder = brotli::Decompressor::new(&body[..], 4_096);
                        decoder.read_to_end(&mut decoded).unwrap();
                    }
                    "gzip" => {
                        let mut decoder = flate2::read::MultiGzDecoder::new(&body[..]);
                        decoder.read_to_end(&mut decoded).unwrap();
                    }
                    _ => decoded.extend_from_slice(&body),
                }
                assert_eq!(&decoded[..], &plain[..], "{} as {accept}", asset.name);
                // A cached copy in this coding is valid for those who ask for this coding only.
                let again = |accept| {
                    let mut asked = headers(&[(header::ACCEPT_ENCODING, accept)]);
                    asked.insert(header::IF_NONE_MATCH, etag.clone());
                    respond(asset, &asked).unwrap().status()
                };
                assert_eq!(again(accept), StatusCode::NOT_MODIFIED);
                let other = if coding == "br" { "gzip" } else { "br" };
                assert_eq!(again(other), StatusCode::OK);
            }
        }
    }

    #[test]
    fn the_script_of_the_playground_stays_small() {
        assert!(PLAYGROUND_SCRIPT.variants[0].bytes.len() <= 12 * 1_024);
    }

    #[test]
    fn the_font_stays_small_and_is_named_by_the_style() {
        assert!(FONT.variants[0].bytes.len() <= 40 * 1_024);
        let style = std::str::from_utf8(&STYLE.variants[0].bytes).unwrap();
        assert!(style.contains(&format!("url({})", FONT.name)));
    }
}
