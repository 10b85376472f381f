//! An account as the operator pages show it, in the list and on its own page.

use super::super::display::Timestamp;
use crate::account::{Account, Role};

pub struct AccountListRow {
    pub id: String,
    pub email: String,
    pub status: &'static str,
    /// Role above member; empty for members.
    pub role: &'static str,
    pub created: Timestamp,
}

impl From<Account> for AccountListRow {
    fn from(account: Account) -> Self {
        Self {
            status: account.status.name(),
            role: if account.role == Role::Member {
                ""
            } else {
                account.role.name()
            },
            created: Timestamp(account.created_at_ms),
            id: account.id,
            email: account.email,
        }
    }
}
