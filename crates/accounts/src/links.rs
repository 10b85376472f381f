//! Manages one-time links. The holder of a link sets the password of an account, or proves that the
//! account's e-mail reaches them.
//!
//! A token is 256 random bits; the database has only its SHA-256. Mail scanners open links too, so
//! opening a link changes nothing; only sending the form uses the link up.
//!
//! Anyone can sign up with another person's e-mail address. So the first proof of the mailbox ends
//! the password and the sessions that existed before. Keys and webhook end too, unless the holder
//! claims them. A holder who is signed in and confirms the e-mail keeps everything. This file must
//! not depend on HTTP or mail.

use super::audit::AuditChange;
use super::views::OneTimeLinks;
use super::{AccountError, Actor, AuditedAccounts, password};
use crate::db::links::OneTimeLinkRow;
use ledger::StoreError;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::fmt::Write;

const MINUTE_MS: i64 = 60_000;

/// Path of the page that opens a link, without the token.
const LINK_PATH: &str = "/dashboard/link/";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkPurpose {
    /// The link sets a new password in place of a forgotten one.
    Reset,
    /// The link sets the first password of an account that was created without one.
    Setup,
    /// The link proves that mail reaches the account holder.
    Verify,
}

impl LinkPurpose {
    pub const ALL: [Self; 3] = [Self::Reset, Self::Setup, Self::Verify];

    pub fn name(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Setup => "setup",
            Self::Verify => "verify",
        }
    }

    /// Returns the lifetime of a link in ms.
    pub fn lifetime_ms(self) -> i64 {
        match self {
            Self::Reset => 60 * MINUTE_MS,
            Self::Setup => 72 * 60 * MINUTE_MS,
            Self::Verify => 24 * 60 * MINUTE_MS,
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|purpose| purpose.name() == name)
    }
}

/// A new link, whose token is stored nowhere else.
#[derive(Clone, PartialEq, Eq)]
pub struct NewOneTimeLink {
    /// The token in 64 hex digits.
    pub token: String,
    pub expires_at_ms: i64,
}

impl NewOneTimeLink {
    /// Returns the address for the receiver. The gateway's own address is `base_url`.
    pub fn url(&self, base_url: &str) -> String {
        format!("{base_url}{LINK_PATH}{}", self.token)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OneTimeLink {
    pub account: String,
    pub purpose: LinkPurpose,
    pub expires_at_ms: i64,
    /// True if using the link is the first proof that mail reaches the holder of an account that a
    /// stranger may have opened. An operator's link proves nothing. A link for the first password
    /// is older than anything a stranger could create.
    pub is_first_proof: bool,
}

impl OneTimeLinks<'_> {
    /// Creates a link that is sent to the account holder. The link replaces an earlier sent one
    /// with the same purpose, but not an administrator's link, because anybody can request this
    /// one.
    ///
    /// # Errors
    /// Returns an error if there is no such active account, if there is no randomness, or if the
    /// database fails.
    pub fn create_own_link(
        &self,
        account: &str,
        purpose: LinkPurpose,
        now_ms: i64,
    ) -> Result<NewOneTimeLink, AccountError> {
        let link = generate(purpose, now_ms)?;
        let row = OneTimeLinkRow {
            by_operator: false,
            ..link_row(account, purpose, account, now_ms)
        };
        match self
            .0
            .db
            .links()
            .put_one_time_link(&row, &hash_token(&link.token), None)?
        {
            true => Ok(link),
            false => Err(AccountError::NoAccount),
        }
    }

    /// Returns a link without using it up. `None` if the link is unknown, used, replaced or
    /// expired, or if its account is suspended or deleted. The caller cannot distinguish these
    /// cases.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn one_time_link(
        &self,
        token: &str,
        now_ms: i64,
    ) -> Result<Option<OneTimeLink>, StoreError> {
        let found = self
            .0
            .db
            .links()
            .one_time_link(&hash_token(token), now_ms)?;
        Ok(found.and_then(|(row, is_verified)| {
            let purpose = LinkPurpose::from_name(&row.purpose)?;
            Some(OneTimeLink {
                purpose,
                account: row.account,
                expires_at_ms: row.expires_at_ms,
                is_first_proof: !row.by_operator && !is_verified && purpose != LinkPurpose::Setup,
            })
        }))
    }

    /// Sets a password and uses up all password links of the account. All sessions of the account
    /// end; with `ends_credentials`, its keys and webhook end too and, at the first proof of the
    /// mailbox, what it made in organisations. Returns the account. If the link
    /// is unusable, nothing changes and the result is `None`. A password that is not allowed does
    /// not use the link up. Hashing the password takes a while.
    ///
    /// # Errors
    /// Returns an error if the password is not allowed, or if the hash or the database fails.
    pub fn set_password_by_link(
        &self,
        token: &str,
        new: &str,
        ends_credentials: Option<bool>,
        address: &str,
        now_ms: i64,
    ) -> Result<Option<String>, AccountError> {
        let Some(link) = self.one_time_link(token, now_ms)? else {
            return Ok(None);
        };
        if link.purpose == LinkPurpose::Verify && !link.is_first_proof {
            return Ok(None);
        }
        self.0.logins().check_new_password(&link.account, new)?;
        let ends_credentials = ends_credentials.unwrap_or(link.is_first_proof);
        let change = AuditChange::new(
            "account.use-link",
            &link.account,
            &json!({"purpose": link.purpose.name(), "ends_credentials": ends_credentials}),
        );
        let by = Actor {
            actor: link.account.clone(),
            address: address.to_owned(),
        };
        let is_set = self.0.db.links().set_password_by_link(
            &hash_token(token),
            &password::hash(new)?,
            ends_credentials,
            now_ms,
            &change.to_entry(&by, now_ms),
        )?;
        self.0.api_keys().end_playgrounds(&link.account);
        Ok(is_set.then_some(link.account))
    }

    /// Uses up a link that was sent to the account's e-mail. Returns false if it cannot be used.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn verify_email_by_link(&self, token: &str, now_ms: i64) -> Result<bool, StoreError> {
        self.0
            .db
            .links()
            .verify_email_by_link(&hash_token(token), now_ms)
    }

    /// Returns whether the credits of the account's trial wait until the e-mail is verified.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn has_waiting_trial(&self, account: &str) -> Result<bool, StoreError> {
        Ok(self.0.db.links().waiting_trial(account)?.is_some())
    }

    /// Returns the time at which the account's e-mail was verified; `None` if it was not.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn email_verified_at(&self, account: &str) -> Result<Option<i64>, StoreError> {
        self.0.db.links().email_verified_at(account)
    }
}

impl AuditedAccounts<'_> {
    /// Creates a link that an administrator hands to the account holder. The link replaces every
    /// open link with the same purpose.
    ///
    /// # Errors
    /// Returns an error if there is no such active account, if there is no randomness, or if the
    /// database fails.
    pub fn create_one_time_link(
        &self,
        account: &str,
        purpose: LinkPurpose,
    ) -> Result<NewOneTimeLink, AccountError> {
        let link = generate(purpose, self.now_ms())?;
        let row = link_row(account, purpose, self.actor(), self.now_ms());
        let change = AuditChange::new(
            "account.create-link",
            account,
            &json!({"purpose": purpose.name(), "expires_at_ms": link.expires_at_ms}),
        );
        let is_kept = self.accounts.db.links().put_one_time_link(
            &row,
            &hash_token(&link.token),
            Some(&self.audit_entry(&change)),
        )?;
        if is_kept {
            Ok(link)
        } else {
            Err(AccountError::NoAccount)
        }
    }
}

/// Builds the row of an administrator's link.
fn link_row(account: &str, purpose: LinkPurpose, by: &str, now_ms: i64) -> OneTimeLinkRow {
    OneTimeLinkRow {
        account: account.to_owned(),
        purpose: purpose.name().to_owned(),
        by_operator: true,
        created_by: by.to_owned(),
        created_at_ms: now_ms,
        expires_at_ms: now_ms.saturating_add(purpose.lifetime_ms()),
    }
}

fn generate(purpose: LinkPurpose, now_ms: i64) -> Result<NewOneTimeLink, AccountError> {
    let mut bits = [0u8; 32];
    getrandom::fill(&mut bits).map_err(AccountError::Random)?;
    let token = bits.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    Ok(NewOneTimeLink {
        token,
        expires_at_ms: now_ms.saturating_add(purpose.lifetime_ms()),
    })
}

/// Hashes a token. Blanks around the token are ignored, because people copy links from mails.
fn hash_token(token: &str) -> [u8; 32] {
    Sha256::digest(token.trim().as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Accounts;
    use crate::{AccountStatus, NewAccount};
    use base::clock::now_ms;
    use std::sync::{Arc, Barrier};

    const PASSWORD: &str = "a long password";

    fn by() -> Actor {
        Actor {
            actor: "root".into(),
            address: "192.0.2.1".into(),
        }
    }

    fn world() -> (tempfile::TempDir, Accounts, String) {
        let folder = tempfile::tempdir().unwrap();
        let accounts = Accounts::open(folder.path()).unwrap();
        let new = NewAccount::new("a@example.com");
        let id = accounts.create_account(&new, now_ms()).unwrap().id;
        (folder, accounts, id)
    }

    fn create(accounts: &Accounts, account: &str, purpose: LinkPurpose, at: i64) -> NewOneTimeLink {
        let link = accounts
            .with_actor(&by(), at)
            .create_one_time_link(account, purpose);
        link.unwrap()
    }

    #[test]
    fn a_link_sets_a_password_once_and_ends_every_session() {
        let (_folder, accounts, id) = world();
        let now = now_ms();
        let session = accounts.logins().create_session(&id, now).unwrap().token;
        let link = create(&accounts, &id, LinkPurpose::Setup, now);
        assert_eq!(link.token.len(), 64);
        // Opening it changes nothing, however often that happens.
        for _ in 0..3 {
            let found = accounts
                .one_time_links()
                .one_time_link(&link.token, now)
                .unwrap()
                .unwrap();
            assert_eq!((&found.account, found.purpose), (&id, LinkPurpose::Setup));
        }
        let set = |token: &str, password: &str, at| {
            accounts
                .one_time_links()
                .set_password_by_link(token, password, None, "192.0.2.7", at)
        };
        assert!(matches!(
            set(&link.token, "short", now),
            Err(AccountError::BadPassword)
        ));
        assert!(
            accounts
                .logins()
                .find_session(&session, now)
                .unwrap()
                .is_some()
        );
        assert_eq!(
            set(&format!(" {}\n", link.token), PASSWORD, now).unwrap(),
            Some(id.clone())
        );
        assert!(
            accounts
                .logins()
                .find_session(&session, now)
                .unwrap()
                .is_none()
        );
        assert!(
            accounts
                .logins()
                .check_password("a@example.com", PASSWORD)
                .unwrap()
                .is_some()
        );
        assert_eq!(
            set(&link.token, "another password", now).unwrap(),
            None,
            "used"
        );
        assert!(
            accounts
                .logins()
                .check_password("a@example.com", PASSWORD)
                .unwrap()
                .is_some()
        );
        let log = accounts.audit_log().rows(None, 10).unwrap();
        let acts: Vec<_> = log.iter().map(|line| line.act.as_str()).collect();
        assert_eq!(acts, ["account.use-link", "account.create-link"]);
        assert!(log.iter().all(|line| !line.after.contains(&link.token)));
        assert_eq!((&log[0].actor, log[0].address.as_str()), (&id, "192.0.2.7"));
    }

    #[test]
    fn a_link_works_until_it_expires_or_is_replaced() {
        let (_folder, accounts, id) = world();
        let now = now_ms();
        for purpose in LinkPurpose::ALL {
            let link = create(&accounts, &id, purpose, now);
            assert_eq!(link.expires_at_ms, now + purpose.lifetime_ms());
            let found = |at| {
                accounts
                    .one_time_links()
                    .one_time_link(&link.token, at)
                    .unwrap()
                    .is_some()
            };
            assert!(found(link.expires_at_ms - 1) && !found(link.expires_at_ms));
        }
        let reset = create(&accounts, &id, LinkPurpose::Reset, now);
        let newer = create(&accounts, &id, LinkPurpose::Reset, now);
        let setup = create(&accounts, &id, LinkPurpose::Setup, now);
        let is_open = |link: &NewOneTimeLink| {
            accounts
                .one_time_links()
                .one_time_link(&link.token, now)
                .unwrap()
                .is_some()
        };
        assert_eq!([&reset, &newer, &setup].map(is_open), [false, true, true]);
        // A password that was set in another way voids them too.
        accounts.logins().replace_password(&id, PASSWORD).unwrap();
        assert_eq!([&newer, &setup].map(is_open), [false, false]);
        for bad in ["", "x", &"0".repeat(64), &newer.token[1..]] {
            assert_eq!(
                accounts.one_time_links().one_time_link(bad, now).unwrap(),
                None
            );
            assert_eq!(
                accounts
                    .one_time_links()
                    .set_password_by_link(bad, PASSWORD, None, "", now)
                    .unwrap(),
                None
            );
        }
    }

    #[test]
    fn a_link_that_anybody_can_ask_for_replaces_none_of_an_administrator() {
        let (_folder, accounts, id) = world();
        let now = now_ms();
        for purpose in LinkPurpose::ALL {
            let ask = || {
                accounts
                    .one_time_links()
                    .create_own_link(&id, purpose, now)
                    .unwrap()
            };
            let is_open = |link: &NewOneTimeLink| {
                let found = accounts
                    .one_time_links()
                    .one_time_link(&link.token, now)
                    .unwrap();
                found.is_some()
            };
            let make = || create(&accounts, &id, purpose, now);
            let (handed_over, mailed) = (make(), ask());
            let newer = ask();
            let open = [&handed_over, &mailed, &newer].map(is_open);
            assert_eq!(open, [true, false, true], "{purpose:?}");
            // One that an administrator makes now ends them all.
            let (handed_over, old) = (make(), [handed_over, newer]);
            assert_eq!(old.each_ref().map(is_open), [false, false]);
            // Using one of them ends the other.
            for uses_mailed in [true, false] {
                let pair = [make(), ask()];
                assert!(!is_open(&handed_over));
                assert_eq!(pair.each_ref().map(is_open), [true, true]);
                let used = &pair[usize::from(uses_mailed)].token;
                if purpose == LinkPurpose::Verify {
                    assert!(
                        accounts
                            .one_time_links()
                            .verify_email_by_link(used, now)
                            .unwrap()
                    );
                } else {
                    let set = accounts
                        .one_time_links()
                        .set_password_by_link(used, PASSWORD, None, "", now);
                    assert_eq!(set.unwrap().as_ref(), Some(&id));
                }
                assert_eq!(pair.each_ref().map(is_open), [false, false]);
            }
        }
    }

    #[test]
    fn a_suspended_or_deleted_account_has_no_links() {
        let (_folder, accounts, id) = world();
        let now = now_ms();
        let link = create(&accounts, &id, LinkPurpose::Reset, now);
        let verify = create(&accounts, &id, LinkPurpose::Verify, now);
        accounts.set_status(&id, AccountStatus::Suspended).unwrap();
        assert_eq!(
            accounts
                .one_time_links()
                .one_time_link(&link.token, now)
                .unwrap(),
            None
        );
        assert_eq!(
            accounts
                .one_time_links()
                .set_password_by_link(&link.token, PASSWORD, None, "", now)
                .unwrap(),
            None
        );
        assert!(
            !accounts
                .one_time_links()
                .verify_email_by_link(&verify.token, now)
                .unwrap()
        );
        let refused = accounts
            .one_time_links()
            .create_own_link(&id, LinkPurpose::Reset, now);
        assert!(matches!(refused, Err(AccountError::NoAccount)));
        let nobody = accounts
            .with_actor(&by(), now)
            .create_one_time_link("acct_x", LinkPurpose::Setup)
            .map(drop);
        assert!(matches!(nobody, Err(AccountError::NoAccount)));

        accounts.set_status(&id, AccountStatus::Active).unwrap();
        assert!(
            accounts
                .one_time_links()
                .one_time_link(&link.token, now)
                .unwrap()
                .is_some()
        );
        let holder = Actor {
            actor: id.clone(),
            address: String::new(),
        };
        accounts.delete(&holder, now).unwrap();
        assert_eq!(
            accounts
                .one_time_links()
                .one_time_link(&link.token, now)
                .unwrap(),
            None
        );
    }

    #[test]
    fn an_e_mail_is_verified_by_its_own_link_only() {
        let (_folder, accounts, id) = world();
        let now = now_ms();
        let reset = create(&accounts, &id, LinkPurpose::Reset, now);
        let verify = create(&accounts, &id, LinkPurpose::Verify, now);
        assert!(
            !accounts
                .one_time_links()
                .verify_email_by_link(&reset.token, now)
                .unwrap()
        );
        assert_eq!(
            accounts
                .one_time_links()
                .set_password_by_link(&verify.token, PASSWORD, None, "", now)
                .unwrap(),
            None
        );
        assert_eq!(
            accounts.one_time_links().email_verified_at(&id).unwrap(),
            None
        );
        assert!(
            accounts
                .one_time_links()
                .verify_email_by_link(&verify.token, now)
                .unwrap()
        );
        assert!(
            !accounts
                .one_time_links()
                .verify_email_by_link(&verify.token, now + 1)
                .unwrap(),
            "used"
        );
        assert_eq!(
            accounts.one_time_links().email_verified_at(&id).unwrap(),
            Some(now)
        );
        assert_eq!(
            accounts
                .one_time_links()
                .email_verified_at("acct_x")
                .unwrap(),
            None
        );
    }

    #[test]
    fn the_first_proof_of_a_mailbox_ends_what_a_stranger_made() {
        use LinkPurpose::{Reset, Setup, Verify};
        let (mailed, operators) = (true, false);
        // Whether it was mailed, whether the e-mail was verified before, what the holder chose;
        // whether the keys and the webhook end, and whether the e-mail is verified then.
        for (index, (purpose, is_mailed, was_verified, choice, ends, is_verified)) in [
            (Reset, mailed, false, None, true, true),
            (Verify, mailed, false, None, true, true),
            (Reset, mailed, false, Some(false), false, true),
            (Setup, mailed, false, None, false, true),
            (Reset, mailed, true, None, false, true),
            (Reset, mailed, true, Some(true), true, true),
            (Reset, operators, false, None, false, false),
            (Reset, operators, false, Some(true), true, false),
        ]
        .into_iter()
        .enumerate()
        {
            let (_folder, accounts, id) = world();
            let now = now_ms();
            if was_verified {
                let link = create(&accounts, &id, Verify, now).token;
                assert!(
                    accounts
                        .one_time_links()
                        .verify_email_by_link(&link, now)
                        .unwrap()
                );
            }
            let key = accounts
                .api_keys()
                .create_key(&id, "a stranger's", now)
                .unwrap();
            let url = "https://stranger.example";
            assert!(
                accounts
                    .db
                    .webhooks()
                    .set_webhook(&id, url, &[1; 32], now)
                    .unwrap()
            );
            let session = accounts.logins().create_session(&id, now).unwrap().token;
            let link = if is_mailed {
                accounts
                    .one_time_links()
                    .create_own_link(&id, purpose, now)
                    .unwrap()
            } else {
                create(&accounts, &id, purpose, now)
            };
            let used = accounts.one_time_links().set_password_by_link(
                &link.token,
                PASSWORD,
                choice,
                "",
                now,
            );
            assert_eq!(used.unwrap(), Some(id.clone()), "{index}");
            assert!(
                accounts
                    .logins()
                    .find_session(&session, now)
                    .unwrap()
                    .is_none()
            );
            assert_eq!(
                accounts.api_keys().authenticate(&key.key, now).is_err(),
                ends,
                "{index}"
            );
            assert_eq!(
                accounts.db.webhooks().webhook(&id).unwrap().is_none(),
                ends,
                "{index}"
            );
            let verified_at = accounts.one_time_links().email_verified_at(&id).unwrap();
            assert_eq!(verified_at.is_some(), is_verified, "{index}");
        }
    }

    #[test]
    fn of_several_requests_with_one_link_one_succeeds() {
        let (_folder, accounts, id) = world();
        let now = now_ms();
        let link = create(&accounts, &id, LinkPurpose::Reset, now).token;
        let start = Arc::new(Barrier::new(4));
        let tries: Vec<_> = (0..4)
            .map(|index| {
                let (accounts, link, start) = (accounts.clone(), link.clone(), Arc::clone(&start));
                std::thread::spawn(move || {
                    start.wait();
                    let password = format!("a long password {index}");
                    accounts
                        .one_time_links()
                        .set_password_by_link(&link, &password, None, "", now)
                        .unwrap()
                })
            })
            .collect();
        let won = tries
            .into_iter()
            .filter_map(|one| one.join().unwrap())
            .count();
        assert_eq!(won, 1);
    }
}
