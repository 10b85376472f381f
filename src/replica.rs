//! Manages the two copies of PostgreSQL's data in a data directory, `ledger.db` and `app.db`. It
//! takes and releases the lease, and sends missing data to PostgreSQL.
//!
//! This module must not decide when to do so: `app/standby.rs` and an operator's commands do.

mod hold;
mod postgres_audit;
mod push;

pub use hold::{adopt, catch_up, detach, give_back, take};
pub use postgres_audit::{
    catch_up_with_postgres, detach_from_postgres, push_to_postgres, verify_postgres,
};
pub use push::{PushReport, push};
