//! Limits how often one place in the code logs warnings, so that a flood of refused requests does
//! not become a flood of lines.
//!
//! For each place, at most [`MAX_LINES_PER_WINDOW`] lines are written per [`WINDOW_INTERVAL`],
//! followed by one line with the number of suppressed lines. Lines of the levels info and below are
//! not limited, because requests do not log at info. This file must not write a line.

use super::metrics::METRICS;
use log::{Level, Record};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// Maximum number of lines per place and window.
const MAX_LINES_PER_WINDOW: u32 = 20;
pub const WINDOW_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of characters that a summary quotes of a suppressed line.
const MAX_QUOTED_CHARS: usize = 200;
/// Key of a log record that names its kind. Each kind is counted separately within a place.
pub const KIND: &str = "kind";

/// The places that logged warnings, by hash. Their number is bounded by the code.
#[derive(Default)]
pub struct LogLimiter(HashMap<u64, LogPlace>);

struct LogPlace {
    began: Instant,
    written: u32,
    suppressed: Option<LogSummary>,
}

/// Summary of the suppressed lines of one place in the code.
#[derive(Debug, PartialEq, Eq)]
pub struct LogSummary {
    pub level: Level,
    pub target: String,
    pub count: u64,
    /// The beginning of the first suppressed line.
    pub quoted: String,
}

impl LogLimiter {
    /// Returns whether the line may be written.
    pub fn admit(&mut self, record: &Record<'_>, now: Instant) -> bool {
        if record.level() > Level::Warn {
            return true;
        }
        let place = self.0.entry(place_hash(record)).or_insert(LogPlace {
            began: now,
            written: 0,
            suppressed: None,
        });
        if now.duration_since(place.began) >= WINDOW_INTERVAL {
            (place.began, place.written) = (now, 0);
        }
        if place.written < MAX_LINES_PER_WINDOW {
            place.written += 1;
            return true;
        }
        let suppressed = place.suppressed.get_or_insert_with(|| LogSummary {
            level: record.level(),
            target: record.target().to_owned(),
            count: 0,
            quoted: quote(&record.args().to_string()),
        });
        suppressed.count += 1;
        METRICS.count_dropped_log_line("repeated");
        false
    }

    /// Returns summaries of the lines that were suppressed since the last call.
    pub fn take_summaries(&mut self) -> Vec<LogSummary> {
        let places = self.0.values_mut();
        places.filter_map(|place| place.suppressed.take()).collect()
    }
}

fn place_hash(record: &Record<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (record.target(), record.file(), record.line()).hash(&mut hasher);
    let kind = record.key_values().get(KIND.into());
    kind.map(|kind| kind.to_string()).hash(&mut hasher);
    hasher.finish()
}

fn quote(line: &str) -> String {
    line.chars().take(MAX_QUOTED_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(limiter: &mut LogLimiter, line: u32, kind: &str, level: Level, now: Instant) -> bool {
        let kinds = [(KIND, kind)];
        let mut record = Record::builder();
        record.level(level).target("here").line(Some(line));
        record.key_values(&kinds);
        limiter.admit(&record.args(format_args!("cannot {kind}")).build(), now)
    }

    #[test]
    fn a_flood_is_a_few_lines_and_the_number_of_the_others() {
        let (mut limiter, begin) = (LogLimiter::default(), Instant::now());
        let most = MAX_LINES_PER_WINDOW as usize;
        let mut flood = |now| {
            let lines = (0..1_000).filter(|_| admit(&mut limiter, 7, "open", Level::Error, now));
            let count = lines.count();
            (count, limiter.take_summaries())
        };
        let summary = LogSummary {
            level: Level::Error,
            target: "here".into(),
            count: 1_000 - most as u64,
            quoted: "cannot open".into(),
        };
        let (written, summaries) = flood(begin);
        assert_eq!((written, summaries), (most, vec![summary]));
        let (written, summaries) = flood(begin + WINDOW_INTERVAL / 2);
        assert_eq!((written, summaries[0].count), (0, 1_000));
        assert_eq!(flood(begin + WINDOW_INTERVAL).0, most);
    }

    #[test]
    fn each_place_and_kind_has_its_own_lines_and_info_is_not_limited() {
        let (mut limiter, now) = (LogLimiter::default(), Instant::now());
        let most = MAX_LINES_PER_WINDOW as usize;
        for (line, kind, level, written) in [
            (1, "a", Level::Warn, most),
            (1, "b", Level::Warn, most),
            (2, "a", Level::Warn, most),
            (1, "a", Level::Warn, 0),
            (1, "a", Level::Info, 100),
        ] {
            let lines = (0..100).filter(|_| admit(&mut limiter, line, kind, level, now));
            assert_eq!(lines.count(), written, "{line} {kind} {level}");
        }
        assert_eq!(limiter.take_summaries().len(), 3);
        assert!(limiter.take_summaries().is_empty());
    }

    #[test]
    fn a_summary_quotes_a_part_of_a_long_line() {
        assert_eq!(quote(&"ä".repeat(1_000)), "ä".repeat(MAX_QUOTED_CHARS));
    }
}
