//! Creates the keys with which the dashboard's playground sends requests. Each session has one key,
//! which lasts an hour, permits only inference and has a spending limit.
//!
//! The key ends with its session. This file must not depend on HTTP.

use super::api_key::{ApiKey, KeyHolder};
use super::error::AccountError;
use super::session::session_id;
use super::views::ApiKeys;
use crate::key_settings::{KeyScope, KeySettings};
use base::clock::now_ms;
use credits::limits::{Period, SpendLimit};
use credits::money::Micro;
use ledger::StoreError;
use std::collections::HashSet;

/// Lifetime of a playground key in ms: 1 hour.
const PLAYGROUND_KEY_MS: i64 = 3_600_000;

const PLAYGROUND_KEY_NAME: &str = "Playground";

/// A new playground key in plain text, which is stored nowhere.
pub struct NewPlaygroundKey {
    pub key_id: String,
    pub key: String,
    pub expires_at_ms: i64,
}

impl ApiKey {
    /// Returns whether the playground created the key.
    pub fn is_of_playground(&self) -> bool {
        self.settings.playground_session.is_some()
    }
}

impl ApiKeys<'_> {
    /// Creates the playground key of a session, which may spend up to `credits`. The session's
    /// former key and the account's expired playground keys are revoked. Edges with a shared store
    /// accept the new key once it is published.
    ///
    /// # Errors
    /// Returns the errors of [`ApiKeys::create_key`].
    pub fn create_playground_key(
        &self,
        holder: KeyHolder<'_>,
        session_token: &str,
        credits: Micro,
        now_ms: i64,
    ) -> Result<NewPlaygroundKey, AccountError> {
        let session = session_id(session_token);
        self.revoke_playground_keys(
            holder.account,
            holder.member,
            now_ms,
            |of_session, settings| of_session == session || settings.has_expired(now_ms),
        )?;
        let expires_at_ms = now_ms.saturating_add(PLAYGROUND_KEY_MS);
        let settings = KeySettings {
            expires_at_ms: Some(expires_at_ms),
            spend_limit: Some(SpendLimit {
                credits,
                period: Period::Total,
            }),
            scope: Some(KeyScope::Inference),
            playground_session: Some(session),
            ..KeySettings::default()
        };
        let new = self.create_key_of(holder, PLAYGROUND_KEY_NAME, &settings, now_ms)?;
        Ok(NewPlaygroundKey {
            key: new.key,
            key_id: new.key_id,
            expires_at_ms,
        })
    }

    /// Revokes the playground keys of ended sessions. An error does not make the end of a session
    /// fail, because the keys expire by themselves. `person`: whose sessions ended.
    pub(crate) fn end_playgrounds(&self, person: &str) {
        let now_ms = now_ms();
        let revoke = || -> Result<(), StoreError> {
            let sessions = self.0.logins().sessions(person, now_ms)?;
            let open: HashSet<_> = sessions.into_iter().map(|session| session.id).collect();
            let is_over = |of_session: &str, _: &KeySettings| !open.contains(of_session);
            self.revoke_playground_keys(person, None, now_ms, is_over)?;
            for of in self.0.organisations().memberships(person)? {
                self.revoke_playground_keys(&of.account, Some(person), now_ms, is_over)?;
            }
            Ok(())
        };
        if let Err(error) = revoke() {
            log::warn!("account: cannot revoke the playground keys of {person}: {error}");
        }
    }

    fn revoke_playground_keys(
        &self,
        account: &str,
        member: Option<&str>,
        now_ms: i64,
        is_over: impl Fn(&str, &KeySettings) -> bool,
    ) -> Result<(), StoreError> {
        for row in self.0.db.keys().keys_with_settings(account)? {
            let key = ApiKey::from_row(row)?;
            let session = key.settings.playground_session.as_deref();
            if key.member.as_deref() == member
                && session.is_some_and(|session| is_over(session, &key.settings))
            {
                self.revoke_key(Some(account), &key.id, now_ms)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Accounts;
    use crate::{ApiKeyStatus, AuthError, NewAccount};

    fn accounts() -> (tempfile::TempDir, Accounts, String) {
        let folder = tempfile::tempdir().unwrap();
        let accounts = Accounts::open(folder.path()).unwrap();
        let new = NewAccount {
            password: Some("a long password"),
            ..NewAccount::new("a@example.com")
        };
        let id = accounts.create_account(&new, now_ms()).unwrap().id;
        (folder, accounts, id)
    }

    fn holder(account: &str) -> KeyHolder<'_> {
        KeyHolder {
            account,
            member: None,
        }
    }

    #[test]
    fn a_playground_key_is_for_inference_for_an_hour_and_one_per_session() {
        let (_folder, accounts, account) = accounts();
        let now = now_ms();
        let session = || {
            accounts
                .logins()
                .create_session(&account, now)
                .unwrap()
                .token
        };
        let create = |token: &str, at| {
            let five = Micro::new(5_000_000);
            let new = accounts
                .api_keys()
                .create_playground_key(holder(&account), token, five, at);
            new.unwrap().key
        };
        let (one, other) = (session(), session());
        let first = create(&one, now);
        let of_other = create(&other, now);
        let principal = accounts.api_keys().authenticate(&first, now).unwrap();
        assert_eq!(principal.settings.scope, Some(KeyScope::Inference));
        let limit = principal.settings.spend_limit.unwrap();
        assert_eq!(limit.to_string(), "5/total");
        assert!(
            accounts
                .api_keys()
                .authenticate(&first, now + 3_599_999)
                .is_ok()
        );
        let expired = accounts.api_keys().authenticate(&first, now + 3_600_000);
        assert!(matches!(expired, Err(AuthError::KeyExpired(_))));

        let second = create(&one, now + 1);
        assert!(
            accounts.api_keys().authenticate(&first, now + 1).is_err(),
            "replaced"
        );
        for live in [&second, &of_other] {
            assert!(accounts.api_keys().authenticate(live, now + 1).is_ok());
        }
        // Those that have expired do not count among the live keys of the account for ever.
        create(&one, now + 3_600_000);
        let live = |key: &&ApiKey| key.status != ApiKeyStatus::Revoked;
        let keys = accounts.api_keys().keys(&account).unwrap();
        assert_eq!(keys.iter().filter(live).count(), 1);
    }

    /// A way to end the first session, with the tokens of both.
    type EndOfSession = fn(&Accounts, &str, &str, &str);

    #[test]
    fn the_end_of_a_session_ends_its_playground_key_and_no_other() {
        let ends: [(EndOfSession, bool); 5] = [
            (
                |accounts, _, one, _| accounts.logins().end_session(one).unwrap(),
                true,
            ),
            (
                |accounts, account, one, _| {
                    assert!(
                        accounts
                            .logins()
                            .end_own_session(account, &session_id(one))
                            .unwrap()
                    );
                },
                true,
            ),
            (
                |accounts, account, _, other| {
                    assert_eq!(
                        accounts
                            .logins()
                            .end_other_sessions(account, other)
                            .unwrap(),
                        1
                    );
                },
                true,
            ),
            (
                |accounts, account, _, _| {
                    assert_eq!(accounts.logins().end_sessions(account).unwrap(), 2);
                },
                false,
            ),
            (
                |accounts, account, _, _| {
                    let new = "another long password";
                    accounts.logins().replace_password(account, new).unwrap();
                },
                false,
            ),
        ];
        let (_folder, accounts, account) = accounts();
        let now = now_ms();
        let plain = accounts
            .api_keys()
            .create_key(&account, "laptop", now)
            .unwrap()
            .key;
        for (end, other_lives) in ends {
            let session = || {
                accounts
                    .logins()
                    .create_session(&account, now)
                    .unwrap()
                    .token
            };
            let (one, other) = (session(), session());
            let [first, second] = [&one, &other].map(|token| {
                let five = Micro::new(5_000_000);
                let new =
                    accounts
                        .api_keys()
                        .create_playground_key(holder(&account), token, five, now);
                new.unwrap().key
            });
            end(&accounts, &account, &one, &other);
            assert!(accounts.api_keys().authenticate(&first, now).is_err());
            assert_eq!(
                accounts.api_keys().authenticate(&second, now).is_ok(),
                other_lives
            );
            assert!(accounts.api_keys().authenticate(&plain, now).is_ok());
            accounts.logins().end_sessions(&account).unwrap();
        }
    }
}
