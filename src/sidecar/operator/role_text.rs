//! The words of the operator pages for a role.
//!
//! Must not check a right.

use accounts::Role;

/// What a role lets its holder do, in a word or two; `None` for an account holder.
pub fn describe_role(role: Role) -> Option<&'static str> {
    match role {
        Role::Member => None,
        Role::Viewer => Some("read-only operator"),
        Role::Admin => Some("administrator"),
    }
}
