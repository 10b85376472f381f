//! Formats numbers, times and amounts for pages.
//!
//! [`Timestamp`], [`Credits`] and [`BalanceAmount`] write an element with the exact value, which a
//! browser shows when the pointer is over the element. An attribute cannot contain an element, so
//! use `text()` and `exact()` in attributes. This file must not depend on a page.

use askama::filters::HtmlSafe;
use base::clock::rfc3339;
use credits::money::Micro;
use std::fmt;

const MICRO_DECIMALS: u32 = 6;

const COST_DECIMALS: u32 = 4;

const BALANCE_DECIMALS: u32 = 2;

/// A time in ms since 1970. Pages show UTC, which their script replaces by the local time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Returns the time in UTC, for attributes and texts.
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
            // The number is outside the range of the calendar.
            None => out.write_str(&text),
        }
    }
}

// The output consists of digits and letters from this file.
impl HtmlSafe for Timestamp {}

/// A cost, rounded so that a reader can compare it: `0.4079` for 0.407863. The exact amount is the
/// value and the title of its element.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Credits(pub Micro);

impl Credits {
    pub const ZERO: Self = Self(Micro::ZERO);

    /// Returns the exact amount, for attributes, receipts and programs.
    pub fn exact(self) -> String {
        self.0.to_string()
    }

    /// Four decimals, rounded half away from zero; six if it would be shown as zero. For texts.
    pub fn text(self) -> String {
        let micro = self.0.get();
        let exact = micro.unsigned_abs();
        let unit = 10_u64.pow(MICRO_DECIMALS - COST_DECIMALS);
        let shown = match exact {
            0 => return "0".to_owned(),
            amount if amount < unit => decimal_text(amount, MICRO_DECIMALS),
            amount => decimal_text((amount + unit / 2) / unit, COST_DECIMALS),
        };
        format!("{}{shown}", if micro < 0 { "-" } else { "" })
    }
}

/// Formats `number` ÷ 10^`decimals`, with groups of digits.
fn decimal_text(number: u64, decimals: u32) -> String {
    let unit = 10_u64.pow(decimals);
    let (whole, fraction) = (group_digits(number / unit), number % unit);
    format!("{whole}.{fraction:0width$}", width = decimals as usize)
}

impl fmt::Display for Credits {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_amount(out, &self.exact(), &self.text())
    }
}

// The output consists of digits and letters from this file.
impl HtmlSafe for Credits {}

fn write_amount(out: &mut fmt::Formatter<'_>, exact: &str, shown: &str) -> fmt::Result {
    if exact == shown {
        return out.write_str(exact);
    }
    write!(
        out,
        "<data value=\"{exact}\" title=\"{exact} credits\">{shown}</data>"
    )
}

/// A balance such as `299.99` for 299.999128. It is rounded down, so that a page never shows more
/// than the account has. The exact amount is the value and the title of its element.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BalanceAmount(pub Micro);

impl BalanceAmount {
    /// Two decimals, rounded down. For texts.
    pub fn text(self) -> String {
        let micro = self.0.get();
        if micro == 0 {
            return "0".to_owned();
        }
        let unit = 10_u64.pow(MICRO_DECIMALS - BALANCE_DECIMALS);
        let shown = decimal_text(micro.unsigned_abs() / unit, BALANCE_DECIMALS);
        format!("{}{shown}", if micro < 0 { "-" } else { "" })
    }
}

impl fmt::Display for BalanceAmount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_amount(out, &self.0.to_string(), &self.text())
    }
}

// The output consists of digits and letters from this file.
impl HtmlSafe for BalanceAmount {}

/// An exact amount for numbers that change while the page is open. The text has all digits; the
/// style hides those after the first decimals and sets thousands apart. `showAmount` in `app.js`
/// does the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveAmount<'a> {
    /// The amount as [`Credits::exact`] formats it.
    pub exact: &'a str,
    pub decimals: usize,
}

impl fmt::Display for LiveAmount<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = self.exact.split_once('.').unwrap_or((self.exact, ""));
        let digits = whole.trim_start_matches('-').len();
        for (index, digit) in whole.chars().enumerate() {
            let left = whole.len() - index;
            let is_group = digits > 3 && left > 1 && left % 3 == 1 && digit != '-';
            match is_group {
                true => write!(out, "<span class=\"thousands\">{digit}</span>")?,
                false => write!(out, "{digit}")?,
            }
        }
        let (shown, rest) = fraction.split_at(fraction.len().min(self.decimals));
        if !shown.is_empty() {
            write!(out, ".{shown}")?;
        }
        if !rest.is_empty() {
            write!(out, "<span class=\"rest\">{rest}</span>")?;
        }
        let missing = self.decimals - shown.len();
        if missing > 0 {
            let point = if shown.is_empty() { "." } else { "" };
            write!(out, "<span data-pad=\"{point}{:0<missing$}\"></span>", "")?;
        }
        Ok(())
    }
}

// The output consists of digits and letters from this file, and `exact` comes from an amount.
impl HtmlSafe for LiveAmount<'_> {}

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

/// An exact amount, such as a price, with groups of digits: `3 000` or `0.25`.
pub fn group_amount(amount: Micro) -> String {
    let text = amount.to_string();
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) => (whole, format!(".{fraction}")),
        None => (&*text, String::new()),
    };
    match whole.parse() {
        Ok(whole) => format!("{}{fraction}", group_digits(whole)),
        // Below zero.
        Err(_) => text,
    }
}

/// Returns `part` as a percentage of `whole`, rounded down.
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
    fn an_exact_amount_has_groups_of_digits() {
        for (micro, text) in [
            (0, "0"),
            (250_000, "0.25"),
            (3_000_000_000, "3\u{202f}000"),
            (1_234_567_000_001, "1\u{202f}234\u{202f}567.000001"),
            (-1_500_000_000, "-1500"),
        ] {
            assert_eq!(group_amount(Micro::new(micro)), text);
        }
    }

    #[test]
    fn credits_are_rounded_and_never_to_nothing() {
        for (micro, shown) in [
            (0, "0"),
            (1, "0.000001"),
            (99, "0.000099"),
            (100, "0.0001"),
            (872, "0.0009"),
            (1_000, "0.0010"),
            (12_345, "0.0123"),
            (12_350, "0.0124"),
            (500_000, "0.5000"),
            (1_000_049, "1.0000"),
            (1_000_050, "1.0001"),
            (99_999_950, "100.0000"),
            (299_999_128, "299.9991"),
            (1_000_000_000_000, "1\u{202f}000\u{202f}000.0000"),
            (MAX_MICRO, "9\u{202f}007\u{202f}199\u{202f}254.7410"),
            (-1, "-0.000001"),
            (-1_500_000, "-1.5000"),
        ] {
            assert_eq!(Credits(Micro::new(micro)).text(), shown, "{micro}");
        }
    }

    #[test]
    fn the_exact_amount_stands_behind_a_rounded_one() {
        let amount = Credits(Micro::new(299_999_128));
        assert_eq!(
            amount.to_string(),
            "<data value=\"299.999128\" title=\"299.999128 credits\">299.9991</data>"
        );
        assert_eq!(amount.exact(), "299.999128");
        // Without an element, where nothing was rounded.
        assert_eq!(Credits::ZERO.to_string(), "0");
        assert_eq!(Credits(Micro::new(72)).to_string(), "0.000072");
        let whole = Credits(Micro::new(300_000_000)).to_string();
        assert!(whole.starts_with("<data value=\"300\""), "{whole}");
    }

    #[test]
    fn a_balance_is_never_rounded_up() {
        for (micro, shown) in [
            (9_999, "0.00"),
            (299_999_128, "299.99"),
            (12_766_356_150, "12\u{202f}766.35"),
            (-1_505_000, "-1.50"),
        ] {
            let text = BalanceAmount(Micro::new(micro)).to_string();
            assert!(text.contains(&format!(">{shown}<")), "{text}");
        }
        for (micro, text) in [(0, "0"), (10_000, "0.01"), (1_250_000, "1.25")] {
            assert_eq!(BalanceAmount(Micro::new(micro)).to_string(), text);
        }
    }

    #[test]
    fn a_live_amount_has_all_its_digits_as_text() {
        for (exact, decimals, markup) in [
            ("300", 2, "300<span data-pad=\".00\"></span>"),
            ("298.7", 2, "298.7<span data-pad=\"0\"></span>"),
            ("298.75", 2, "298.75"),
            ("299.999128", 2, "299.99<span class=\"rest\">9128</span>"),
            (
                "1234567.5",
                4,
                "<span class=\"thousands\">1</span>23<span class=\"thousands\">4</span>567.5<span data-pad=\"000\"></span>",
            ),
            ("-1234", 0, "-<span class=\"thousands\">1</span>234"),
            ("-123", 0, "-123"),
        ] {
            assert_eq!(LiveAmount { exact, decimals }.to_string(), markup);
        }
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
