//! Tests of the accounts' guarantees, with a real file.

use super::id::new_id;
use super::*;
use crate::db::account_lifecycle::OpenAccountOutcome::{BudgetSpent, Done, EmailTaken, NoInvite};
use crate::db::account_lifecycle::{OpenAccountOutcome, SignUpTerms};
use crate::db::{AccountRow, AppDb};
use config::{MAX_RATE, SignupMode, SignupSettings};
use credits::money::Micro;
use credits::trial::Trial;
use ledger::Ledger;
use ledger::sqlite::writer::begin_writes_by;
use sha2::{Digest as _, Sha256};
use std::time::Instant;
use tempfile::TempDir;

const NOW: i64 = 1_800_000_000_000;
const HOUR: i64 = 3_600_000;

fn world() -> (TempDir, Accounts) {
    let folder = tempfile::tempdir().unwrap();
    let accounts = Accounts::open(folder.path()).unwrap();
    (folder, accounts)
}

/// The credits of an account in the ledger.
fn balance(ledger: &Ledger, account: &str) -> Micro {
    let row = ledger.rows().account(account, "").unwrap().unwrap();
    row.paid.plus(row.trial)
}

fn new(email: &str) -> NewAccount<'_> {
    NewAccount::new(email)
}

fn stranger(email: &str) -> SignUpForm<'_> {
    SignUpForm {
        email,
        password: Some("a long password"),
        invite: "",
    }
}

#[test]
fn a_revocation_by_another_process_counts_as_soon_as_its_write_is_looked_for() {
    let (folder, gateway) = world();
    let command_line = Accounts::open(folder.path()).unwrap();
    let account = gateway.create_account(&new("a@example.com"), NOW).unwrap();
    assert_eq!(account.id.len(), 5 + 32);
    let key = command_line
        .api_keys()
        .create_key(&account.id, " laptop ", NOW)
        .unwrap();
    // Each look-up waits as long as another process's write can go unnoticed.
    let authenticate = || {
        std::thread::sleep(ledger::sqlite::row_cache::ROW_CACHE_CHECK_INTERVAL);
        gateway.api_keys().authenticate(&key.key, NOW)
    };
    assert_eq!(key.name, "laptop");
    let principal = authenticate().unwrap();
    assert_eq!(&*principal.account_id, account.id);
    assert_eq!(&*principal.key_id, key.key_id);

    command_line
        .set_status(&account.id, AccountStatus::Suspended)
        .unwrap();
    assert!(matches!(
        authenticate(),
        Err(AuthError::AccountSuspended(_))
    ));
    command_line
        .set_status(&account.id, AccountStatus::Active)
        .unwrap();
    assert!(authenticate().is_ok());

    let other = gateway.create_account(&new("b@example.com"), NOW).unwrap();
    assert!(
        !command_line
            .api_keys()
            .revoke_key(Some(&other.id), &key.key_id, NOW)
            .unwrap(),
        "a stranger's key was revoked"
    );
    assert!(
        command_line
            .api_keys()
            .revoke_key(None, &key.key_id, NOW)
            .unwrap()
    );
    assert!(matches!(authenticate(), Err(AuthError::BadKey)));
    assert!(
        !command_line
            .api_keys()
            .revoke_key(None, &key.key_id, NOW)
            .unwrap(),
        "revoked twice"
    );
    assert_eq!(
        gateway.api_keys().keys(&account.id).unwrap()[0].status,
        ApiKeyStatus::Revoked
    );
}

#[test]
fn a_revocation_by_this_process_counts_at_the_next_request() {
    let (_folder, gateway) = world();
    let account = gateway.create_account(&new("a@example.com"), NOW).unwrap();
    let key = gateway
        .api_keys()
        .create_key(&account.id, "laptop", NOW)
        .unwrap();
    let is_good = || gateway.api_keys().authenticate(&key.key, NOW).is_ok();
    for _ in 0..50 {
        assert!(is_good());
        gateway
            .set_status(&account.id, AccountStatus::Suspended)
            .unwrap();
        assert!(!is_good());
        gateway
            .set_status(&account.id, AccountStatus::Active)
            .unwrap();
    }
    assert!(
        is_good()
            && gateway
                .api_keys()
                .revoke_key(None, &key.key_id, NOW)
                .unwrap()
            && !is_good()
    );
}

#[test]
fn neither_key_nor_password_nor_session_token_is_on_the_disk() {
    let (folder, accounts) = world();
    let secret = NewAccount {
        password: Some("CANARY pass phrase"),
        ..new("a@example.com")
    };
    let account = accounts.create_account(&secret, NOW).unwrap();
    let key = accounts
        .api_keys()
        .create_key(&account.id, "laptop", NOW)
        .unwrap()
        .key;
    let token = accounts
        .logins()
        .create_session(&account.id, NOW)
        .unwrap()
        .token;
    let mut seen = 0;
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        let holds = |text: &str| {
            bytes
                .windows(text.len())
                .any(|window| window == text.as_bytes())
        };
        seen += usize::from(holds("a@example.com"));
        for secret in [&key, &key[6..49], &token, "CANARY pass phrase"] {
            assert!(!holds(secret), "a secret is on the disk");
        }
    }
    assert!(seen > 0, "the search finds what is there");
}

#[test]
fn an_e_mail_has_one_account_however_it_is_written() {
    let (_folder, accounts) = world();
    let account = accounts
        .create_account(&new(" Ann@Example.com "), NOW)
        .unwrap();
    assert_eq!(account.email, "ann@example.com");
    assert!(matches!(
        accounts.create_account(&new("ANN@example.com"), NOW),
        Err(AccountError::EmailTaken)
    ));
    assert_eq!(
        accounts.find("aNN@example.com").unwrap(),
        Some(account.clone())
    );
    assert_eq!(accounts.find(&account.id).unwrap(), Some(account));
    assert_eq!(accounts.directory().list().unwrap().len(), 1);
    for bad in [
        "",
        "ann",
        "@example.com",
        "ann@",
        "a b@example.com",
        "a@b@c",
        "ä@example.com",
        "\"ann\"@example.com",
        "ann@example.com.",
        &"a@b".repeat(100),
    ] {
        assert!(
            matches!(
                accounts.create_account(&new(bad), NOW),
                Err(AccountError::BadEmail)
            ),
            "{bad:?}"
        );
    }
    let weak = NewAccount {
        password: Some("123456789"),
        ..new("b@example.com")
    };
    assert!(matches!(
        accounts.create_account(&weak, NOW),
        Err(AccountError::BadPassword)
    ));
}

#[test]
fn an_account_whose_e_mail_is_not_taken_any_more_still_signs_in() {
    let (_folder, accounts) = world();
    let old = "\"b\\ob\"@example.com.";
    assert_eq!(open(&accounts, old, &SignUpTerms::default()), Done);
    let account = accounts.find(" \"B\\OB\"@example.com. ").unwrap().unwrap();
    assert_eq!(account.email, old);
    accounts
        .logins()
        .replace_password(&account.id, "a long password")
        .unwrap();
    let signed_in = accounts
        .logins()
        .check_password(old, "a long password")
        .unwrap();
    assert_eq!(signed_in, Some(account));
    assert_eq!(accounts.find("deleted-acct_1").unwrap(), None);
}

#[test]
fn a_change_begins_in_time_or_not_at_all() {
    let (_folder, accounts) = world();
    let create = |email| accounts.create_account(&new(email), NOW);
    let now = Instant::now();
    let late = begin_writes_by(now, || create("late@example.com"));
    assert!(matches!(late, Err(AccountError::Store(error)) if error.is_storage_failure()));
    assert_eq!(accounts.find("late@example.com").unwrap(), None);
    let in_an_hour = now + std::time::Duration::from_secs(3_600);
    begin_writes_by(in_an_hour, || create("soon@example.com")).unwrap();
    // What follows the first write is made, and a panic leaves no time behind.
    begin_writes_by(now, || {
        assert!(create("first@example.com").is_err());
        create("second@example.com").unwrap();
    });
    let panics = || begin_writes_by(now, || std::panic::resume_unwind(Box::new(())));
    assert!(std::panic::catch_unwind(panics).is_err());
    create("later@example.com").unwrap();
}

#[test]
fn a_mailbox_has_one_trial_also_under_another_spelling() {
    let (folder, accounts) = world();
    let ledger = Ledger::open(folder.path()).unwrap();
    let signup = SignupSettings {
        trial_budget_per_day: Micro::ZERO,
        ..giving_trials()
    };
    for (email, has_trial) in [
        ("ann.lee@gmail.com", true),
        ("annlee+x@googlemail.com", false),
        ("annlee@example.com", true),
    ] {
        let opened = sign_up(&accounts, &ledger, &signup, &stranger(email), NOW).unwrap();
        assert_eq!(opened.trial.is_some(), has_trial, "{email}");
    }
    let by = Actor {
        actor: "provider company".to_owned(),
        address: "192.0.2.1".to_owned(),
    };
    for (email, granted) in [
        ("an.nlee@gmail.com", "null"),
        ("bob@gmail.com", "\"0.0003\""),
    ] {
        let identity = ProviderIdentity {
            provider: "company".to_owned(),
            issuer: "https://id.example.com".to_owned(),
            subject: email.to_owned(),
            email: email.to_owned(),
            email_verified: true,
            role: String::new(),
        };
        sign_up_with_identity(&accounts, &ledger, &signup, (&identity, ""), &by, NOW).unwrap();
        let line = accounts.audit_log().rows(None, 1).unwrap().remove(0);
        assert_eq!(line.act, "account.create");
        let trial = format!("\"trial\":{granted}");
        assert!(line.after.contains(&trial), "{email}: {}", line.after);
    }
}

#[test]
fn only_addresses_of_the_domains_sign_up() {
    let (folder, accounts) = world();
    let ledger = Ledger::open(folder.path()).unwrap();
    let signup = SignupSettings {
        domains: ["example.com".to_owned(), "xn--bcher-kva.example".to_owned()].into(),
        trial_budget_per_day: Micro::ZERO,
        ..giving_trials()
    };
    for (email, may) in [
        ("ann@example.com", true),
        ("bob@EXAMPLE.com", true),
        ("eve@b\u{fc}cher.example", true),
        ("ann@sub.example.com", false),
        ("ann@notexample.com", false),
        ("ann@example.com.example", false),
    ] {
        let opened = sign_up(&accounts, &ledger, &signup, &stranger(email), NOW);
        let is_refused = matches!(&opened, Err(AccountError::OtherDomain(domains))
            if domains == "example.com, xn--bcher-kva.example");
        assert_eq!(
            (opened.is_ok(), is_refused),
            (may, !may),
            "{email}: {opened:?}"
        );
    }
}

#[test]
fn no_way_to_set_a_password_accepts_the_account_s_own_e_mail() {
    let (_folder, accounts) = world();
    let email = "long.name@example.com";
    let account = accounts.create_account(&new(email), NOW).unwrap().id;
    let by = Actor {
        actor: "cli".into(),
        address: String::new(),
    };
    let audited = accounts.with_actor(&by, NOW);
    let link = audited
        .create_one_time_link(&account, LinkPurpose::Setup)
        .unwrap();
    for own in [email, "Long.Name@example.com"] {
        let opened = accounts.create_account(
            &NewAccount {
                password: Some(own),
                ..new("long.name@example.com")
            },
            NOW,
        );
        assert!(matches!(opened, Err(AccountError::BadPassword)));
        let replaced = accounts.logins().replace_password(&account, own);
        assert!(matches!(replaced, Err(AccountError::BadPassword)));
        let set = audited.set_password(&account, own);
        assert!(matches!(set, Err(AccountError::BadPassword)));
        let by_link =
            accounts
                .one_time_links()
                .set_password_by_link(&link.token, own, None, "", NOW);
        assert!(matches!(by_link, Err(AccountError::BadPassword)));
    }
    // The link still works, and the e-mail of another account is only a text.
    let by_link = accounts.one_time_links().set_password_by_link(
        &link.token,
        "other@example.com",
        None,
        "",
        NOW,
    );
    assert_eq!(by_link.unwrap(), Some(account));
}

#[test]
fn a_sign_up_that_was_cut_in_two_is_finished_once() {
    let (folder, accounts) = world();
    let ledger = Ledger::open(folder.path()).unwrap();
    let trial = Some(Trial {
        credits: Micro::new(300),
        ends_at_ms: NOW + HOUR,
    });
    let account = accounts
        .create_account(
            &NewAccount {
                trial,
                ..new("a@example.com")
            },
            NOW,
        )
        .unwrap();
    let missing = accounts.directory().without_grant().unwrap();
    assert_eq!(missing[0].0, account.id);
    assert_eq!(
        missing[0].1.map(|trial| (trial.credits, trial.ends_at_ms)),
        Some((Micro::new(300), NOW + HOUR))
    );
    assert_eq!(
        complete_sign_ups(&accounts, &ledger, NOW + 2 * HOUR).unwrap(),
        1
    );
    assert_eq!(
        complete_sign_ups(&accounts, &ledger, NOW + 2 * HOUR).unwrap(),
        0
    );

    let mut signup = SignupSettings {
        mode: SignupMode::Open,
        trial_credits: Micro::new(300),
        trial_ms: HOUR,
        trial_budget_per_day: Micro::ZERO,
        one_account_per_mailbox: false,
        domains: Default::default(),
    };
    sign_up(&accounts, &ledger, &signup, &stranger("b@example.com"), NOW).unwrap();
    assert!(accounts.directory().without_grant().unwrap().is_empty());
    let repeated = sign_up(&accounts, &ledger, &signup, &stranger("b@example.com"), NOW);
    assert!(matches!(repeated, Err(AccountError::EmailTaken)));
    signup.mode = SignupMode::Closed;
    let closed = sign_up(&accounts, &ledger, &signup, &stranger("c@example.com"), NOW);
    assert!(matches!(closed, Err(AccountError::SignUpClosed)));
}

#[test]
fn a_password_opens_its_own_account_alone() {
    let (_folder, accounts) = world();
    let secret = NewAccount {
        password: Some("a long password"),
        ..new("a@example.com")
    };
    let account = accounts.create_account(&secret, NOW).unwrap();
    accounts.create_account(&new("b@example.com"), NOW).unwrap();
    assert_eq!(
        accounts
            .logins()
            .check_password("A@example.com", "a long password")
            .unwrap(),
        Some(account)
    );
    for (email, password) in [
        ("a@example.com", "a long passwor"),
        ("b@example.com", "a long password"),
        ("nobody@example.com", "a long password"),
        ("nonsense", "a long password"),
        ("a@example.com", &"x".repeat(100_000)),
    ] {
        assert_eq!(
            accounts.logins().check_password(email, password).unwrap(),
            None,
            "{email}"
        );
    }
}

#[test]
fn a_password_that_was_hashed_otherwise_is_hashed_anew_at_the_next_sign_in() {
    use argon2::password_hash::PasswordHasher as _;
    let (folder, accounts) = world();
    accounts.create_account(&new("a@example.com"), NOW).unwrap();
    let weak = argon2::Params::new(64, 1, 1, None).unwrap();
    let weak = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, weak);
    // A hash from a time when every password was allowed.
    let hash = weak.hash_password(b"1234567890").unwrap().to_string();
    let rows = rusqlite::Connection::open(folder.path().join("app.db")).unwrap();
    rows.execute("UPDATE account SET password = ?1", [&hash])
        .unwrap();
    let stored = || {
        rows.query_row("SELECT password FROM account", [], |row| {
            row.get::<_, String>(0)
        })
        .unwrap()
    };
    assert!(
        accounts
            .logins()
            .check_password("a@example.com", "wrong password")
            .unwrap()
            .is_none()
    );
    assert_eq!(stored(), hash, "a wrong password changes nothing");
    assert!(
        accounts
            .logins()
            .check_password("a@example.com", "1234567890")
            .unwrap()
            .is_some()
    );
    let new = stored();
    assert!(new.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{new}");
    assert!(
        accounts
            .logins()
            .check_password("a@example.com", "1234567890")
            .unwrap()
            .is_some()
    );
    assert_eq!(stored(), new, "once");
}

#[test]
fn an_account_has_at_most_a_hundred_live_keys() {
    let (_folder, accounts) = world();
    let account = accounts.create_account(&new("a@example.com"), NOW).unwrap();
    let first = accounts
        .api_keys()
        .create_key(&account.id, "k", NOW)
        .unwrap();
    for _ in 1..MAX_LIVE_KEYS {
        accounts
            .api_keys()
            .create_key(&account.id, "k", NOW)
            .unwrap();
    }
    assert!(matches!(
        accounts.api_keys().create_key(&account.id, "k", NOW),
        Err(AccountError::TooManyKeys)
    ));
    accounts
        .api_keys()
        .revoke_key(None, &first.key_id, NOW)
        .unwrap();
    assert!(
        accounts
            .api_keys()
            .create_key(&account.id, "k", NOW)
            .is_ok(),
        "a revoked key does not count"
    );
    assert!(matches!(
        accounts.api_keys().create_key("acct_0", "k", NOW),
        Err(AccountError::NoAccount)
    ));
    for bad in ["a\nb", "a\u{202e}b", "a\u{7f}b", &"\0".repeat(64)] {
        assert!(
            matches!(
                accounts.api_keys().create_key(&account.id, bad, NOW),
                Err(AccountError::HiddenCharInKeyName)
            ),
            "{bad:?}"
        );
    }
    for bad in ["", "  ", &"x".repeat(65)] {
        assert!(
            matches!(
                accounts.api_keys().create_key(&account.id, bad, NOW),
                Err(AccountError::BadKeyName)
            ),
            "{bad:?}"
        );
    }
}

#[test]
fn a_session_ends_when_idle_when_old_or_when_ended() {
    let (_folder, accounts) = world();
    let account = accounts.create_account(&new("a@example.com"), NOW).unwrap();
    let alive = |token: &str, now| {
        accounts
            .logins()
            .find_session(token, now)
            .unwrap()
            .is_some()
    };

    let idle = accounts
        .logins()
        .create_session(&account.id, NOW)
        .unwrap()
        .token;
    assert!(alive(&idle, NOW + 12 * HOUR - 1));
    assert!(!alive(&idle, NOW + 12 * HOUR), "12 idle hours");

    let used = accounts
        .logins()
        .create_session(&account.id, NOW)
        .unwrap()
        .token;
    let mut now = NOW;
    while now + 11 * HOUR < NOW + 7 * 24 * HOUR {
        now += 11 * HOUR;
        assert!(
            accounts
                .logins()
                .find_session(&used, now)
                .unwrap()
                .is_some_and(|session| session.is_touch_due(now))
        );
        accounts.logins().touch_session(&used, now).unwrap();
    }
    assert!(!alive(&used, NOW + 7 * 24 * HOUR), "7 days after sign-in");

    let ended = accounts
        .logins()
        .create_session(&account.id, NOW)
        .unwrap()
        .token;
    accounts.logins().end_session(&ended).unwrap();
    assert!(!alive(&ended, NOW));
    let (one, two) = (
        accounts.logins().create_session(&account.id, NOW),
        accounts.logins().create_session(&account.id, NOW),
    );
    assert!(accounts.logins().end_sessions(&account.id).unwrap() >= 2);
    assert!(!alive(&one.unwrap().token, NOW) && !alive(&two.unwrap().token, NOW));
    accounts.logins().create_session(&account.id, NOW).unwrap();
    assert_eq!(
        accounts.logins().purge_sessions(NOW + 12 * HOUR).unwrap(),
        1
    );
    assert!(!alive("' OR 1=1 --", NOW) && !alive("", NOW));
}

#[test]
fn a_key_is_refused_from_the_moment_it_expires_and_enabled_again_by_a_later_one() {
    let (_folder, accounts) = world();
    let account = accounts.create_account(&new("a@example.com"), NOW).unwrap();
    let settings = KeySettings {
        expires_at_ms: Some(NOW + HOUR),
        ..KeySettings::default()
    };
    let key = accounts
        .api_keys()
        .create_key_with(&account.id, "k", &settings, NOW)
        .unwrap();
    assert!(
        accounts
            .api_keys()
            .authenticate(&key.key, NOW + HOUR - 1)
            .is_ok()
    );
    assert!(matches!(
        accounts.api_keys().authenticate(&key.key, NOW + HOUR),
        Err(AuthError::KeyExpired(_))
    ));
    accounts
        .api_keys()
        .change_key(None, &key.key_id, |set| {
            set.expires_at_ms = Some(NOW + 2 * HOUR)
        })
        .unwrap();
    assert!(
        accounts
            .api_keys()
            .authenticate(&key.key, NOW + HOUR)
            .is_ok()
    );
    accounts
        .api_keys()
        .change_key(None, &key.key_id, |set| set.expires_at_ms = None)
        .unwrap();
    assert!(accounts.api_keys().authenticate(&key.key, i64::MAX).is_ok());
}

#[test]
fn what_is_set_for_a_key_is_found_with_it_and_a_change_leaves_the_rest() {
    let (folder, accounts) = world();
    let account = accounts.create_account(&new("a@example.com"), NOW).unwrap();
    let other = accounts.create_account(&new("b@example.com"), NOW).unwrap();
    let key = accounts
        .api_keys()
        .create_key(&account.id, "k", NOW)
        .unwrap();
    assert_eq!(
        *accounts
            .api_keys()
            .authenticate(&key.key, NOW)
            .unwrap()
            .settings,
        KeySettings::default()
    );
    let set = accounts
        .api_keys()
        .change_key(Some(&account.id), &key.key_id, |set| {
            set.spend_limit = Some("100/day".parse().unwrap());
            set.allowed_models = vec!["alpha-opus-4-7".into()];
        })
        .unwrap();
    let set = accounts.api_keys().change_key(None, &key.key_id, |now| {
        assert_eq!(*now, set);
        now.rates.requests_per_minute = Some(10);
    });
    let set = set.unwrap();
    let seen = Accounts::open(folder.path())
        .unwrap()
        .api_keys()
        .authenticate(&key.key, NOW)
        .unwrap()
        .settings;
    assert_eq!((*seen).clone(), set);
    assert!(seen.allows("alpha-opus-4-7") && !seen.allows("alpha-sonnet-4-6"));
    assert_eq!(
        accounts.api_keys().keys(&account.id).unwrap()[0].settings,
        set
    );

    for bad in [
        vec![String::new()],
        vec!["a b".into()],
        vec!["x".repeat(129)],
        vec!["m".into(); 101],
    ] {
        let changed = accounts
            .api_keys()
            .change_key(None, &key.key_id, |set| set.allowed_models = bad);
        assert!(matches!(changed, Err(AccountError::BadModels)));
    }
    let changed = accounts.api_keys().change_key(None, &key.key_id, |set| {
        set.rates.concurrent = Some(MAX_RATE + 1)
    });
    assert!(matches!(changed, Err(AccountError::BadRate)));
    let changed = accounts
        .api_keys()
        .change_key(Some(&other.id), &key.key_id, |set| set.spend_limit = None);
    assert!(
        matches!(changed, Err(AccountError::NoKey)),
        "a stranger changed a key"
    );
    assert_eq!(
        accounts
            .api_keys()
            .key(None, &key.key_id)
            .unwrap()
            .unwrap()
            .1
            .settings,
        set,
        "a refused change changed something"
    );

    accounts
        .api_keys()
        .revoke_key(None, &key.key_id, NOW)
        .unwrap();
    assert!(matches!(
        accounts.api_keys().change_key(None, &key.key_id, |_| {}),
        Err(AccountError::NoKey)
    ));
}

#[test]
fn a_rotated_key_has_a_successor_of_the_same_settings_and_works_on_for_the_overlap() {
    let (_folder, accounts) = world();
    let account = accounts.create_account(&new("a@example.com"), NOW).unwrap();
    let settings = KeySettings {
        spend_limit: Some("5/total".parse().unwrap()),
        ..KeySettings::default()
    };
    let old = accounts
        .api_keys()
        .create_key_with(&account.id, "build", &settings, NOW)
        .unwrap();
    let new = accounts
        .api_keys()
        .rotate_key(Some(&account.id), &old.key_id, HOUR, NOW)
        .unwrap();
    assert_eq!(new.name, "build");
    assert_ne!(new.key, old.key);
    assert!(
        accounts
            .api_keys()
            .authenticate(&old.key, NOW + HOUR - 1)
            .is_ok()
    );
    assert!(matches!(
        accounts.api_keys().authenticate(&old.key, NOW + HOUR),
        Err(AuthError::KeyExpired(_))
    ));
    assert_eq!(
        *accounts
            .api_keys()
            .authenticate(&new.key, NOW + HOUR)
            .unwrap()
            .settings,
        settings
    );

    let rotated_twice = accounts
        .api_keys()
        .rotate_key(None, &old.key_id, 5 * HOUR, NOW);
    assert!(rotated_twice.is_ok());
    assert!(
        accounts
            .api_keys()
            .authenticate(&old.key, NOW + HOUR)
            .is_err(),
        "a rotation never lengthens a key's life"
    );
    let late = accounts
        .api_keys()
        .rotate_key(None, &old.key_id, HOUR, NOW + HOUR);
    assert!(
        matches!(late, Err(AccountError::NoKey)),
        "an expired key came to life again"
    );
    for index in 3..MAX_LIVE_KEYS {
        accounts
            .api_keys()
            .create_key(&account.id, &format!("k{index}"), NOW)
            .unwrap();
    }
    assert!(matches!(
        accounts.api_keys().rotate_key(None, &new.key_id, HOUR, NOW),
        Err(AccountError::TooManyKeys)
    ));
    assert!(
        accounts
            .api_keys()
            .authenticate(&new.key, NOW + 2 * HOUR)
            .is_ok(),
        "a rotation that failed changed the old key"
    );
    assert!(
        accounts
            .api_keys()
            .rotate_key(None, &new.key_id, HOUR, NOW + HOUR)
            .is_ok(),
        "an expired key does not count"
    );
}

#[test]
fn a_setting_that_cannot_be_read_is_not_passed_over() {
    let (folder, accounts) = world();
    let account = accounts.create_account(&new("a@example.com"), NOW).unwrap();
    let key = accounts
        .api_keys()
        .create_key(&account.id, "k", NOW)
        .unwrap();
    let file = rusqlite::Connection::open(folder.path().join("app.db")).unwrap();
    for text in [
        "{",
        r#"{"allowed_modules":["x"]}"#,
        r#"{"spend_limit":{"credits":"1","period":"year"}}"#,
    ] {
        file.execute("UPDATE api_key SET settings = ?1", [text])
            .unwrap();
        assert!(
            matches!(
                accounts.api_keys().authenticate(&key.key, NOW),
                Err(AuthError::Unavailable(_))
            ),
            "{text}"
        );
    }
}

#[test]
fn an_account_has_rates_of_its_own() {
    let (_folder, accounts) = world();
    let account = accounts.create_account(&new("a@example.com"), NOW).unwrap();
    let key = accounts
        .api_keys()
        .create_key(&account.id, "k", NOW)
        .unwrap();
    let rates = RateSettings {
        tokens_per_minute: Some(0),
        concurrent: Some(3),
        ..RateSettings::default()
    };
    assert!(accounts.set_account_rates(&account.id, &rates).unwrap());
    assert_eq!(
        accounts
            .api_keys()
            .authenticate(&key.key, NOW)
            .unwrap()
            .account_rates,
        rates
    );
    assert_eq!(accounts.account_rates(&account.id).unwrap(), rates);
    assert!(!accounts.set_account_rates("acct_0", &rates).unwrap());
    let beyond = RateSettings {
        concurrent: Some(MAX_RATE + 1),
        ..rates
    };
    assert!(matches!(
        accounts.set_account_rates(&account.id, &beyond),
        Err(AccountError::BadRate)
    ));
}

/// Inserts an account as a sign-up does, without hashing a password.
fn open(accounts: &Accounts, email: &str, terms: &SignUpTerms<'_>) -> OpenAccountOutcome {
    let row = AccountRow {
        id: new_id("acct_", NOW).unwrap(),
        email: email.to_owned(),
        role: Role::Member,
        active: true,
        deleted: false,
        created_at_ms: NOW,
        trial: Some((Micro::new(300), NOW + HOUR)),
        granted: false,
        organisation: None,
    };
    accounts
        .db
        .people()
        .insert_account(
            &row,
            None,
            mailbox::canonical_address(email).as_deref(),
            terms,
        )
        .unwrap()
}

#[test]
fn of_many_sign_ups_at_one_time_no_more_get_a_trial_than_the_days_budget_bears() {
    for round in 0..3 {
        let (folder, accounts) = world();
        // Another process writes to the same file.
        let other = Accounts::open(folder.path()).unwrap();
        let terms = SignUpTerms {
            budget: Some((Micro::new(300 * 7 + 299), NOW - HOUR)),
            ..SignUpTerms::default()
        };
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let tries: Vec<_> = (0..64)
                .map(|index| {
                    let accounts = if index % 2 == 0 { &accounts } else { &other };
                    scope.spawn(move || open(accounts, &format!("a{index}@example.com"), &terms))
                })
                .collect();
            tries.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(
            outcomes.iter().filter(|outcome| **outcome == Done).count(),
            7,
            "round {round}"
        );
        assert!(
            outcomes
                .iter()
                .all(|outcome| matches!(outcome, Done | BudgetSpent))
        );
        assert_eq!(accounts.directory().list().unwrap().len(), 7);
        let tomorrow = SignUpTerms {
            budget: Some((Micro::new(300), NOW + 1)),
            ..SignUpTerms::default()
        };
        assert_eq!(
            open(&accounts, "b@example.com", &tomorrow),
            Done,
            "the next day has a budget of its own"
        );
    }
}

#[test]
fn of_many_who_have_one_invitation_one_gets_in() {
    let (_folder, accounts) = world();
    let by = Actor {
        actor: "uid 0".into(),
        address: "command line".into(),
    };
    let code = accounts
        .with_actor(&by, NOW)
        .create_invites(1, HOUR)
        .unwrap()
        .remove(0);
    let hash = invite::hash_code(&code);
    let terms = SignUpTerms {
        invite: Some(&hash),
        ..SignUpTerms::default()
    };
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let accounts = &accounts;
        let tries: Vec<_> = (0..64)
            .map(|index| {
                scope.spawn(move || open(accounts, &format!("a{index}@example.com"), &terms))
            })
            .collect();
        tries.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(
        outcomes.iter().filter(|outcome| **outcome == Done).count(),
        1
    );
    assert_eq!(
        outcomes
            .iter()
            .filter(|outcome| **outcome == NoInvite)
            .count(),
        63
    );
    let late = accounts
        .with_actor(&by, NOW - HOUR)
        .create_invites(1, HOUR)
        .unwrap()
        .remove(0);
    let late = SignUpTerms {
        invite: Some(&invite::hash_code(&late)),
        ..SignUpTerms::default()
    };
    assert_eq!(
        open(&accounts, "b@example.com", &late),
        NoInvite,
        "over at the very moment"
    );
}

#[test]
fn one_mailbox_is_one_account_where_that_is_wanted() {
    let (_folder, accounts) = world();
    assert_eq!(
        open(&accounts, "ann.lee@gmail.com", &SignUpTerms::default()),
        Done
    );
    let terms = SignUpTerms {
        one_per_mailbox: true,
        ..SignUpTerms::default()
    };
    for same in [
        "annlee@gmail.com",
        "annlee+x@gmail.com",
        "a.n.n.l.e.e@googlemail.com",
    ] {
        assert_eq!(open(&accounts, same, &terms), EmailTaken, "{same}");
    }
    assert_eq!(open(&accounts, "annlee+x@example.com", &terms), Done);
    assert_eq!(
        open(&accounts, "annlee+y@example.com", &terms),
        Done,
        "not known to be one mailbox"
    );
    assert_eq!(
        open(&accounts, "annlee@gmail.com", &SignUpTerms::default()),
        Done,
        "not wanted"
    );
}

#[test]
fn an_account_of_before_has_its_mailbox_after_the_migration() {
    let folder = tempfile::tempdir().unwrap();
    let old = AppDb::create_old_version(folder.path(), 3);
    for (index, email) in [
        "ann.lee+x@gmail.com",
        "bob@googlemail.com",
        "a.b+c@example.com",
    ]
    .iter()
    .enumerate()
    {
        let sql = "INSERT INTO account(id, email, admin, status, created_at_ms) VALUES(?1, ?2, 0, 'active', 1)";
        old.execute(sql, (format!("acct_{index}"), email)).unwrap();
    }
    drop(old);
    let accounts = Accounts::open(folder.path()).unwrap();
    assert_eq!(accounts.directory().list().unwrap().len(), 3);
    let terms = SignUpTerms {
        one_per_mailbox: true,
        ..SignUpTerms::default()
    };
    for (email, outcome) in [
        ("annlee@gmail.com", EmailTaken),
        ("b.o.b@gmail.com", EmailTaken),
        ("ab@example.com", Done),
    ] {
        assert_eq!(open(&accounts, email, &terms), outcome, "{email}");
    }
}

fn holder_of(account: &Account) -> Actor {
    Actor {
        actor: account.id.clone(),
        address: "192.0.2.1".into(),
    }
}

fn giving_trials() -> SignupSettings {
    SignupSettings {
        mode: SignupMode::Open,
        trial_credits: Micro::new(300),
        trial_ms: HOUR,
        trial_budget_per_day: Micro::new(300),
        one_account_per_mailbox: false,
        domains: Default::default(),
    }
}

#[test]
fn a_mailbox_has_one_trial_however_often_its_account_is_deleted() {
    let (folder, accounts) = world();
    let ledger = Ledger::open(folder.path()).unwrap();
    let signup = giving_trials();
    let first = sign_up(
        &accounts,
        &ledger,
        &signup,
        &stranger("ann.lee@gmail.com"),
        NOW,
    )
    .unwrap();
    assert!(first.trial.is_some());
    assert_eq!(
        accounts.delete(&holder_of(&first.account), NOW).unwrap(),
        CloseAccountOutcome::Done
    );
    assert_eq!(
        accounts.delete(&holder_of(&first.account), NOW).unwrap(),
        CloseAccountOutcome::NoAccount,
        "twice"
    );
    // Also on another day, with another spelling, and after another deletion. The daily budget does
    // not matter either.
    for (turn, email) in [
        "annlee+x@gmail.com",
        "a.n.n.lee@googlemail.com",
        "ann.lee@gmail.com",
    ]
    .iter()
    .enumerate()
    {
        let now_ms = NOW + i64::try_from(turn).unwrap() * 86_400_000;
        let second = sign_up(&accounts, &ledger, &signup, &stranger(email), now_ms).unwrap();
        assert!(second.trial.is_none(), "{email} got a second trial");
        assert_eq!(balance(&ledger, &second.account.id), Micro::ZERO, "{email}");
        let row = ledger
            .rows()
            .account(&second.account.id, "")
            .unwrap()
            .unwrap();
        assert_eq!(row.trial_ends_at_ms, None, "{email}");
        assert_eq!(
            accounts
                .delete(&holder_of(&second.account), now_ms)
                .unwrap(),
            CloseAccountOutcome::Done
        );
    }
    assert_eq!(complete_sign_ups(&accounts, &ledger, NOW).unwrap(), 0);
    // Another mailbox has its own trial, and an operator can always give one.
    let tomorrow = NOW + 4 * 86_400_000;
    let other = sign_up(
        &accounts,
        &ledger,
        &signup,
        &stranger("bob@gmail.com"),
        tomorrow,
    )
    .unwrap();
    assert!(other.trial.is_some());
    let with_trial = new("annlee@gmail.com").with_trial(&signup, tomorrow);
    let with_trial = open_account(&accounts, &ledger, &with_trial, tomorrow).unwrap();
    assert_eq!(balance(&ledger, &with_trial.id), Micro::new(300));
    // An account that never had a trial does not use up its mailbox's trial.
    let none = open_account(&accounts, &ledger, &new("carol@example.com"), tomorrow).unwrap();
    accounts.delete(&holder_of(&none), tomorrow).unwrap();
    let signup = SignupSettings {
        trial_budget_per_day: Micro::ZERO,
        ..signup
    };
    assert!(
        sign_up(
            &accounts,
            &ledger,
            &signup,
            &stranger("carol@example.com"),
            tomorrow
        )
        .unwrap()
        .trial
        .is_some()
    );
    // Only the keyed hash of the address remains.
    for mailbox in ["annlee", "ann.lee"] {
        accounts.delete(&holder_of(&with_trial), tomorrow).unwrap();
        let plain: [u8; 32] = Sha256::digest(format!("{mailbox}@gmail.com")).into();
        let rows = rusqlite::Connection::open(folder.path().join("app.db")).unwrap();
        let found: i64 = rows
            .query_row(
                "SELECT (SELECT count(*) FROM past_trial WHERE mailbox = ?1)
                      + (SELECT count(*) FROM account WHERE email LIKE ?2 OR mailbox LIKE ?2)",
                (plain, format!("%{mailbox}%")),
                |row| row.get(0),
            )
            .unwrap();
        assert_eq!(found, 0, "{mailbox}");
    }
}

#[test]
fn a_deleted_account_leaves_its_e_mail_and_the_names_of_its_keys_in_no_file() {
    let (folder, accounts) = world();
    let email = "canary.of.the.mail@example.com";
    let account = accounts.create_account(&new(email), NOW).unwrap();
    let name = "canary of the key";
    accounts
        .api_keys()
        .create_key(&account.id, name, NOW)
        .unwrap();
    // Another account, so that its pages stay in use.
    let other = accounts.create_account(&new("b@example.com"), NOW).unwrap();
    accounts.api_keys().create_key(&other.id, "k", NOW).unwrap();
    let holds = |text: &str| {
        ["app.db", "app.db-wal"].iter().any(|name| {
            let bytes = std::fs::read(folder.path().join(name)).unwrap();
            let mut windows = bytes.windows(text.len());
            windows.any(|window| window == text.as_bytes())
        })
    };
    let truncate = || ledger::sqlite::truncate_logs(folder.path(), &[]).unwrap();
    truncate();
    assert!(holds(email) && holds(name));
    accounts.delete(&holder_of(&account), NOW).unwrap();
    truncate();
    assert!(!holds(email) && !holds(name));
    assert!(holds("b@example.com"));
}

#[test]
fn the_last_administrator_cannot_leave() {
    let (_folder, accounts) = world();
    let admin = |email| {
        accounts
            .create_account(
                &NewAccount {
                    role: Role::Admin,
                    ..new(email)
                },
                NOW,
            )
            .unwrap()
    };
    let (first, second) = (admin("a@example.com"), admin("b@example.com"));
    accounts
        .create_account(
            &NewAccount {
                role: Role::Viewer,
                ..new("viewer@example.com")
            },
            NOW,
        )
        .unwrap();
    accounts
        .set_status(&second.id, AccountStatus::Suspended)
        .unwrap();
    let outcome = accounts.delete(&holder_of(&first), NOW).unwrap();
    assert_eq!(
        outcome,
        CloseAccountOutcome::LastAdministrator,
        "one who is suspended cannot act, nor can a viewer"
    );
    assert_eq!(
        accounts.find("a@example.com").unwrap(),
        Some(first.clone()),
        "nothing was changed"
    );
    assert!(
        accounts
            .audit_log()
            .rows(None, 10)
            .unwrap()
            .iter()
            .all(|line| line.act != "account.delete")
    );
    accounts
        .set_status(&second.id, AccountStatus::Active)
        .unwrap();
    // If the last two leave at the same time, one stays.
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let accounts = &accounts;
        let tries = [&first, &second]
            .map(|who| scope.spawn(move || accounts.delete(&holder_of(who), NOW).unwrap()));
        tries.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(
        outcomes.contains(&CloseAccountOutcome::Done)
            && outcomes.contains(&CloseAccountOutcome::LastAdministrator),
        "{outcomes:?}"
    );
    assert_eq!(
        accounts
            .directory()
            .list()
            .unwrap()
            .iter()
            .filter(|account| account.role == Role::Admin)
            .count(),
        1
    );
}

#[test]
fn an_administrator_who_cannot_sign_in_stands_in_for_nobody_who_can() {
    let (_folder, accounts) = world();
    let admin = |email, password| {
        let new = NewAccount {
            password,
            role: Role::Admin,
            ..NewAccount::new(email)
        };
        accounts.create_account(&new, NOW).unwrap()
    };
    let (first, by_key) = (
        admin("a@example.com", Some("a long password")),
        admin("key@example.com", None),
    );
    let suspend = |who: &Account| {
        accounts
            .with_actor(&holder_of(&by_key), NOW)
            .set_status_remotely(&who.id, AccountStatus::Suspended)
    };
    assert_eq!(
        accounts.delete(&holder_of(&first), NOW).unwrap(),
        CloseAccountOutcome::LastAdministrator
    );
    assert_eq!(
        suspend(&first).unwrap(),
        CloseAccountOutcome::LastAdministrator
    );
    assert_eq!(
        accounts.find("a@example.com").unwrap(),
        Some(first.clone()),
        "nothing was changed"
    );
    assert!(
        accounts
            .audit_log()
            .rows(None, 10)
            .unwrap()
            .iter()
            .all(|line| line.act != "account.suspend")
    );
    let second = admin("b@example.com", Some("another long password"));
    assert_eq!(suspend(&first).unwrap(), CloseAccountOutcome::Done);
    assert_eq!(
        suspend(&second).unwrap(),
        CloseAccountOutcome::LastAdministrator
    );
    // An administrator who has only a key can be suspended, but not as the last one.
    assert_eq!(suspend(&by_key).unwrap(), CloseAccountOutcome::Done);
    // A person on the machine itself can undo the change, so they may make it.
    assert!(
        accounts
            .with_actor(&holder_of(&by_key), NOW)
            .set_status(&second.id, AccountStatus::Suspended)
            .unwrap()
    );
    assert_eq!(
        suspend(&by_key).unwrap(),
        CloseAccountOutcome::LastAdministrator
    );
    let resumed = accounts
        .with_actor(&holder_of(&by_key), NOW)
        .set_status_remotely(&first.id, AccountStatus::Active);
    assert_eq!(resumed.unwrap(), CloseAccountOutcome::Done);
}

#[test]
fn an_invitation_that_is_withdrawn_opens_nothing() {
    let (_folder, accounts) = world();
    let by = Actor {
        actor: "uid 0".into(),
        address: "command line".into(),
    };
    let acting = accounts.with_actor(&by, NOW);
    let codes = acting.create_invites(2, HOUR).unwrap();
    let good = invite::hash_code(&codes[0]);
    let used = SignUpTerms {
        invite: Some(&good),
        ..SignUpTerms::default()
    };
    assert_eq!(open(&accounts, "a@example.com", &used), Done);
    let states = || {
        let mut all = accounts.invitations().list(None, 100).unwrap();
        all.sort_by_key(|invite| invite.used_by.is_none());
        all.into_iter()
            .map(|invite| (invite.state(NOW), invite.id))
            .collect::<Vec<_>>()
    };
    let [(InviteState::Used, spent), (InviteState::Open, other)] = &states()[..] else {
        panic!("{:?}", states())
    };
    for no_such in [
        spent.as_str(),
        "inv_",
        "",
        &other[4..],
        &other[..19],
        &format!("{other}0"),
        "inv_00000000000000zz",
        "inv_+000000000000000",
    ] {
        assert!(!acting.revoke_invite(no_such).unwrap(), "{no_such}");
    }
    assert!(
        !accounts
            .with_actor(&by, NOW + HOUR)
            .revoke_invite(other)
            .unwrap(),
        "it has expired by then"
    );
    assert!(acting.revoke_invite(other).unwrap());
    assert!(!acting.revoke_invite(other).unwrap(), "twice");
    assert_eq!(states()[1].0, InviteState::Withdrawn);
    let hash = invite::hash_code(&codes[1]);
    let withdrawn = SignUpTerms {
        invite: Some(&hash),
        ..SignUpTerms::default()
    };
    assert_eq!(open(&accounts, "b@example.com", &withdrawn), NoInvite);
    let log: Vec<_> = accounts
        .audit_log()
        .rows(None, 10)
        .unwrap()
        .into_iter()
        .map(|line| (line.act, line.object))
        .collect();
    assert_eq!(log[0], ("invite.withdraw".to_owned(), other.clone()));
    assert_eq!(log.len(), 2, "and the making: {log:?}");
    // The code works in place of the id, and the log does not contain it.
    let code = acting.create_invites(1, HOUR).unwrap().remove(0);
    assert!(acting.revoke_invite(&format!(" {code}\n")).unwrap());
    assert!(
        accounts
            .audit_log()
            .rows(None, 1)
            .unwrap()
            .iter()
            .all(|line| line.object.starts_with("inv_"))
    );
}

#[test]
fn a_thousand_scripted_sign_ups_get_no_more_than_the_budget() {
    let (_folder, accounts) = world();
    let terms = SignUpTerms {
        budget: Some((Micro::new(300 * 10), NOW - HOUR)),
        one_per_mailbox: true,
        ..SignUpTerms::default()
    };
    let spelled = |index: usize| match index % 4 {
        0 => format!("script{index}@example.com"),
        1 => format!("one.mailbox+{index}@gmail.com"),
        2 => format!("onemailbox+x{index}@googlemail.com"),
        _ => format!("script{index}@example.net"),
    };
    let outcomes: Vec<_> = (0..1_000)
        .map(|index| open(&accounts, &spelled(index), &terms))
        .collect();
    assert_eq!(
        outcomes.iter().filter(|outcome| **outcome == Done).count(),
        10
    );
    assert!(outcomes.contains(&EmailTaken) && outcomes.contains(&BudgetSpent));
    let accounts = accounts.directory().list().unwrap();
    assert_eq!(accounts.len(), 10, "nobody else got in");
    let gmail: Vec<_> = accounts
        .iter()
        .filter(|account| account.email.contains("mail.com"))
        .collect();
    assert_eq!(gmail.len(), 1, "one mailbox, one account: {gmail:?}");
}
