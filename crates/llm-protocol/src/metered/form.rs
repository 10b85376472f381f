//! Splits a form (`multipart/form-data`, RFC 7578) into its parts, without copying them.
//!
//! It must not know what a part means.

use crate::failure::{Failure, Kind};
use crate::json::Span;

/// Maximum number of parts.
const MAX_PARTS: usize = 64;
/// Maximum size of a part's header, in bytes.
const MAX_PART_HEADER_BYTES: usize = 8_192;
/// Maximum length of a boundary in bytes. Source: RFC 2046, section 5.1.1.
const MAX_BOUNDARY_BYTES: usize = 70;

/// One part of a form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FormPart {
    pub(super) name: String,
    pub(super) is_file: bool,
    /// Where its value is in the body.
    pub(super) value: Span,
}

/// Splits a body.
///
/// # Errors
/// Returns 400 for a content type that is no form, for a body that does not keep to its boundary,
/// and for parts that are encoded or contain parts.
pub(super) fn split(content_type: Option<&str>, body: &[u8]) -> Result<Vec<FormPart>, Failure> {
    let boundary = boundary(content_type.unwrap_or_default())?;
    let delimiter = format!("\r\n--{boundary}");
    let finder = memchr::memmem::Finder::new(delimiter.as_bytes());
    // The first delimiter may begin the body.
    let opening = delimiter.get(2..).unwrap_or_default().as_bytes();
    let mut at = match body.starts_with(opening) {
        true => opening.len(),
        false => {
            let found = finder.find(body);
            found.ok_or_else(|| broken("no part begins"))? + delimiter.len()
        }
    };
    let mut parts = Vec::new();
    loop {
        let rest = body.get(at..).unwrap_or_default();
        if rest.starts_with(b"--") {
            return Ok(parts);
        }
        // Blanks may follow the boundary.
        let blanks = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t'));
        let blanks = blanks.count();
        if !rest.get(blanks..).unwrap_or_default().starts_with(b"\r\n") {
            return Err(broken("a boundary is not followed by a line end"));
        }
        if parts.len() == MAX_PARTS {
            let message = format!("The form has more than {MAX_PARTS} parts.");
            return Err(Failure::new(Kind::InvalidRequest, message));
        }
        let start = at + blanks + 2;
        let (mut name, mut is_file, mut line) = (None, false, start);
        loop {
            let text = body.get(line..).unwrap_or_default();
            let length = memchr::memmem::find(text, b"\r\n");
            let length = length.ok_or_else(|| broken("the header of a part does not end"))?;
            if line + length - start > MAX_PART_HEADER_BYTES {
                let message = format!(
                    "The header of a part of the form is larger than {MAX_PART_HEADER_BYTES} bytes."
                );
                return Err(Failure::new(Kind::InvalidRequest, message));
            }
            let field = text.get(..length).unwrap_or_default();
            line += length + 2;
            if field.is_empty() {
                break;
            }
            read_field(field, &mut name, &mut is_file)?;
        }
        let name = name.ok_or_else(|| broken("a part has no name"))?;
        // The delimiter may follow the header at once: its line end is then that of the header.
        let from = line.saturating_sub(2);
        let end = next_delimiter(&finder, body, from, delimiter.len())?;
        parts.push(FormPart {
            name,
            is_file,
            value: Span {
                start: line.min(end),
                end,
            },
        });
        at = end + delimiter.len();
    }
}

/// Returns where the next delimiter begins. What only begins like one is content.
fn next_delimiter(
    finder: &memchr::memmem::Finder<'_>,
    body: &[u8],
    mut from: usize,
    length: usize,
) -> Result<usize, Failure> {
    loop {
        let found = finder.find(body.get(from..).unwrap_or_default());
        let at = from + found.ok_or_else(|| broken("a part does not end"))?;
        let after = body.get(at + length..).unwrap_or_default();
        if matches!(
            after,
            [b'-', b'-', ..] | [b'\r', b'\n', ..] | [b' ' | b'\t', ..]
        ) {
            return Ok(at);
        }
        from = at + length;
    }
}

/// Reads one field of a part's header.
fn read_field(field: &[u8], name: &mut Option<String>, is_file: &mut bool) -> Result<(), Failure> {
    let field = std::str::from_utf8(field).map_err(|_| broken("a header is not UTF-8"))?;
    let (key, value) = field
        .split_once(':')
        .ok_or_else(|| broken("a header has no colon"))?;
    let value = value.trim();
    match key.trim().to_ascii_lowercase().as_str() {
        "content-disposition" => {
            *name = parameter(value, "name");
            *is_file =
                parameter(value, "filename").is_some() || parameter(value, "filename*").is_some();
        }
        "content-transfer-encoding"
            if !["binary", "8bit", "7bit"].contains(&value.to_ascii_lowercase().as_str()) =>
        {
            return Err(Failure::new(
                Kind::InvalidRequest,
                "Parts of a form with a content-transfer-encoding are not supported.",
            ));
        }
        "content-type" if value.to_ascii_lowercase().starts_with("multipart/") => {
            return Err(Failure::new(
                Kind::InvalidRequest,
                "Parts of a form that contain parts are not supported.",
            ));
        }
        _ => {}
    }
    Ok(())
}

/// Returns the boundary of a content type.
fn boundary(content_type: &str) -> Result<String, Failure> {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("multipart/form-data") {
        return Err(Failure::new(
            Kind::InvalidRequest,
            "This endpoint takes a form: send the content type multipart/form-data.",
        ));
    }
    let boundary = parameter(content_type, "boundary");
    let is_good = |boundary: &String| (1..=MAX_BOUNDARY_BYTES).contains(&boundary.len());
    boundary
        .filter(is_good)
        .ok_or_else(|| broken("its content type has no boundary of 1 to 70 characters"))
}

/// Returns a parameter of a header's value: a word, or a quoted text with escapes.
fn parameter(value: &str, wanted: &str) -> Option<String> {
    let mut rest = value.split_once(';')?.1;
    loop {
        let (name, after) = rest.split_once('=')?;
        let after = after.trim_start();
        let (text, next) = match after.strip_prefix('"') {
            Some(quoted) => quoted_text(quoted)?,
            None => {
                let (word, next) = after.split_once(';').unwrap_or((after, ""));
                (word.trim().to_owned(), next)
            }
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(text);
        }
        rest = next.trim_start().trim_start_matches(';');
    }
}

/// Reads a quoted text without its opening quote. Returns the text, and what follows it.
fn quoted_text(quoted: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((text, quoted.get(at + 1..)?)),
            // A browser writes a quote as %22; only a quote and a backslash are escaped with one,
            // since a path of Windows has others.
            '\\' => match characters.clone().next() {
                Some((_, escaped @ ('"' | '\\'))) => {
                    text.push(escaped);
                    characters.next();
                }
                _ => text.push('\\'),
            },
            _ => text.push(character),
        }
    }
    None
}

fn broken(why: &str) -> Failure {
    Failure::new(
        Kind::InvalidRequest,
        format!("The form cannot be read: {why}."),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &str = "multipart/form-data; boundary=\"a b\"";

    fn values(body: &str) -> Result<Vec<(String, bool, String)>, String> {
        let parts = split(Some(TYPE), body.as_bytes()).map_err(|failure| failure.message)?;
        let value = |part: FormPart| {
            let value = body[part.value.start..part.value.end].to_owned();
            (part.name, part.is_file, value)
        };
        Ok(parts.into_iter().map(value).collect())
    }

    fn part(head: &str, value: &str) -> String {
        format!("--a b\r\ncontent-disposition: form-data; {head}\r\n\r\n{value}\r\n")
    }

    #[test]
    fn parts_are_split_at_whole_delimiters_only() {
        let audio = "x\r\n--a bc\r\n--a\r\n\r\n--a b!";
        let body = format!(
            "before\r\n{}{}{}--a b--\r\nafter",
            part("name=\"file\"; filename=\"a\\\"; name=\\\"b.wav\"", audio),
            part("name=model", ""),
            part("name=\"prompt\"", "two\r\nlines"),
        );
        let own = |name: &str, is_file, value: &str| (name.to_owned(), is_file, value.to_owned());
        assert_eq!(
            values(&body).unwrap(),
            [
                own("file", true, audio),
                own("model", false, ""),
                own("prompt", false, "two\r\nlines")
            ]
        );
    }

    #[test]
    fn a_form_that_cannot_be_read_is_refused_wherever_it_is_cut() {
        let body =
            part("name=\"model\"", "m") + &part("name=\"file\"; filename=\"f\"", "x") + "--a b--";
        assert_eq!(values(&body).unwrap().len(), 2);
        for cut in 0..body.len() - 1 {
            assert!(values(&body[..cut]).is_err(), "{cut}");
        }
        let most = part("name=p", "").repeat(64);
        assert_eq!(values(&format!("{most}--a b--")).unwrap().len(), 64);
        assert!(values(&format!("{most}{}--a b--", part("name=p", ""))).is_err());
        for (head, words) in [
            ("x=y", "no name"),
            (
                "name=p\r\ncontent-transfer-encoding: base64",
                "content-transfer-encoding",
            ),
            (
                "name=p\r\nContent-Type: multipart/mixed; boundary=b",
                "contain parts",
            ),
            ("name=p\r\nno colon", "no colon"),
        ] {
            let why = values(&format!("{}--a b--", part(head, ""))).unwrap_err();
            assert!(why.contains(words), "{head}: {why}");
        }
        for kind in [
            "application/json",
            "multipart/form-data",
            "multipart/form-data; boundary=",
        ] {
            assert!(split(Some(kind), body.as_bytes()).is_err(), "{kind}");
        }
    }
}
