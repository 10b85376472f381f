//! Describes roles for the operator pages.
//!
//! This file must not check a right.

use accounts::Role;

/// Describes the rights of a role in a word or two; `None` for an account holder.
pub fn describe_role(role: Role) -> Option<&'static str> {
    match role {
        Role::Member => None,
        Role::Viewer => Some("read-only operator"),
        Role::Admin => Some("administrator"),
    }
}
