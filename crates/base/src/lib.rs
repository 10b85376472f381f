//! Provides the foundation of all parts of the gateway: time, files, queues, failpoints, telemetry
//! and the rule for readable names.
//!
//! This crate must not depend on requests, accounts, entries or settings.

#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test reads from top to bottom")
)]

pub mod clock;
pub mod disk_pool;
pub mod failpoint;
pub mod file_owner;
pub mod postgres_url;
pub mod queue;
pub mod readable_name;
pub mod regular_file;
pub mod telemetry;
