//! Defines the limits of accounts, keys and invitations that error messages name.
//!
//! This file must not import other files of the crate, because every file may import it. A limit
//! that only one file uses is in that file.

use credits::money::Micro;

pub const MAX_LIVE_KEYS: i64 = 100;

/// Maximum length of a key's name, in characters.
pub const MAX_KEY_NAME_CHARS: usize = 64;

/// Maximum number of invitation codes created at once.
pub const MAX_INVITES_PER_BATCH: u32 = 100;

/// Maximum lifetime of an invitation, in ms: one year.
pub const MAX_INVITE_MS: i64 = 365 * 86_400_000;

/// Maximum number of codes that are created together.
pub const MAX_CODES_PER_BATCH: u32 = 10_000;
/// Maximum lifetime of a code: ten years.
pub const MAX_CODE_MS: i64 = 10 * 366 * 86_400_000;
/// Maximum number of credits of a code.
pub const MAX_CODE_CREDITS: Micro = Micro::new(1_000_000_000_000);

/// Maximum length of an organisation's name, in characters.
pub const MAX_ORGANISATION_NAME_CHARS: usize = 64;
/// Maximum number of organisations that one person owns.
pub const MAX_OWNED: i64 = 20;
/// Maximum number of members and open invitations of one organisation, together.
pub const MAX_MEMBERS: i64 = 1_000;
/// Maximum number of domains that one organisation claims.
pub const MAX_CLAIMS: i64 = 100;
