//! Numbers, times and amounts as pages show them.
//!
//! [`Timestamp`] and [`Credits`] write an element with the exact value, which a browser shows when
//! the pointer is over it. An element cannot stand in an attribute: use `text()` and `exact()`
//! there. Must not know a page.

use askama::filters::HtmlSafe;
use base::clock::rfc3339;
use credits::money::Micro;
use std::fmt;

/// From this amount on, credits are shown with two decimals: 100 credits.
const HUNDRED_CREDITS: u64 = 100_000_000;

/// Decimals of an amount in micro-credits.
const MICRO_DECIMALS: u32 = 6;

/// Decimals that amounts below 100 credits have at least.
const USUAL_DECIMALS: u32 = 4;

/// A time, in ms since 1970. Pages show it in UTC; their script replaces that by the local time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The time in UTC, for attributes and texts.
    pub fn text(self) -> String {
        format_time(self.0)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.text();
        match rfc3339(self.0).get(..19) {
            Some(start) => write!(
                out,
                "<time datetime=\"{start}Z\" title=\"{text}\">{text}</time>"
            ),
            // A time that no calendar has.
            None => out.write_str(&text),
        }
    }
}

// Consists of digits and letters from this file.
impl HtmlSafe for Timestamp {}

/// An amount of credits, rounded so that a reader can compare it: `300.00` for 299.999128. The
/// exact amount is the value and the title of its element.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Credits(pub Micro);

impl Credits {
    pub const ZERO: Self = Self(Micro::ZERO);

    /// The exact amount, for attributes, receipts and what programs read.
    pub fn exact(self) -> String {
        self.0.to_string()
    }

    /// Two decimals from 100 credits on; below, four. Below 1 credit as many more as four
    /// significant digits need, so that no amount above zero is shown as zero.
    fn rounded(self) -> String {
        let micro = self.0.get();
        let sign = if micro < 0 { "-" } else { "" };
        let exact = micro.unsigned_abs();
        if exact == 0 {
            return "0".to_owned();
        }
        let decimals = decimals(exact);
        let rounded = round_to(exact, decimals);
        // 99.99996 becomes 100.00, not 100.0000.
        let decimals = decimals.min(self::decimals(rounded));
        let per_credit = 10_u64.pow(MICRO_DECIMALS);
        let fraction = format!("{:06}", rounded % per_credit);
        let is_kept = |(index, _): &(usize, char)| *index < decimals as usize;
        let mut shown: String = fraction
            .chars()
            .enumerate()
            .filter(is_kept)
            .map(|(_, digit)| digit)
            .collect();
        while shown.len() > USUAL_DECIMALS as usize && shown.ends_with('0') {
            shown.pop();
        }
        format!("{sign}{}.{shown}", group_digits(rounded / per_credit))
    }
}

/// Number of decimals with which an amount above zero is shown.
fn decimals(micro: u64) -> u32 {
    let per_credit = 10_u64.pow(MICRO_DECIMALS);
    match micro {
        HUNDRED_CREDITS.. => 2,
        amount if amount >= per_credit => USUAL_DECIMALS,
        amount => {
            let zeros = MICRO_DECIMALS - 1 - amount.max(1).ilog10();
            (zeros + USUAL_DECIMALS).min(MICRO_DECIMALS)
        }
    }
}

/// Rounds to a number of decimals of a credit, half away from zero.
fn round_to(micro: u64, decimals: u32) -> u64 {
    let unit = 10_u64.pow(MICRO_DECIMALS - decimals);
    (micro + unit / 2) / unit * unit
}

impl fmt::Display for Credits {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (exact, rounded) = (self.exact(), self.rounded());
        if exact == rounded {
            return out.write_str(&exact);
        }
        write!(
            out,
            "<data value=\"{exact}\" title=\"{exact} credits\">{rounded}</data>"
        )
    }
}

// Consists of digits and letters from this file.
impl HtmlSafe for Credits {}

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

/// `part` as a percentage of `whole`, rounded down.
pub fn percent(part: u64, whole: u64) -> u64 {
    let percent = u128::from(part) * 100 / u128::from(whole).max(1);
    u64::try_from(percent.min(100)).unwrap_or(100)
}

/// Formats a time as `2026-11-21 12:00:00 UTC`.
pub fn format_time(ms: i64) -> String {
    let text = rfc3339(ms);
    text.get(..19).map_or_else(
        || text.clone(),
        |start| format!("{} UTC", start.replace('T', " ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use credits::money::MAX_MICRO;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(group_digits(0), "0");
        assert_eq!(group_digits(999), "999");
        assert_eq!(group_digits(1_234_567), "1\u{202f}234\u{202f}567");
    }

    #[test]
    fn credits_are_rounded_and_never_to_nothing() {
        for (micro, shown) in [
            (0, "0"),
            (1, "0.000001"),
            (872, "0.000872"),
            (1_000, "0.0010"),
            (1_234, "0.001234"),
            (12_000, "0.0120"),
            (12_345, "0.01235"),
            (99_999, "0.1000"),
            (105_700, "0.1057"),
            (500_000, "0.5000"),
            (999_949, "0.9999"),
            (999_950, "1.0000"),
            (1_000_000, "1.0000"),
            (1_000_049, "1.0000"),
            (1_000_050, "1.0001"),
            (99_999_949, "99.9999"),
            (99_999_950, "100.00"),
            (100_000_000, "100.00"),
            (299_999_128, "300.00"),
            (999_990_000, "999.99"),
            (999_995_000, "1\u{202f}000.00"),
            (1_000_000_000_000, "1\u{202f}000\u{202f}000.00"),
            (MAX_MICRO, "9\u{202f}007\u{202f}199\u{202f}254.74"),
            (-1, "-0.000001"),
            (-1_500_000, "-1.5000"),
            (-MAX_MICRO, "-9\u{202f}007\u{202f}199\u{202f}254.74"),
        ] {
            assert_eq!(Credits(Micro::new(micro)).rounded(), shown, "{micro}");
        }
    }

    #[test]
    fn the_exact_amount_stands_behind_a_rounded_one() {
        let amount = Credits(Micro::new(299_999_128));
        assert_eq!(
            amount.to_string(),
            "<data value=\"299.999128\" title=\"299.999128 credits\">300.00</data>"
        );
        assert_eq!(amount.exact(), "299.999128");
        // Without an element, where nothing was rounded.
        assert_eq!(Credits::ZERO.to_string(), "0");
        assert_eq!(Credits(Micro::new(872)).to_string(), "0.000872");
        let whole = Credits(Micro::new(300_000_000)).to_string();
        assert!(whole.starts_with("<data value=\"300\""), "{whole}");
    }

    #[test]
    fn a_time_is_written_for_readers_and_for_programs() {
        let noon = Timestamp(1_795_262_400_123);
        assert_eq!(noon.text(), "2026-11-21 12:00:00 UTC");
        assert_eq!(
            noon.to_string(),
            "<time datetime=\"2026-11-21T12:00:00Z\" title=\"2026-11-21 12:00:00 UTC\">\
             2026-11-21 12:00:00 UTC</time>"
        );
        assert_eq!(Timestamp(i64::MAX).to_string(), "invalid");
    }
}
