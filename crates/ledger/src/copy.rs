//! A SQLite file as the copy of what PostgreSQL has: a transaction of the holder is in PostgreSQL
//! before it is in the file, and what others committed comes into the file from there.
//!
//! `ledger.db` and `app.db` are used in the same way whether they are copies or not; only the
//! beginning and the commit of a transaction differ. The file's own write lock orders the processes
//! of one data directory; the epoch orders data directories. This module must not decide an amount.
//! Read next: `copy/file.rs` (a transaction), `copy/changed_rows.rs` (what it changed),
//! `copy/catch_up.rs` (what others committed).

mod catch_up;
mod changed_rows;
mod copied_entries;
mod file;
mod push;

pub use file::{
    CREATE_POSITION, Copy, WriteTransaction, begin, check_is_no_copy, check_may_attach, make_copy,
};
