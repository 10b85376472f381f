//! Hashes passwords by argon2id with m = 19456 KiB, t = 2, p = 1. A hash takes about 50 ms on one
//! core and 19 MiB of memory.
//!
//! Hashing is slow on purpose, so async code must call it on a blocking thread and limit concurrent
//! calls. This file must not depend on accounts or stores.

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params, Version};

const MEMORY_KIB: u32 = 19_456;
const PASSES: u32 = 2;
const LANES: u32 = 1;

/// Minimum length of a password, in characters. `MAX_CHARS` limits the work that an unknown caller
/// can cause.
pub const MIN_CHARS: usize = 10;
pub const MAX_CHARS: usize = 256;

/// Sufficiently long passwords among the 20 000 most used ones, in lower case. An attacker guesses
/// these first. The source is the list of Django 5.2 (BSD-3-Clause), which is Royce Williams' list
/// of leaked passwords.
const COMMON: &str = include_str!("common-passwords.txt");

/// Returns whether a password is allowed: long enough, short enough to hash for an unknown caller,
/// and not among the first guesses for this e-mail.
pub fn is_allowed(password: &str, email: &str) -> bool {
    (MIN_CHARS..=MAX_CHARS).contains(&password.chars().count())
        && !is_common(password)
        && !is_of_email(password, email)
}

/// Returns whether the password is the e-mail or its part before the `@`, in upper or lower case.
fn is_of_email(password: &str, email: &str) -> bool {
    let (password, email) = (password.trim().to_lowercase(), email.to_lowercase());
    password == email
        || email
            .split_once('@')
            .is_some_and(|(local, _)| password == local)
}

fn is_common(password: &str) -> bool {
    let password = password.to_lowercase();
    COMMON.lines().any(|common| common == password)
}

/// Generates a password of 128 random bits, in hexadecimal digits.
///
/// # Errors
/// Returns an error if there is no randomness.
pub fn generate() -> Result<String, getrandom::Error> {
    let mut bits = [0u8; 16];
    getrandom::fill(&mut bits)?;
    Ok(bits
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}")))
}

/// The hash could not be computed. The message never contains the password.
#[derive(Debug, thiserror::Error)]
#[error("cannot hash a password: {0}")]
pub struct HashError(String);

#[derive(Debug, PartialEq, Eq)]
pub enum PasswordCheck {
    Wrong,
    Right,
    /// The password is right, but its hash has other parameters and must be replaced.
    NeedsRehash,
}

fn hasher() -> Result<Argon2<'static>, HashError> {
    let params = Params::new(MEMORY_KIB, PASSES, LANES, None)
        .map_err(|error| HashError(error.to_string()))?;
    Ok(Argon2::new(Algorithm::Argon2id, Version::V0x13, params))
}

/// Returns a PHC string with a new salt.
///
/// # Errors
/// Returns an error if there is no randomness or no memory.
pub fn hash(password: &str) -> Result<String, HashError> {
    let hash = hasher()?
        .hash_password(password.as_bytes())
        .map_err(|error| HashError(error.to_string()))?;
    Ok(hash.to_string())
}

/// Checks a password against the stored hash. Without a stored hash, the same work is done, so that
/// the duration does not reveal whether an account exists.
///
/// # Errors
/// Returns an error if there is no memory.
pub fn check(password: &str, stored: Option<&str>) -> Result<PasswordCheck, HashError> {
    let hasher = hasher()?;
    let Some(hash) = stored.and_then(|stored| PasswordHash::new(stored).ok()) else {
        let mut out = [0u8; Params::DEFAULT_OUTPUT_LEN];
        hasher
            .hash_password_into(password.as_bytes(), b"nobody's own salt", &mut out)
            .map_err(|error| HashError(error.to_string()))?;
        return Ok(PasswordCheck::Wrong);
    };
    if hasher.verify_password(password.as_bytes(), &hash).is_err() {
        return Ok(PasswordCheck::Wrong);
    }
    let current = Params::try_from(&hash).is_ok_and(|params| {
        params.m_cost() == MEMORY_KIB && params.t_cost() == PASSES && params.p_cost() == LANES
    });
    Ok(if current {
        PasswordCheck::Right
    } else {
        PasswordCheck::NeedsRehash
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMAIL: &str = "ann-lee.ray@example.com";

    #[test]
    fn what_is_guessed_first_is_no_password() {
        assert!(
            COMMON.lines().all(
                |common| common.chars().count() >= MIN_CHARS && common == common.to_lowercase()
            )
        );
        assert_eq!(COMMON.lines().count(), 1_780);
        for common in ["1234567890", "qwertyuiop", "PassWord123", "1q2w3e4r5t"] {
            assert!(!is_allowed(common, EMAIL), "{common}");
        }
        for allowed in [
            "qwertyuiop qwertyuiop",
            "a long password",
            &"x".repeat(MAX_CHARS),
        ] {
            assert!(is_allowed(allowed, EMAIL), "{allowed}");
        }
        for length in [MIN_CHARS - 1, MAX_CHARS + 1] {
            assert!(!is_allowed(&"é".repeat(length), EMAIL), "{length}");
        }
    }

    #[test]
    fn the_account_s_own_e_mail_is_no_password() {
        for own in [
            EMAIL,
            "Ann-Lee.Ray@Example.COM",
            " ann-lee.ray@example.com ",
            "ann-lee.ray",
            "ANN-LEE.RAY",
        ] {
            assert!(!is_allowed(own, EMAIL), "{own}");
        }
        for other in [
            "bob@example.com",
            "example.com",
            "ann-lee.ray and more",
            "ann-lee.ray@example.net",
        ] {
            assert!(is_allowed(other, EMAIL), "{other}");
        }
    }

    #[test]
    fn a_password_is_checked_against_its_hash_alone() {
        let stored = hash("correct horse").unwrap();
        assert!(
            stored.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"),
            "{stored}"
        );
        assert_eq!(
            check("correct horse", Some(&stored)).unwrap(),
            PasswordCheck::Right
        );
        assert_eq!(
            check("wrong horse", Some(&stored)).unwrap(),
            PasswordCheck::Wrong
        );
        assert_eq!(check("correct horse", None).unwrap(), PasswordCheck::Wrong);
        let weak = Argon2::new(
            Algorithm::Argon2id,
            Version::V0x13,
            Params::new(64, 1, 1, None).unwrap(),
        );
        let weak = weak.hash_password(b"correct horse").unwrap().to_string();
        assert_eq!(
            check("correct horse", Some(&weak)).unwrap(),
            PasswordCheck::NeedsRehash
        );
    }
}
