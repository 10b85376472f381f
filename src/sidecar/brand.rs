//! Provides the product's name, logo and accent colour for pages, and serves the brand's files.
//!
//! The built-in accent is in `style.css`. A configured accent is a separate style, in shades that
//! are legible on every surface of the design. This file must not depend on a page.

use super::assets::{MARK, short_hash};
use super::error::PageError;
use super::state::SidecarState;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use config::BrandSettings;
use std::sync::Arc;

/// The mark's colour in its file; a configured accent replaces it.
const MARK_COLOUR: &str = "#3b5bdb";
const MARK_SOURCE: &str = include_str!("../../dashboard/static/mark.svg");

/// Minimum contrast of text (WCAG 2.2, AA).
const MIN_CONTRAST: f64 = 4.5;

const WHITE: Rgb = Rgb([0xff; 3]);
/// The darkest light surface, as `--sunk` in `style.css`. The next constant is the lightest dark
/// surface, `--hover`.
const LIGHT_SURFACE: Rgb = Rgb([0xf3, 0xf5, 0xf8]);
const DARK_SURFACE: Rgb = Rgb([0x1b, 0x20, 0x27]);
const DARK_CARD: Rgb = Rgb([0x15, 0x19, 0x1f]);
const DARK_INK: Rgb = Rgb([0x0b, 0x0e, 0x14]);

/// The parts of the brand that the frame of a page shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageBrand {
    pub name: String,
    /// Address of the logo, which is also the icon of the browser tab.
    pub logo: String,
    /// Address of the style with the configured accent; `None` for the built-in accent.
    pub style: Option<String>,
}

impl PageBrand {
    pub fn new(settings: &BrandSettings) -> Self {
        let address = |file: &BrandFile| format!("/dashboard/brand/{}", file.name);
        Self {
            name: settings.name.clone(),
            logo: logo(settings).map_or_else(
                || format!("/dashboard/static/{}", MARK.name),
                |file| address(&file),
            ),
            style: style(settings).as_ref().map(address),
        }
    }
}

/// A file that depends on the settings. Its name contains a hash of its contents.
struct BrandFile {
    name: String,
    content_type: &'static str,
    bytes: Vec<u8>,
}

impl BrandFile {
    fn new(stem: &str, extension: &str, content_type: &'static str, bytes: Vec<u8>) -> Self {
        let hash = short_hash(&bytes);
        Self {
            name: format!("{stem}-{hash}.{extension}"),
            content_type,
            bytes,
        }
    }
}

/// Returns the configured logo, or the built-in one in the configured accent.
fn logo(settings: &BrandSettings) -> Option<BrandFile> {
    if let Some(logo) = &settings.logo {
        let (extension, content_type) = (logo.kind.extension(), logo.kind.content_type());
        let bytes = logo.bytes.to_vec();
        return Some(BrandFile::new("logo", extension, content_type, bytes));
    }
    let accent = Rgb(settings.accent?).text();
    let bytes = MARK_SOURCE.replace(MARK_COLOUR, &accent).into_bytes();
    Some(BrandFile::new("mark", "svg", "image/svg+xml", bytes))
}

fn style(settings: &BrandSettings) -> Option<BrandFile> {
    let accent = Rgb(settings.accent?);
    let text = accent_style(accent);
    let bytes = text.into_bytes();
    Some(BrandFile::new(
        "accent",
        "css",
        "text/css; charset=utf-8",
        bytes,
    ))
}

/// Lists the routes, which are all public.
pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new().route("/dashboard/brand/{file}", get(file))
}

async fn file(
    State(app): State<Arc<SidecarState>>,
    Path(name): Path<String>,
) -> Result<Response, PageError> {
    let settings = app.settings.load();
    let files = [logo(&settings.brand), style(&settings.brand)];
    let file = files.into_iter().flatten().find(|file| file.name == name);
    let file = file.ok_or(PageError::NotFound)?;
    let headers = [
        (header::CONTENT_TYPE, file.content_type),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    Ok((headers, file.bytes).into_response())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rgb([u8; 3]);

#[allow(
    clippy::float_arithmetic,
    reason = "contrasts of colours, which decide about no money"
)]
impl Rgb {
    fn text(self) -> String {
        let [red, green, blue] = self.0;
        format!("#{red:02x}{green:02x}{blue:02x}")
    }

    /// Mixes this colour with `percent` of another one.
    fn mix(self, other: Self, percent: u16) -> Self {
        let mut mixed = self.0;
        for (channel, other) in mixed.iter_mut().zip(other.0) {
            let sum = u16::from(*channel) * (100 - percent) + u16::from(other) * percent;
            *channel = u8::try_from((sum + 50) / 100).unwrap_or(u8::MAX);
        }
        Self(mixed)
    }

    /// Returns the relative luminance (WCAG 2.2), from 0 to 1.
    fn luminance(self) -> f64 {
        let linear = |channel: u8| {
            let value = f64::from(channel) / 255.0;
            if value <= 0.04045 {
                value / 12.92
            } else {
                ((value + 0.055) / 1.055).powf(2.4)
            }
        };
        let [red, green, blue] = self.0.map(linear);
        0.0722f64.mul_add(blue, 0.2126f64.mul_add(red, 0.7152 * green))
    }

    /// Returns the contrast ratio (WCAG 2.2), from 1 to 21.
    fn contrast(self, other: Self) -> f64 {
        let (one, two) = (self.luminance(), other.luminance());
        (one.max(two) + 0.05) / (one.min(two) + 0.05)
    }

    /// Returns the first shade on the way to `target` that is legible on all its `surfaces`.
    fn shade(self, target: Self, surfaces: impl Fn(Self) -> [Self; 2]) -> Self {
        let shades = (0..=100).map(|percent| self.mix(target, percent));
        let is_readable = |shade: &Self| {
            let surfaces = surfaces(*shade);
            let mut contrasts = surfaces.iter().map(|surface| shade.contrast(*surface));
            contrasts.all(|contrast| contrast >= MIN_CONTRAST)
        };
        shades.into_iter().find(is_readable).unwrap_or(target)
    }
}

/// Returns the background colour of the current navigation entry.
fn light_tint(accent: Rgb) -> Rgb {
    accent.mix(WHITE, 92)
}

fn dark_tint(accent: Rgb) -> Rgb {
    accent.mix(DARK_CARD, 84)
}

fn accent_style(accent: Rgb) -> String {
    let light = accent.shade(Rgb([0; 3]), |shade| [LIGHT_SURFACE, light_tint(shade)]);
    let dark = accent.shade(WHITE, |shade| [DARK_SURFACE, dark_tint(shade)]);
    format!(
        ":root{{--accent:light-dark({},{});--on-accent:light-dark({},{});--tint:light-dark({},{})}}\n",
        light.text(),
        dark.text(),
        WHITE.text(),
        DARK_INK.text(),
        light_tint(light).text(),
        dark_tint(dark).text(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_accent_can_be_read_on_every_surface() {
        let steps = [0_u8, 0x33, 0x66, 0x99, 0xcc, 0xff];
        for red in steps {
            for green in steps {
                for blue in steps {
                    let accent = Rgb([red, green, blue]);
                    let light =
                        accent.shade(Rgb([0; 3]), |shade| [LIGHT_SURFACE, light_tint(shade)]);
                    let dark = accent.shade(WHITE, |shade| [DARK_SURFACE, dark_tint(shade)]);
                    for (one, two) in [
                        (light, WHITE),
                        (light, LIGHT_SURFACE),
                        (light, light_tint(light)),
                        (dark, DARK_SURFACE),
                        (dark, DARK_INK),
                        (dark, dark_tint(dark)),
                    ] {
                        assert!(one.contrast(two) >= MIN_CONTRAST, "{accent:?}");
                    }
                }
            }
        }
        assert!((WHITE.contrast(Rgb([0; 3])) - 21.0).abs() < 0.01);
    }

    #[test]
    fn an_accent_that_can_be_read_stays_as_it_is() {
        let style = accent_style(Rgb([0x3b, 0x5b, 0xdb]));
        assert!(style.contains("--accent:light-dark(#3b5bdb,"), "{style}");
    }

    #[test]
    fn the_mark_has_the_accent() {
        assert!(MARK_SOURCE.contains(MARK_COLOUR));
        let settings = BrandSettings {
            accent: Some([0xb0, 0, 0x20]),
            ..BrandSettings::default()
        };
        let mark = String::from_utf8(logo(&settings).unwrap().bytes).unwrap();
        assert!(mark.contains("#b00020") && !mark.contains(MARK_COLOUR));
        let plain = PageBrand::new(&BrandSettings::default());
        assert!(plain.logo.starts_with("/dashboard/static/mark-") && plain.style.is_none());
    }
}
