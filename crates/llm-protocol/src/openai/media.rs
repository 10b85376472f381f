//! Reads images and files inside a request: data URLs, base64, and the media type that the first
//! bytes show.
//!
//! This file must not fetch a URL. It must decode only the first bytes of an image, and all of a
//! text file.
//!
//! Read next: `chat/read_request/parts.rs`.

use crate::ir::{FileContent, ImageDetail, ImageSource, Warnings};
use crate::json::{JsonStr, JsonValue};
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use std::borrow::Cow;
use std::fmt::Display;

const INVALID_IMAGE_DATA: &str = "Invalid base64 image data.";
const INVALID_FILE_DATA: &str = "Invalid base64 file data.";
const INVALID_IMAGE_URL: &str = "Image URLs must use https or a base64 data URL.";

/// The four media types that a model accepts as an image.
const IMAGE_TYPES: [&str; 4] = ["image/jpeg", "image/png", "image/gif", "image/webp"];

/// Number of base64 characters that identify a file type: they encode twelve bytes.
const HEAD_BASE64_CHARS: usize = 16;

/// Maximum number of characters of a media type that an error message repeats.
const MAX_MEDIA_TYPE_CHARS: usize = 64;

/// Reads the image of an `image_url`, or returns the reason why the URL contains no image.
pub(crate) fn parse_image_url<'a>(url: JsonStr<'a>) -> Result<ImageSource<'a>, String> {
    let whole = url.into_value();
    let Some(data_url) = DataUrl::parse(&whole) else {
        if has_scheme(&whole) {
            return Ok(ImageSource::Url(suffix_from(&whole, 0)));
        }
        return match sniff_image_type(&whole) {
            Some(media_type) if is_base64(&whole) => Ok(ImageSource::Base64 {
                media_type: JsonStr::from_value(media_type),
                data: suffix_from(&whole, 0),
            }),
            _ => Err(INVALID_IMAGE_URL.to_owned()),
        };
    };
    let data = whole.get(data_url.data_at..).unwrap_or_default();
    // The client only guesses the media type; the bytes are more reliable.
    let labelled = || {
        IMAGE_TYPES
            .into_iter()
            .find(|known| *known == canonical_image_type(&data_url.media_type))
    };
    let Some(media_type) = sniff_image_type(data)
        .filter(|_| data_url.is_base64)
        .or_else(labelled)
    else {
        return Err(format!(
            "Unsupported image type '{}'. Use JPEG, PNG, GIF or WebP.",
            data_url.media_type
        ));
    };
    if !data_url.is_base64 || !is_base64(data) {
        return Err(INVALID_IMAGE_DATA.to_owned());
    }
    Ok(ImageSource::Base64 {
        media_type: JsonStr::from_value(media_type),
        data: suffix_from(&whole, data_url.data_at),
    })
}

/// Reads the `detail` of the image in `holder`. Drops an unknown value with a warning.
pub(crate) fn image_detail(
    holder: JsonValue<'_>,
    path: impl Display,
    warnings: &mut Warnings,
) -> Option<ImageDetail> {
    let detail_value = holder
        .get("detail")
        .filter(|detail_value| !detail_value.is_null())?;
    let detail = detail_value
        .string()
        .and_then(|word| ImageDetail::parse(&word));
    if detail.is_none() {
        warnings.dropped(format_args!("{path}.detail"));
    }
    detail
}

/// Reads the content of a `file_data`, or returns the reason why it cannot be read. `name` is the
/// file name; its extension determines the type if the declared type is generic.
pub(crate) fn parse_file_data<'a>(
    file_data: JsonStr<'a>,
    name: Option<&JsonStr<'_>>,
) -> Result<FileContent<'a>, String> {
    let whole = file_data.into_value();
    let bare = DataUrl {
        media_type: "application/octet-stream".to_owned(),
        is_base64: true,
        data_at: 0,
    };
    let data_url = DataUrl::parse(&whole).unwrap_or(bare);
    let data = whole.get(data_url.data_at..).unwrap_or_default();
    if !data_url.is_base64 || !is_base64(data) {
        return Err(INVALID_FILE_DATA.to_owned());
    }
    let declared = data_url.media_type.as_str();
    let says_nothing = matches!(
        declared,
        "" | "application/octet-stream" | "binary/octet-stream"
    );
    let by_name = || name.and_then(|name| media_type_by_extension(&name.value()));
    let media_type = if says_nothing {
        by_name().unwrap_or(declared)
    } else {
        declared
    };
    if media_type == "application/pdf" || decode_head(data).starts_with(b"%PDF") {
        return Ok(FileContent::Pdf(suffix_from(&whole, data_url.data_at)));
    }
    if (media_type.starts_with("text/") || media_type == "application/json")
        && let Ok(text) = String::from_utf8(decode_base64(data))
    {
        return Ok(FileContent::Text(JsonStr::from_value(text)));
    }
    Err(format!(
        "Unsupported file type '{media_type}'. Use PDF or plain text."
    ))
}

/// Returns the media type of a file with this name, if the extension is known.
fn media_type_by_extension(name: &str) -> Option<&'static str> {
    const TEXT_EXTENSIONS: [&str; 32] = [
        "txt", "text", "md", "markdown", "rst", "csv", "tsv", "log", "json", "jsonl", "xml",
        "html", "htm", "css", "yaml", "yml", "toml", "ini", "sql", "sh", "py", "js", "ts", "jsx",
        "tsx", "java", "c", "h", "cpp", "go", "rs", "rb",
    ];
    let (_, ending) = name.trim().rsplit_once('.')?;
    let is = |known: &&str| known.eq_ignore_ascii_case(ending);
    if is(&"pdf") {
        return Some("application/pdf");
    }
    TEXT_EXTENSIONS.iter().any(is).then_some("text/plain")
}

/// A parsed data URL, such as `data:image/png;name=a.png;base64,…`.
struct DataUrl {
    media_type: String,
    is_base64: bool,
    data_at: usize,
}

impl DataUrl {
    fn parse(url: &str) -> Option<Self> {
        let scheme = url.get(..5)?;
        if !scheme.eq_ignore_ascii_case("data:") {
            return None;
        }
        let comma = memchr::memchr(b',', url.as_bytes()).unwrap_or(url.len());
        let mut parameters = url.get(5..comma)?.split(';');
        let media_type = parameters.next().unwrap_or_default().trim();
        let media_type: String = media_type.chars().take(MAX_MEDIA_TYPE_CHARS).collect();
        let is_base64 = parameters
            .next_back()
            .is_some_and(|last| last.trim().eq_ignore_ascii_case("base64"));
        Some(DataUrl {
            media_type: media_type.to_ascii_lowercase(),
            is_base64,
            data_at: url.len().min(comma + 1),
        })
    }
}

fn has_scheme(url: &str) -> bool {
    let name = url
        .bytes()
        .take_while(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte))
        .count();
    name > 0 && url.as_bytes().get(name) == Some(&b':')
}

/// Maps an alias of an image type to its registered name.
fn canonical_image_type(media_type: &str) -> &str {
    match media_type {
        "image/jpg" | "image/jpe" | "image/pjpeg" | "image/jfif" => "image/jpeg",
        other => other,
    }
}

/// Detects the image type from the first bytes of the base64 data.
fn sniff_image_type(base64: &str) -> Option<&'static str> {
    let head = decode_head(base64);
    if head.starts_with(b"\xff\xd8\xff") {
        Some("image/jpeg")
    } else if head.starts_with(b"\x89PNG\r\n\x1a\n") {
        Some("image/png")
    } else if head.starts_with(b"GIF87a") || head.starts_with(b"GIF89a") {
        Some("image/gif")
    } else if head.starts_with(b"RIFF") && head.ends_with(b"WEBP") {
        Some("image/webp")
    } else {
        None
    }
}

fn decode_head(base64: &str) -> Vec<u8> {
    decode_base64(
        base64
            .get(..HEAD_BASE64_CHARS.min(base64.len()))
            .unwrap_or_default(),
    )
}

/// Returns whether the text is padded base64 in complete groups. The data is not decoded, because
/// bodies contain megabytes of it.
fn is_base64(text: &str) -> bool {
    let letters = text.as_bytes();
    let unpadded = letters
        .strip_suffix(b"==")
        .or(letters.strip_suffix(b"="))
        .unwrap_or(letters);
    !unpadded.is_empty()
        && letters.len().is_multiple_of(4)
        && unpadded.chunks(4096).all(|chunk| {
            chunk
                .iter()
                .fold(true, |all, letter| all & is_base64_char(*letter))
        })
}

fn is_base64_char(letter: u8) -> bool {
    // The expression has no branches, so that the compiler can check many characters at once.
    letter.is_ascii_uppercase()
        | letter.is_ascii_lowercase()
        | letter.is_ascii_digit()
        | (letter == b'+')
        | (letter == b'/')
}

/// Decodes base64. All other bytes, and incomplete bytes at the end, are skipped.
fn decode_base64(base64: &str) -> Vec<u8> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_allow_trailing_bits(true)
            .with_decode_padding_mode(DecodePaddingMode::RequireNone),
    );
    let mut letters: Vec<u8> = base64
        .bytes()
        .filter(|letter| is_base64_char(*letter))
        .collect();
    if letters.len() % 4 == 1 {
        letters.pop();
    }
    LENIENT.decode(letters).unwrap_or_default()
}

/// Returns the rest of a string from byte `at`. The result borrows from the request body if the
/// string does.
fn suffix_from<'a>(whole: &Cow<'a, str>, at: usize) -> JsonStr<'a> {
    match whole {
        Cow::Borrowed(text) => JsonStr::from_token(text.get(at..).unwrap_or_default(), false),
        Cow::Owned(text) => JsonStr::from_value(text.get(at..).unwrap_or_default().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

    fn media_type(url: &str) -> Result<String, String> {
        match parse_image_url(JsonStr::from_value(url))? {
            ImageSource::Base64 { media_type, .. } => Ok(media_type.value().into_owned()),
            ImageSource::Url(url) => Ok(url.value().into_owned()),
        }
    }

    #[test]
    fn the_bytes_of_an_image_know_better_than_its_label() {
        let labelled = |label: &str| media_type(&format!("data:{label};base64,{PNG}"));
        for label in [
            "image/png",
            "image/jpeg",
            "IMAGE/JPG",
            "application/octet-stream",
            "",
            "image/svg+xml;charset=x",
        ] {
            assert_eq!(labelled(label).as_deref(), Ok("image/png"), "{label}");
        }
        assert_eq!(media_type(PNG).as_deref(), Ok("image/png"));
        assert_eq!(
            media_type("data:image/jpg;base64,AAAA").as_deref(),
            Ok("image/jpeg")
        );
        assert_eq!(
            media_type("data:image/jpeg;base64,/9j/4AAQSkZJRg==").as_deref(),
            Ok("image/jpeg")
        );
        assert_eq!(
            media_type("data:;base64,R0lGODlhAQABAAAAACw=").as_deref(),
            Ok("image/gif")
        );
        assert_eq!(
            media_type("data:;base64,UklGRhIAAABXRUJQVlA4").as_deref(),
            Ok("image/webp")
        );
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let unsupported = "Unsupported image type 'image/svg+xml'. Use JPEG, PNG, GIF or WebP.";
        for (url, expected) in [
            ("data:image/svg+xml;utf8,<svg/>", unsupported),
            ("data:image/svg+xml;base64,PHN2Zy8+", unsupported),
            ("data:image/png;base64,iVBORw0KGgo*", INVALID_IMAGE_DATA),
            ("data:image/png;base64,iVBORw0KGgo", INVALID_IMAGE_DATA),
            ("data:image/png;base64,", INVALID_IMAGE_DATA),
            ("data:image/png", INVALID_IMAGE_DATA),
            ("data:image/png,abcd", INVALID_IMAGE_DATA),
            ("PHN2Zy8+", INVALID_IMAGE_URL),
            ("", INVALID_IMAGE_URL),
            ("/tmp/a.png", INVALID_IMAGE_URL),
        ] {
            assert_eq!(media_type(url), Err(expected.to_owned()), "{url}");
        }
    }

    #[test]
    fn files_are_pdf_or_text() {
        let read = |data: &str| parse_file_data(JsonStr::from_value(data.to_owned()), None);
        let pdf = read("data:application/pdf;base64,JVBERi0xLjQK");
        assert!(matches!(pdf, Ok(FileContent::Pdf(data)) if data.is("JVBERi0xLjQK")));
        for bare in ["JVBERi0xLjQKJcOkw7zD", "JVBERi0="] {
            assert!(matches!(read(bare), Ok(FileContent::Pdf(_))));
        }
        for label in ["text/csv;charset=utf-8", "application/json", "text/plain"] {
            let text = read(&format!("data:{label};base64,YSxiCjEsw6kK"));
            assert!(
                matches!(text, Ok(FileContent::Text(text)) if text.is("a,b\n1,é\n")),
                "{label}"
            );
        }
        for (data, expected) in [
            (
                "data:text/plain;base64,/////w==",
                "Unsupported file type 'text/plain'. Use PDF or plain text.",
            ),
            (
                "UEsDBBQABgAIAAAAIQA=",
                "Unsupported file type 'application/octet-stream'. Use PDF or plain text.",
            ),
            ("data:text/plain,hello", INVALID_FILE_DATA),
        ] {
            assert_eq!(read(data).unwrap_err(), expected);
        }
    }

    #[test]
    fn a_file_s_name_tells_its_type_where_the_declared_type_says_nothing() {
        let read = |data: &str, name: &str| {
            parse_file_data(
                JsonStr::from_value(data.to_owned()),
                Some(&JsonStr::from_value(name.to_owned())),
            )
        };
        for declared in [
            "",
            "data:application/octet-stream;base64,",
            "data:;base64,",
            "data:binary/octet-stream;base64,",
        ] {
            // The data does not begin with the signature of any format.
            let pdf = read(&format!("{declared}AAECAw=="), "report.pdf");
            assert!(
                matches!(pdf, Ok(FileContent::Pdf(data)) if data.is("AAECAw==")),
                "{declared}"
            );
            for name in ["a.csv", "A.CSV", "notes.tar.md ", "x.rs"] {
                let text = read(&format!("{declared}YSxi"), name);
                assert!(
                    matches!(text, Ok(FileContent::Text(text)) if text.is("a,b")),
                    "{declared} {name}"
                );
            }
            for name in ["a.docx", "pdf", "a.", "", "csv"] {
                assert!(
                    read(&format!("{declared}YSxi"), name).is_err(),
                    "{declared} {name}"
                );
            }
            assert!(
                read(&format!("{declared}/////w=="), "a.txt").is_err(),
                "what is no text stays none"
            );
        }
        // A specific declared type wins over the extension.
        assert!(read("data:application/zip;base64,YSxi", "a.csv").is_err());
        assert!(matches!(
            read("data:text/plain;base64,YSxi", "a.pdf"),
            Ok(FileContent::Text(_))
        ));
        assert!(
            matches!(
                read("data:;base64,JVBERi0=", "a.txt"),
                Ok(FileContent::Pdf(_))
            ),
            "its first bytes show it"
        );
    }

    #[test]
    fn base64_is_unpacked() {
        for (packed, expected) in [
            ("", ""),
            ("YQ==", "a"),
            ("YWI=", "ab"),
            ("YWJj", "abc"),
            ("YWJjZA==", "abcd"),
        ] {
            assert_eq!(decode_base64(packed), expected.as_bytes());
        }
    }
}
