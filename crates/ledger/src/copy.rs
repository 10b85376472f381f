//! Keeps a SQLite file as a copy of the data in PostgreSQL. The holder's transaction is committed
//! in PostgreSQL before the file, and the commits of other directories are copied from PostgreSQL
//! into the file.
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
