//! Reads the wall clock. All other code receives the time as an argument.

use rustix::time::ClockId;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the wall-clock time in ms since 1970 UTC.
pub fn now_ms() -> i64 {
    i64::try_from(wall().as_millis()).unwrap_or(i64::MAX)
}

/// Returns the time in ms since 1970 UTC by a clock that does not jump while this process runs. Use
/// it for durations that must not change when the machine's clock is set. It includes the time for
/// which the machine slept.
pub fn steady_now_ms() -> i64 {
    i64::try_from(steady().as_millis()).unwrap_or(i64::MAX)
}

/// Returns by how many ms the machine's clock was set forward since this process began, negative if
/// it was set back.
pub fn set_by_ms() -> i64 {
    let (wall, steady) = (wall().as_micros(), steady().as_micros());
    let set_by = wall.cast_signed() - steady.cast_signed();
    let rounded = set_by + if set_by < 0 { -500 } else { 500 };
    i64::try_from(rounded / 1_000).unwrap_or(i64::MAX)
}

#[expect(clippy::disallowed_methods, reason = "the one source")]
fn wall() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

fn steady() -> Duration {
    static START: LazyLock<(Duration, Duration)> = LazyLock::new(|| (wall(), since_boot()));
    let (wall, booted) = *START;
    wall + since_boot().saturating_sub(booted)
}

fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(ClockId::Boottime);
    Duration::try_from(time).unwrap_or_default()
}

/// Returns the wall-clock time in seconds since 1970 UTC.
pub fn now_seconds() -> u64 {
    u64::try_from(now_ms() / 1_000).unwrap_or_default()
}

/// Formats `ms` since 1970 UTC as RFC 3339 with milliseconds, for example
/// `2026-11-21T12:00:00.000Z`.
pub fn rfc3339(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms)
        .map_or_else(|_| String::from("invalid"), |at| format!("{at:.3}"))
}

/// Parses the date of an HTTP header, such as `Sun, 06 Nov 1994 08:49:37 GMT`, into ms since 1970.
/// Returns `None` if the text is not a date.
pub fn http_date_ms(text: &str) -> Option<i64> {
    jiff::fmt::rfc2822::parse(text.trim())
        .ok()
        .map(|at| at.timestamp().as_millisecond())
}

/// Returns the time at which a UTC day (`2026-11-21`) begins, in ms since 1970. Returns `None` if
/// the text is not a day.
pub fn day_start_ms(date: &str) -> Option<i64> {
    // Accept only the documented form, because the library parses other forms too.
    let plain = date.len() == 10
        && date
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'-');
    let date: jiff::civil::Date = plain.then(|| date.parse().ok()).flatten()?;
    Some(
        date.to_zoned(jiff::tz::TimeZone::UTC)
            .ok()?
            .timestamp()
            .as_millisecond(),
    )
}

/// Returns the month of the UTC calendar that contains `ms`, in months since January 1970.
pub fn month_number(ms: i64) -> i64 {
    let at = jiff::Timestamp::from_millisecond(ms).unwrap_or_default();
    let date = at.to_zoned(jiff::tz::TimeZone::UTC).date();
    (i64::from(date.year()) - 1970) * 12 + i64::from(date.month()) - 1
}

/// Returns the time at which a month begins, in ms since 1970. The month is a number of months
/// since January 1970 UTC. Returns `None` for a month outside the calendar.
pub fn month_start_ms(month: i64) -> Option<i64> {
    let year = i16::try_from(1970 + month.div_euclid(12)).ok()?;
    let month = i8::try_from(month.rem_euclid(12) + 1).ok()?;
    let date = jiff::civil::Date::new(year, month, 1).ok()?;
    let at = date.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    Some(at.timestamp().as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_are_counted_from_the_first_of_1970() {
        for (month, start) in [
            (0, "1970-01-01"),
            (-1, "1969-12-01"),
            (682, "2026-11-01"),
            (649, "2024-02-01"),
            (684, "2027-01-01"),
        ] {
            let start_ms = day_start_ms(start).unwrap();
            assert_eq!(month_start_ms(month), Some(start_ms), "{start}");
            assert_eq!(month_number(start_ms), month, "{start}");
            assert_eq!(month_number(start_ms - 1), month - 1, "{start}");
        }
        assert_eq!(month_start_ms(i64::MAX / 2), None);
        assert_eq!(month_start_ms(200_000), None);
    }

    #[test]
    fn a_header_s_date_is_read() {
        assert_eq!(
            http_date_ms("Sun, 06 Nov 1994 08:49:37 GMT"),
            Some(784_111_777_000)
        );
        for bad in [
            "",
            "30",
            "1.5",
            "tomorrow",
            "1994-11-06T08:49:37Z",
            "Sun, 06 Nov 1994 08:49:37",
        ] {
            assert_eq!(http_date_ms(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_day_begins_at_midnight_utc() {
        assert_eq!(day_start_ms("1970-01-02"), Some(86_400_000));
        assert_eq!(
            day_start_ms("2026-11-21").map(rfc3339).as_deref(),
            Some("2026-11-21T00:00:00.000Z")
        );
        for bad in [
            "",
            "2026-02-30",
            "2026-11",
            "2026-11-21T00:00",
            "20261121",
            "21.11.2026",
            "9999999999",
        ] {
            assert_eq!(day_start_ms(bad), None, "{bad}");
        }
    }
}
