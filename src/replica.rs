//! What a data directory does with its two copies of PostgreSQL, `ledger.db` and `app.db`,
//! together: it takes the lease and gives it back, and gives PostgreSQL what it lacks.
//!
//! This module must not decide when: that is `app/standby.rs`, and an operator's commands.

mod hold;
mod postgres_audit;
mod push;

pub use hold::{adopt, catch_up, detach, give_back, take};
pub use postgres_audit::{
    catch_up_with_postgres, detach_from_postgres, push_to_postgres, verify_postgres,
};
pub use push::{PushReport, push};
