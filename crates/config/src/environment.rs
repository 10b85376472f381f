//! Reads the environment variables of this process.
//!
//! This file must not interpret a value.

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the environment is read"
)]
pub(super) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
