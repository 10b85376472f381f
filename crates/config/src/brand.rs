//! Validates the section `brand`: the product's name, logo and accent colour on pages and in mails.
//!
//! A logo is served from the gateway's own address, so a script in it could act in the name of the
//! user who opens it. An SVG file may therefore contain only elements that draw, and refer only to
//! its own parts. This file must not depend on a page.

use super::raw;
use super::source::{FileChecks, SourceFile};
use super::validator::ConfigValidator;
use base::readable_name::is_readable;
use base::regular_file::open_regular;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

/// Maximum length of `brand.name`, in characters.
const MAX_NAME_CHARS: usize = 40;

/// Maximum size of a logo in bytes. It is small because every page loads the logo.
const MAX_LOGO_BYTES: usize = 32_768;

/// First bytes of each PNG file.
const PNG_SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Namespace of SVG. Browsers do not draw a file whose root element has another one or none.
const SVG_NAMESPACE: &str = "http://www.w3.org/2000/svg";

/// Elements of an SVG file that only draw.
const DRAWING_ELEMENTS: &[&str] = &[
    "circle",
    "clipPath",
    "defs",
    "desc",
    "ellipse",
    "g",
    "line",
    "linearGradient",
    "mask",
    "path",
    "pattern",
    "polygon",
    "polyline",
    "radialGradient",
    "rect",
    "stop",
    "svg",
    "symbol",
    "text",
    "title",
    "tspan",
    "use",
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrandSettings {
    /// Name as the file has it. Pages must escape it.
    pub name: String,
    /// Logo file. `None` selects the built-in logo.
    pub logo: Option<BrandLogo>,
    /// Red, green and blue. `None` selects the built-in colour.
    pub accent: Option<[u8; 3]>,
}

impl Default for BrandSettings {
    fn default() -> Self {
        Self {
            name: raw::brand_name(),
            logo: None,
            accent: None,
        }
    }
}

/// A logo file that passed the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrandLogo {
    pub kind: LogoKind,
    pub bytes: Arc<[u8]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogoKind {
    Svg,
    Png,
}

impl LogoKind {
    pub fn extension(self) -> &'static str {
        match self {
            Self::Svg => "svg",
            Self::Png => "png",
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::Svg => "image/svg+xml",
            Self::Png => "image/png",
        }
    }
}

impl ConfigValidator {
    pub(super) fn brand(&mut self, section: &raw::Brand) -> BrandSettings {
        let name = section.name.trim();
        let length = name.chars().count();
        if !(1..=MAX_NAME_CHARS).contains(&length) {
            let says = format!("must have 1 to {MAX_NAME_CHARS} characters, not {length}");
            self.add_fault("brand.name", says);
        }
        if !is_readable(name) {
            let says = "must be one line, without control characters and invisible ones, such as \
                        U+202E, which turns the text after it around";
            self.add_fault("brand.name", says);
        }
        let accent = section.accent.as_deref().and_then(|text| {
            let colour = parse_colour(text);
            if colour.is_none() {
                let says = format!("must be a colour such as \"#3b5bdb\", not {text:?}");
                self.add_fault("brand.accent", says);
            }
            colour
        });
        let logo = section.logo.as_deref().and_then(|file| self.logo(file));
        BrandSettings {
            name: name.to_owned(),
            logo,
            accent,
        }
    }

    fn logo(&mut self, file: &str) -> Option<BrandLogo> {
        // Commands show no page, so they do not read the logo.
        if !matches!(self.file_checks, FileChecks::Edge | FileChecks::Sidecar) {
            return None;
        }
        self.sources.push(SourceFile::from_path(Path::new(file)));
        match read_logo(Path::new(file)) {
            Ok(logo) => Some(logo),
            Err(fault) => {
                self.add_fault("brand.logo", fault);
                None
            }
        }
    }
}

/// Parses a colour of the form `#rrggbb`.
fn parse_colour(text: &str) -> Option<[u8; 3]> {
    let digits = text.strip_prefix('#').filter(|digits| digits.len() == 6)?;
    let channel = |at: usize| {
        let digits = digits.get(at..at + 2)?;
        u8::from_str_radix(digits, 16)
            .ok()
            .filter(|_| !digits.starts_with('+'))
    };
    Some([channel(0)?, channel(2)?, channel(4)?])
}

/// Reads the start of a file: at most one byte more than the maximum size of a logo.
fn read_start(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(file)?
        .take(MAX_LOGO_BYTES as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn read_logo(file: &Path) -> Result<BrandLogo, String> {
    let shown = file.display();
    let bytes =
        read_start(file).map_err(|error| format!("cannot read the logo {shown}: {error}"))?;
    if bytes.len() > MAX_LOGO_BYTES {
        return Err(format!(
            "the logo {shown} is larger than {MAX_LOGO_BYTES} bytes: every page loads it, so make it smaller"
        ));
    }
    if bytes.starts_with(PNG_SIGNATURE) {
        return Ok(BrandLogo {
            kind: LogoKind::Png,
            bytes: bytes.into(),
        });
    }
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| format!("the logo {shown} is neither an SVG nor a PNG file"))?;
    check_svg(text).map_err(|fault| format!("the logo {shown} {fault}"))?;
    Ok(BrandLogo {
        kind: LogoKind::Svg,
        bytes: bytes.into(),
    })
}

/// Checks that an SVG file only draws. The file must not have document types or entities.
fn check_svg(text: &str) -> Result<(), String> {
    let mut rest = text.trim_start_matches('\u{feff}').trim_start();
    let mut root = None;
    while let Some(start) = rest.find('<') {
        rest = rest.get(start..).unwrap_or_default();
        let end_mark = if rest.starts_with("<!--") {
            "-->"
        } else if rest.starts_with("<?xml ") {
            "?>"
        } else if rest.starts_with("</") {
            ">"
        } else {
            let element = check_element(rest)?;
            rest = element.after;
            let root = root.get_or_insert(element);
            if root.name != "svg" {
                break;
            }
            continue;
        };
        let end = rest
            .find(end_mark)
            .ok_or_else(|| "has a tag without an end".to_owned())?;
        rest = rest.get(end + end_mark.len()..).unwrap_or_default();
    }
    let root = root.filter(|root| root.name == "svg");
    let root = root.ok_or_else(|| "is neither an SVG nor a PNG file".to_owned())?;
    if root.namespace != Some(SVG_NAMESPACE) {
        return Err(format!(
            "lacks xmlns=\"{SVG_NAMESPACE}\" in its element <svg>: browsers do not draw it without that"
        ));
    }
    Ok(())
}

/// An element's tag that passed the checks.
struct CheckedElement<'t> {
    name: &'t str,
    namespace: Option<&'t str>,
    /// The text after the tag.
    after: &'t str,
}

/// Checks the element whose tag is at the start of `text`.
fn check_element(text: &str) -> Result<CheckedElement<'_>, String> {
    let broken = || "has a tag that cannot be read".to_owned();
    let inside = text.strip_prefix('<').ok_or_else(broken)?;
    let (name, mut rest) = split_name(inside);
    if !DRAWING_ELEMENTS.contains(&name) {
        let what = match inside.chars().next() {
            Some('!') => "the declaration",
            Some('?') => "the processing instruction",
            _ if name.is_empty() => return Err(broken()),
            _ => "the element",
        };
        let end = inside.find(|letter: char| letter.is_whitespace() || letter == '>');
        let found = match name {
            "" => inside
                .get(..end.unwrap_or(inside.len()))
                .unwrap_or_default(),
            name => name,
        };
        return Err(format!(
            "contains {what} <{found}>: only elements that draw are allowed, no scripts, styles, \
             images, animations or document types"
        ));
    }
    let mut namespace = None;
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix("/>").or_else(|| rest.strip_prefix('>')) {
            return Ok(CheckedElement {
                name,
                namespace,
                after,
            });
        }
        let (attribute, after) = split_name(rest);
        let value = after.trim_start().strip_prefix('=').map(str::trim_start);
        let value = value.ok_or_else(broken)?;
        let quote = value.chars().next().filter(|one| ['"', '\''].contains(one));
        let quote = quote.ok_or_else(broken)?;
        let (value, after) = value
            .get(1..)
            .and_then(|value| value.split_once(quote))
            .ok_or_else(broken)?;
        check_attribute(attribute, value)?;
        if attribute == "xmlns" {
            namespace = Some(value);
        }
        rest = after;
    }
}

fn split_name(text: &str) -> (&str, &str) {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "-_:.".contains(letter);
    let end = text.find(|letter| !is_name(letter)).unwrap_or(text.len());
    text.split_at(end)
}

fn check_attribute(name: &str, value: &str) -> Result<(), String> {
    let name = name.to_ascii_lowercase();
    if name.is_empty() {
        return Err("has a tag that cannot be read".to_owned());
    }
    if name.starts_with("on") {
        return Err(format!("contains the event handler `{name}`: remove it"));
    }
    let refers_outside = match name.as_str() {
        "href" | "xlink:href" | "src" => !value.starts_with('#'),
        // The value is the name of an XML namespace, from which nothing is loaded.
        _ if name == "xmlns" || name.starts_with("xmlns:") => false,
        // An escape could hide an address.
        _ => {
            let value = value.to_ascii_lowercase();
            let urls = value.matches("url(").count();
            let own = value.matches("url(#").count();
            urls != own || value.contains("//") || value.contains('\\') || value.contains('&')
        }
    };
    if refers_outside {
        return Err(format!(
            "refers to something outside of the file in `{name}`: only references to its own parts, \
             such as \"#a\", are allowed"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "<?xml version=\"1.0\"?>\n<!-- ours -->\n<svg xmlns=\"http://www.w3.org/2000/svg\" \
        viewBox='0 0 32 32'><defs><linearGradient id=\"a\"><stop offset='0' stop-color='#fff'/>\
        </linearGradient></defs><g fill=\"url(#a)\"><path d=\"M1 2z\"/><use href=\"#b\"/></g><title>A > B</title></svg>";

    #[test]
    fn an_svg_logo_may_only_draw() {
        assert_eq!(check_svg(GOOD), Ok(()));
        for (bad, says) in [
            ("<svg><script>alert(1)</script></svg>", "<script>"),
            ("<svg><SCRIPT/></svg>", "<SCRIPT>"),
            ("<svg><style>a{}</style></svg>", "<style>"),
            ("<svg><foreignObject/></svg>", "<foreignObject>"),
            ("<svg><image href='#a'/></svg>", "<image>"),
            ("<svg><animate/></svg>", "<animate>"),
            ("<svg><a href='#a'/></svg>", "<a>"),
            ("<!DOCTYPE svg><svg/>", "the declaration <!DOCTYPE>"),
            ("<svg><![CDATA[x]]></svg>", "<![CDATA[x]]>"),
            (
                "<?xml-stylesheet href='a'?><svg/>",
                "the processing instruction <?xml-stylesheet>",
            ),
            ("< svg/>", "cannot be read"),
            ("<svg/>", "lacks xmlns="),
            (
                "<svg xmlns='http://www.w3.org/1999/xhtml'/>",
                "lacks xmlns=",
            ),
            ("<svg onload='alert(1)'/>", "event handler `onload`"),
            ("<svg OnLoad = \"x\"/>", "event handler `onload`"),
            ("<svg><g/onclick='x'/></svg>", "cannot be read"),
            ("<svg><use href='https://a.example/x#y'/></svg>", "`href`"),
            ("<svg><use xlink:href=' #a'/></svg>", "`xlink:href`"),
            ("<svg><use href='&#106;avascript:x'/></svg>", "`href`"),
            ("<svg fill='url(https://a.example)'/>", "`fill`"),
            ("<svg style='background:URL(//a)'/>", "`style`"),
            ("<svg style='background:u\\72l(//a)'/>", "`style`"),
            ("<svg style='background:&#117;rl(x)'/>", "`style`"),
            ("<svg a=b/>", "cannot be read"),
            ("<svg a='b", "cannot be read"),
            ("<svg", "cannot be read"),
            ("<svg><!-- ", "without an end"),
            ("<html/>", "<html>"),
            ("<g/>", "neither"),
            ("text", "neither"),
            ("", "neither"),
        ] {
            let fault = check_svg(bad).unwrap_err();
            assert!(fault.contains(says), "{bad}: {fault}");
        }
    }

    #[test]
    fn a_logo_is_a_file_of_limited_size() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("logo");
        let read = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            read_logo(&file)
        };
        let png = read(b"\x89PNG\r\n\x1a\n0").unwrap();
        assert_eq!(png.kind.content_type(), "image/png");
        let padded = |size: usize| format!("{GOOD:<size$}");
        let svg = read(padded(MAX_LOGO_BYTES).as_bytes()).unwrap();
        assert_eq!(svg.kind, LogoKind::Svg);
        let fault = read(padded(MAX_LOGO_BYTES + 1).as_bytes()).unwrap_err();
        assert!(fault.contains("32768"), "{fault}");
        assert!(read(b"\xff\xd8").unwrap_err().contains("neither"));
        let none = read_logo(&folder.path().join("none")).unwrap_err();
        assert!(none.contains("cannot read the logo"), "{none}");
    }

    #[test]
    fn a_colour_has_six_digits() {
        assert_eq!(parse_colour("#3B5bdb"), Some([0x3b, 0x5b, 0xdb]));
        for bad in [
            "3b5bdb", "#fff", "#3b5bdg", "#+b5bdb", "#3b5bdb0", "red", "#ééé",
        ] {
            assert_eq!(parse_colour(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_brand_has_a_name_of_limited_length() {
        let with = |name: &str| {
            let name = serde_json::to_string(name).unwrap();
            let brand = format!("brand: {{name: {name}}}\n");
            crate::parse(&(brand + include_str!("../../../conf/local.yaml")), &|_| {
                None
            })
        };
        assert_eq!(with("Acme <b>").unwrap().brand.name, "Acme <b>");
        assert!(with(&"é".repeat(40)).is_ok());
        for bad in [
            "",
            " ",
            "a\nb",
            "Acme\u{202e}emcA",
            "Ac\u{200b}me",
            &"é".repeat(41),
        ] {
            let error = format!("{:?}", with(bad).unwrap_err());
            assert!(error.contains("brand.name"), "{error}");
        }
        let accent = "brand: {accent: blue}\n".to_owned();
        let error = crate::parse(
            &(accent + include_str!("../../../conf/local.yaml")),
            &|_| None,
        );
        assert!(format!("{:?}", error.unwrap_err()).contains("brand.accent"));
    }
}
