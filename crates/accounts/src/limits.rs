//! Defines the limits of accounts, keys and invitations that error messages name.
//!
//! This file must not import other files, because every file may import it. A limit that only one
//! file uses is in that file.

pub const MAX_LIVE_KEYS: i64 = 100;

/// Maximum length of a key's name, in characters.
pub const MAX_KEY_NAME_CHARS: usize = 64;

/// Maximum number of invitation codes created at once.
pub const MAX_INVITES_PER_BATCH: u32 = 100;

/// Maximum lifetime of an invitation, in ms: one year.
pub const MAX_INVITE_MS: i64 = 365 * 86_400_000;
