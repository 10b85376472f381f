//! Implements the logger of the process: formats lines, limits them, and queues them for the thread
//! that writes them to stderr.
//!
//! Code that logs never waits for the reader of stderr. This file must not decide which events are
//! logged.

use super::log_limiter::{LogLimiter, LogSummary, WINDOW_INTERVAL};
use super::log_queue::LogQueue;
use env_logger::{Env, Target, WriteStyle};
use log::{LevelFilter, Log, Metadata, Record};
use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const DEFAULT_FILTER: &str = "warn,model_gateway=info,accounts=info,base=info,config=info,ledger=info,pingora_core::connectors=off,pingora_core::server=warn";
/// Time limit for writing the last lines before the process ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

static QUEUE: LogQueue = LogQueue::new();

struct Logger {
    formatter: env_logger::Logger,
    limiter: Mutex<LogLimiter>,
}

/// Sets up logging to stderr. `RUST_LOG` sets the filter; the default is warnings, plus the
/// gateway's own messages from level info.
///
/// # Errors
/// Returns an error if the thread that writes the log cannot be started.
pub fn init_log() -> io::Result<()> {
    let is_colored = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let style = if is_colored {
        WriteStyle::Always
    } else {
        WriteStyle::Never
    };
    let formatter = env_logger::Builder::new()
        .write_style(style)
        .parse_env(Env::default().default_filter_or(DEFAULT_FILTER))
        // These modules are off at any log level, because they log whole headers, including the
        // client's key and the gateway's vendor key, and bodies character by character.
        .filter_module("pingora_proxy", LevelFilter::Off)
        .filter_module(
            "pingora_core::protocols::http::v1::client",
            LevelFilter::Warn,
        )
        .filter_module("pingora_core::protocols::http::v1::body", LevelFilter::Warn)
        // `refusals` logs malformed connections.
        .filter_module("pingora_core::apps", LevelFilter::Off)
        .filter_module(
            "pingora_core::protocols::http::v2::server",
            LevelFilter::Error,
        )
        .format_timestamp_millis()
        .target(Target::Pipe(Box::new(&QUEUE)))
        .build();
    let max_level = formatter.filter();
    let logger: &'static Logger = Box::leak(Box::new(Logger {
        formatter,
        limiter: Mutex::default(),
    }));
    // The standard library's handle has a lock, which a thread that waits for a reader would keep.
    let mut stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    std::thread::Builder::new()
        .name("log".into())
        .spawn(move || logger.write_lines(&mut stderr))?;
    if log::set_logger(logger).is_ok() {
        log::set_max_level(max_level);
    }
    Ok(())
}

/// Writes a line to stderr unchanged, after those of the log.
pub fn print_line(line: impl fmt::Display) {
    QUEUE.push(format!("{line}\n").as_bytes());
}

/// Waits until the log is written, for at most a second.
pub fn flush_log() {
    QUEUE.flush(FLUSH_TIMEOUT);
}

impl Logger {
    fn write_lines(&self, stderr: &mut File) -> ! {
        let mut summarized = Instant::now();
        loop {
            let batch = QUEUE.wait(WINDOW_INTERVAL);
            if QUEUE.write(&batch, stderr) && batch.dropped > 0 {
                log::warn!(
                    "{} lines of the log were dropped: its reader was too slow",
                    batch.dropped
                );
            }
            if summarized.elapsed() >= WINDOW_INTERVAL {
                summarized = Instant::now();
                let summaries = self.limiter().take_summaries();
                summaries.iter().for_each(|summary| self.print(summary));
            }
        }
    }

    fn print(&self, summary: &LogSummary) {
        let LogSummary { count, quoted, .. } = summary;
        let line = format_args!("{count} more lines like this one were not written: {quoted}");
        let record = Record::builder()
            .level(summary.level)
            .target(&summary.target)
            .args(line)
            .build();
        self.formatter.log(&record);
    }

    fn limiter(&self) -> MutexGuard<'_, LogLimiter> {
        self.limiter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.formatter.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if self.formatter.matches(record) && self.limiter().admit(record, Instant::now()) {
            self.formatter.log(record);
        }
    }

    fn flush(&self) {
        flush_log();
    }
}
