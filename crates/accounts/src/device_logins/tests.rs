//! Tests of logins of programs with a real file.

use super::*;
use crate::db::AppDb;
use crate::db::key_changes::{ChangeCursor, KeyChange};
use crate::membership::OrganisationRole;
use crate::organisations::tests::{by, open};
use crate::{AccountStatus, Accounts, AuthError, MemberAuthority, MemberEdit, Principal};
use credits::limits::{Period, SpendLimit};
use credits::money::Micro;
use std::sync::Barrier;
use std::thread;
use tempfile::TempDir;

const NOW: i64 = 1_800_000_000_000;
const MINUTE: i64 = 60_000;
const DAY: i64 = 86_400_000;

struct World {
    _folder: TempDir,
    accounts: Accounts,
    ann: String,
}

fn world() -> World {
    let folder = tempfile::tempdir().unwrap();
    let accounts = Accounts::open(folder.path()).unwrap();
    let ann = open(&accounts, "ann@example.com");
    World {
        _folder: folder,
        accounts,
        ann,
    }
}

impl World {
    fn request(&self, now_ms: i64) -> NewDeviceRequest {
        let logins = self.accounts.device_logins();
        logins
            .request("claude-code/2.1", "192.0.2.7", now_ms)
            .unwrap()
    }

    fn approve_for(
        &self,
        person: &str,
        holder: KeyHolder<'_>,
        user_code: &str,
        now_ms: i64,
    ) -> Result<bool, AccountError> {
        let by = by(person);
        let acting = self.accounts.with_actor(&by, now_ms);
        acting.approve_login(user_code, holder)
    }

    fn approve(&self, user_code: &str, now_ms: i64) -> bool {
        let holder = KeyHolder {
            account: &self.ann,
            member: None,
        };
        self.approve_for(&self.ann, holder, user_code, now_ms)
            .unwrap()
    }

    fn refuse(&self, user_code: &str, now_ms: i64) -> bool {
        let by = by(&self.ann);
        let acting = self.accounts.with_actor(&by, now_ms);
        acting.refuse_login(user_code).unwrap()
    }

    fn poll(&self, request: &NewDeviceRequest, now_ms: i64) -> DevicePoll {
        let logins = self.accounts.device_logins();
        logins.poll(&request.device_code, now_ms).unwrap()
    }

    fn login(&self) -> LoginTokens {
        let request = self.request(NOW);
        assert!(self.approve(&request.user_code, NOW));
        tokens(self.poll(&request, NOW))
    }

    fn refresh(&self, token: &str, now_ms: i64) -> LoginRefresh {
        let logins = self.accounts.device_logins();
        logins.refresh(token, "192.0.2.7", now_ms).unwrap()
    }

    fn refreshed(&self, token: &str, now_ms: i64) -> LoginTokens {
        match self.refresh(token, now_ms) {
            LoginRefresh::Done(tokens) => tokens,
            other => panic!("{}", name(&other)),
        }
    }

    fn authenticate(&self, key: &str, now_ms: i64) -> Result<Principal, AuthError> {
        self.accounts.api_keys().authenticate(key, now_ms)
    }

    fn works(&self, tokens: &LoginTokens, now_ms: i64) -> bool {
        self.authenticate(&tokens.access_token, now_ms).is_ok()
    }

    fn acts(&self) -> Vec<String> {
        let rows = self.accounts.audit_log().rows(None, 100).unwrap();
        rows.into_iter().map(|row| row.act).collect()
    }
}

fn tokens(poll: DevicePoll) -> LoginTokens {
    match poll {
        DevicePoll::Approved(tokens) => tokens,
        other => panic!("{}", poll_name(&other)),
    }
}

fn poll_name(poll: &DevicePoll) -> &'static str {
    match poll {
        DevicePoll::Unknown => "unknown",
        DevicePoll::Open => "open",
        DevicePoll::Refused => "refused",
        DevicePoll::Expired => "expired",
        DevicePoll::Approved(_) => "approved",
    }
}

fn name(refresh: &LoginRefresh) -> &'static str {
    match refresh {
        LoginRefresh::Done(_) => "done",
        LoginRefresh::Invalid => "invalid",
        LoginRefresh::Reused(_) => "reused",
        LoginRefresh::TooMany => "too many",
    }
}

#[test]
fn a_file_of_before_keeps_its_keys_which_are_no_logins() {
    let folder = tempfile::tempdir().unwrap();
    let old = AppDb::create_old_version(folder.path(), 19);
    let key = key::generate().unwrap();
    let sql = "INSERT INTO account(id, email, admin, status, created_at_ms)
                 VALUES('a', 'a@example.com', 0, 'active', 1)";
    old.execute(sql, []).unwrap();
    let sql = "INSERT INTO api_key(id, account, name, hash, shown, status, created_at_ms)
                 VALUES('key_1', 'a', 'laptop', ?1, 'gw-sk-…', 'active', 1)";
    old.execute(sql, [key.hash]).unwrap();
    drop(old);
    let accounts = Accounts::open(folder.path()).unwrap();
    let keys = accounts.api_keys();
    assert_eq!(&*keys.authenticate(&key.text, NOW).unwrap().key_id, "key_1");
    assert!(!keys.keys("a").unwrap()[0].is_login);
}

#[test]
fn a_program_gets_its_login_once_a_person_approved_it_and_only_once() {
    let world = world();
    let request = world.request(NOW);
    assert_eq!(request.device_code.len(), 64);
    let code = &request.user_code;
    assert!(code.len() == 9 && code.as_bytes()[4] == b'-');
    let letters = code.bytes().filter(|letter| *letter != b'-');
    assert!(letters.into_iter().all(|it| CODE_LETTERS.contains(&it)));
    assert_eq!(poll_name(&world.poll(&request, NOW)), "open");

    let typed = code.to_lowercase().replace('-', " ");
    let shown = world.accounts.device_logins().open_request(&typed, NOW);
    let shown = shown.unwrap().unwrap();
    assert_eq!((&shown.user_code, &*shown.address), (code, "192.0.2.7"));
    assert!(world.approve(&typed, NOW));
    assert!(!world.approve(code, NOW), "a code is approved once");
    assert!(!world.refuse(code, NOW));

    let login = tokens(world.poll(&request, NOW + 5_000));
    assert_eq!(login.email, "ann@example.com");
    assert_eq!(poll_name(&world.poll(&request, NOW + 5_000)), "unknown");
    let principal = world
        .authenticate(&login.access_token, NOW + 5_000)
        .unwrap();
    assert_eq!(*principal.account_id, *world.ann);
    assert_eq!(*principal.key_id, *login.key_id);
    assert_eq!(principal.settings.scope, Some(KeyScope::Inference));
    let ends = NOW + 5_000 + LOGIN_TOKEN_MS;
    assert!(world.works(&login, ends - 1) && !world.works(&login, ends));

    let keys = world.accounts.api_keys().keys(&world.ann).unwrap();
    let [key] = &keys[..] else { panic!("{keys:?}") };
    assert!(key.is_login && key.name == "claude-code/2.1");
    assert_eq!(key.shown, key::shown_text(&login.access_token));
    assert_eq!(world.acts(), ["login.approve"]);
    assert!(
        world
            .accounts
            .audit_log()
            .verify()
            .unwrap()
            .findings
            .is_empty()
    );
}

#[test]
fn a_request_that_is_refused_expired_or_guessed_gives_nothing() {
    let world = world();
    let refused = world.request(NOW);
    assert!(world.refuse(&refused.user_code, NOW) && !world.approve(&refused.user_code, NOW));
    assert_eq!(poll_name(&world.poll(&refused, NOW)), "refused");
    assert_eq!(world.acts(), ["login.refuse"]);

    let late = world.request(NOW);
    let end = NOW + DEVICE_REQUEST_MS;
    let is_open = |request: &NewDeviceRequest, at: i64| {
        let logins = world.accounts.device_logins();
        logins
            .open_request(&request.user_code, at)
            .unwrap()
            .is_some()
    };
    assert!(!is_open(&refused, NOW) && is_open(&late, end - 1) && !is_open(&late, end));
    assert!(!world.approve(&late.user_code, end) && !world.refuse(&late.user_code, end));
    assert_eq!(poll_name(&world.poll(&late, end)), "expired");
    // Approved in time and fetched too late.
    let unfetched = world.request(NOW);
    assert!(world.approve(&unfetched.user_code, end - 1));
    assert_eq!(poll_name(&world.poll(&unfetched, end)), "expired");
    let keys = world.accounts.api_keys().keys(&world.ann).unwrap();
    assert!(keys[0].settings.has_expired(end), "nor does its key stay");

    let open = world.request(NOW);
    for guess in ["", "BCDF", "BCDFGHJKL", "AEIOUAEI", "BCDF-GHJ'", "ÄÖÜBCDFG"] {
        assert_eq!(parse_user_code(guess), None, "{guess}");
        assert!(!world.approve(guess, NOW));
    }
    for code in ["", "0", &open.user_code, &"0".repeat(64)] {
        let poll = world.accounts.device_logins().poll(code, NOW).unwrap();
        assert_eq!(poll_name(&poll), "unknown", "{code}");
    }
}

#[test]
fn requests_have_a_limit_and_end() {
    let world = world();
    let rows = world.accounts.database().device_logins();
    let insert = |number: u8, at: i64, code: &str| {
        let request = DeviceRequest {
            user_code: code.to_owned(),
            client: String::new(),
            address: String::new(),
            created_at_ms: at,
            expires_at_ms: at + DEVICE_REQUEST_MS,
        };
        rows.insert_request(&[number; 32], &request, 2).unwrap()
    };
    let is_there = |number: u8| rows.answer(&[number; 32], NOW).unwrap().is_some();
    assert!(insert(1, NOW, "BBBBBBBB"));
    assert!(!insert(9, NOW, "BBBBBBBB"), "the code is another's");
    assert!(insert(2, NOW + 1, "CCCCCCCC") && is_there(1));
    assert!(insert(3, NOW + 2, "DDDDDDDD"));
    assert!(
        !is_there(1) && is_there(2) && is_there(3),
        "the oldest ends"
    );
    let later = NOW + 2 + 2 * DEVICE_REQUEST_MS;
    assert!(insert(4, later, "BBBBBBBB"));
    assert!(!is_there(2) && !is_there(3), "old ones are deleted");
}

#[test]
fn one_request_too_many_ends_the_oldest_of_all() {
    let world = world();
    let (oldest, second) = (world.request(NOW), world.request(NOW + 1));
    let fill =
        "WITH RECURSIVE number(n) AS (SELECT 3 UNION ALL SELECT n + 1 FROM number WHERE n < ?3)
                INSERT INTO device_request(
                  hash, user_code, client, address, created_at_ms, expires_at_ms, status)
                SELECT randomblob(32), 'code ' || n, '', '', ?1, ?2, 'open' FROM number";
    let values = [NOW + 2, NOW + 2 + DEVICE_REQUEST_MS, MAX_REQUESTS];
    let database = world.accounts.database();
    let filled = database.with_writer(|writer| writer.execute(fill, values).unwrap());
    assert_eq!(filled, 9_998);
    assert_eq!(poll_name(&world.poll(&oldest, NOW)), "open");
    let newest = world.request(NOW + 3);
    assert_eq!(poll_name(&world.poll(&oldest, NOW)), "unknown");
    for request in [&second, &newest] {
        assert_eq!(poll_name(&world.poll(request, NOW)), "open");
    }
}

/// Counts the successes of eight who try at the same time.
fn successes_at_once(attempt: impl Fn() -> bool + Sync) -> usize {
    let start = Barrier::new(8);
    let attempt = || {
        start.wait();
        attempt()
    };
    thread::scope(|scope| {
        let attempts = [(); 8].map(|()| scope.spawn(attempt));
        let attempts = attempts.map(|attempt| attempt.join().unwrap());
        attempts
            .into_iter()
            .filter(|is_success| *is_success)
            .count()
    })
}

#[test]
fn of_all_who_approve_a_code_or_fetch_its_login_at_once_one_succeeds() {
    let world = world();
    for _ in 0..4 {
        let request = world.request(NOW);
        let approve = || world.approve(&request.user_code, NOW);
        assert_eq!(successes_at_once(approve), 1);
        let fetch = || poll_name(&world.poll(&request, NOW)) == "approved";
        assert_eq!(successes_at_once(fetch), 1);
    }
    let keys = world.accounts.api_keys().keys(&world.ann).unwrap();
    assert_eq!((keys.len(), world.acts().len()), (4, 4));
}

#[test]
fn a_refresh_replaces_both_tokens_and_the_key_stays_the_same() {
    let world = world();
    let first = world.login();
    let keys = world.accounts.api_keys();
    let limit = SpendLimit {
        credits: Micro::new(5_000_000),
        period: Period::Day,
    };
    let limited = |settings: &mut KeySettings| settings.spend_limit = Some(limit);
    keys.change_key(None, &first.key_id, limited).unwrap();

    let at = NOW + 50 * MINUTE;
    let second = world.refreshed(&first.refresh_token, at);
    assert_eq!(second.key_id, first.key_id);
    assert!(second.access_token != first.access_token);
    assert!(second.refresh_token != first.refresh_token);
    // What runs with the old text ends well.
    assert!(world.works(&first, at + MINUTE - 1) && !world.works(&first, at + MINUTE));
    let principal = world.authenticate(&second.access_token, at).unwrap();
    assert_eq!(*principal.key_id, *first.key_id);
    assert_eq!(principal.settings.spend_limit, Some(limit));

    // A program that did not receive the response gets the same login again, for a minute.
    let again = world.refreshed(&first.refresh_token, at + MINUTE);
    assert_eq!(again.refresh_token, second.refresh_token);
    assert!(world.works(&again, at + MINUTE) && world.works(&second, at + MINUTE));
    let third = world.refreshed(&second.refresh_token, at + 60 * MINUTE);
    assert!(world.works(&third, at + 60 * MINUTE));
    assert_eq!(keys.keys(&world.ann).unwrap().len(), 1, "one login");
    // The row of the first text is gone; those that edges may still have are not.
    let count = "SELECT count(*) FROM login_token";
    let count = || -> i64 {
        let database = world.accounts.database();
        database.with_writer(|writer| writer.query_row(count, [], |row| row.get(0)).unwrap())
    };
    assert_eq!(count(), 3);
}

#[test]
fn a_token_that_is_used_again_ends_the_login() {
    for is_stolen_before in [true, false] {
        let world = world();
        let first = world.login();
        let at = NOW + 50 * MINUTE;
        let second = world.refreshed(&first.refresh_token, at);
        if is_stolen_before {
            world.refreshed(&second.refresh_token, at + MINUTE);
        }
        // Too late by a millisecond, or no longer the one before.
        let again = world.refresh(&first.refresh_token, at + MINUTE + 1);
        assert!(matches!(&again, LoginRefresh::Reused(key) if *key == first.key_id));
        assert!(!world.works(&second, at + MINUTE + 1));
        for token in [&first, &second] {
            let refresh = world.refresh(&token.refresh_token, at + MINUTE + 1);
            assert_eq!(name(&refresh), "invalid");
        }
        assert_eq!(world.acts(), ["login.reuse", "login.approve"]);
    }
}

#[test]
fn one_refresh_token_gives_only_so_many_tokens() {
    let world = world();
    let first = world.login();
    let gave = (0..20).map(|_| world.refresh(&first.refresh_token, NOW + 1));
    let gave: Vec<_> = gave.map(|refresh| name(&refresh)).collect();
    assert_eq!(gave[..15], ["done"; 15]);
    assert_eq!(gave[15..], ["too many"; 5]);
}

#[test]
fn what_is_no_refresh_token_is_refused_and_ends_nothing() {
    let world = world();
    let login = world.login();
    let family = family_of(&login.refresh_token).unwrap().to_owned();
    let forged = [
        String::new(),
        "gw-rt-".into(),
        login.access_token.clone(),
        login.refresh_token.to_uppercase(),
        format!("{}0", login.refresh_token),
        format!("{REFRESH_PREFIX}{}{family}", "0".repeat(64)),
        format!("{REFRESH_PREFIX}{}{}", "ä".repeat(32), family),
    ];
    for token in &forged {
        assert_eq!(name(&world.refresh(token, NOW)), "invalid", "{token}");
    }
    assert!(world.works(&login, NOW));
}

#[test]
fn a_login_ends_after_thirty_days_without_a_refresh_or_when_its_holder_says() {
    let world = world();
    let first = world.login();
    let second = world.refreshed(&first.refresh_token, NOW + 30 * DAY - 1);
    let end = NOW + 60 * DAY - 1;
    let keys = world.accounts.api_keys();
    let key = || keys.key(None, &first.key_id).unwrap().unwrap().1;
    assert_eq!(
        key().settings.expires_at_ms,
        Some(end),
        "each moves the end"
    );
    assert_eq!(name(&world.refresh(&second.refresh_token, end)), "invalid");
    let never = |settings: &mut KeySettings| settings.expires_at_ms = None;
    keys.change_key(None, &first.key_id, never).unwrap();
    assert_eq!(name(&world.refresh(&second.refresh_token, end)), "invalid");

    let soon = |settings: &mut KeySettings| settings.expires_at_ms = Some(end - DAY);
    keys.change_key(None, &first.key_id, soon).unwrap();
    let third = world.refreshed(&second.refresh_token, end - DAY - 1);
    assert_eq!(key().settings.expires_at_ms, Some(end - DAY), "it stays");
    assert!(!world.works(&third, end - DAY));
    let refresh = world.refresh(&third.refresh_token, end - DAY);
    assert_eq!(name(&refresh), "invalid");
}

/// A way to end or to stop a login, by the ids of its key and account.
type End = fn(&Accounts, &str, &str);

#[test]
fn key_and_refresh_token_end_together() {
    let ends: [(&str, End); 4] = [
        ("revoked", |accounts, key, _| {
            assert!(accounts.api_keys().revoke_key(None, key, NOW).unwrap());
        }),
        ("disabled", |accounts, key, _| {
            assert!(accounts.api_keys().set_key_enabled(key, false).unwrap());
        }),
        ("suspended", |accounts, _, account| {
            let by = by("uid 0");
            let acting = accounts.with_actor(&by, NOW);
            assert!(
                acting
                    .set_status(account, AccountStatus::Suspended)
                    .unwrap()
            );
        }),
        ("deleted", |accounts, _, account| {
            let by = by("uid 0");
            let acting = accounts.with_actor(&by, NOW);
            acting.delete_account(account).unwrap();
        }),
    ];
    for (way, end) in ends {
        let world = world();
        let login = world.login();
        let unfetched = world.request(NOW);
        assert!(world.approve(&unfetched.user_code, NOW));
        end(&world.accounts, &login.key_id, &world.ann);
        assert!(!world.works(&login, NOW), "{way}");
        assert_eq!(
            name(&world.refresh(&login.refresh_token, NOW)),
            "invalid",
            "{way}"
        );
        if way == "suspended" || way == "deleted" {
            assert_eq!(poll_name(&world.poll(&unfetched, NOW)), "refused", "{way}");
        }
    }
}

#[test]
fn a_login_is_of_a_member_and_ends_with_the_membership() {
    let world = world();
    let accounts = &world.accounts;
    let (ann, operator) = (by(&world.ann), by("uid 0"));
    let created = accounts.with_actor(&ann, NOW);
    let organisation = created.create_organisation("Acme", &world.ann).unwrap().id;
    let bob = open(accounts, "bob@example.com");
    let acting = accounts.with_actor(&operator, NOW);
    acting
        .add_member(&organisation, &bob, OrganisationRole::Member)
        .unwrap();
    let holder = KeyHolder {
        account: &organisation,
        member: Some(&bob),
    };
    let request = world.request(NOW);
    let code = &request.user_code;
    assert!(world.approve_for(&bob, holder, code, NOW).unwrap());
    let login = tokens(world.poll(&request, NOW));
    let principal = world.authenticate(&login.access_token, NOW).unwrap();
    assert_eq!(*principal.account_id, *organisation);
    let id = crate::membership_id(&organisation, &bob);
    assert_eq!(*principal.member.unwrap().id, *id, "budgets act");

    // Whoever takes the keys over does not get another person's program.
    let removed = acting.change_member(
        MemberAuthority::Operator,
        &organisation,
        &bob,
        MemberEdit::Remove,
        Some(&world.ann),
    );
    removed.unwrap();
    assert!(!world.works(&login, NOW));
    assert_eq!(name(&world.refresh(&login.refresh_token, NOW)), "invalid");
    let request = world.request(NOW);
    let refused = world.approve_for(&bob, holder, &request.user_code, NOW);
    assert!(matches!(refused, Err(AccountError::NotAllowed)));
    assert_eq!(poll_name(&world.poll(&request, NOW)), "open", "no answer");
}

#[test]
fn a_program_can_end_its_login_and_nobody_rotates_it() {
    let world = world();
    let logins = world.accounts.device_logins();
    let [one, two] = [(); 2].map(|()| world.login());
    let rotated = world
        .accounts
        .api_keys()
        .rotate_key(None, &one.key_id, 0, NOW);
    assert!(matches!(rotated, Err(AccountError::IsLogin)));
    assert_eq!(logins.revoke("gw-sk-unknown", NOW).unwrap(), None);
    for (token, login) in [(&one.access_token, &one), (&two.refresh_token, &two)] {
        assert!(world.works(login, NOW));
        assert_eq!(
            logins.revoke(token, NOW).unwrap(),
            Some(login.key_id.clone())
        );
        assert!(!world.works(login, NOW));
    }
}

#[test]
fn edges_learn_of_each_text_with_its_end() {
    let world = world();
    let first = world.login();
    let rows = world.accounts.database().keys();
    let changes = |after: &ChangeCursor| rows.key_changes(after, 10).unwrap();
    let end = |change: &KeyChange| {
        let settings = KeySettings::decode(&change.settings).unwrap();
        settings.expires_at_ms.unwrap()
    };
    let found = |changes: &[KeyChange], login: &LoginTokens| {
        let hash = key::hash(&login.access_token);
        changes.iter().find(|change| change.hash == hash).cloned()
    };
    let before = changes(&ChangeCursor::default());
    let change = found(&before, &first).unwrap();
    assert_eq!(end(&change), NOW + LOGIN_TOKEN_MS);
    assert_eq!(change.token_ends_at_ms, Some(NOW + LOGIN_TOKEN_MS));
    let second = world.refreshed(&first.refresh_token, NOW + MINUTE);
    let now = changes(&before.last().unwrap().at);
    assert_eq!(end(&found(&now, &first).unwrap()), NOW + 2 * MINUTE);
    let newest = found(&now, &second).unwrap();
    assert_eq!(end(&newest), NOW + MINUTE + LOGIN_TOKEN_MS);
    world
        .accounts
        .api_keys()
        .revoke_key(None, &first.key_id, NOW)
        .unwrap();
    let revoked = changes(&newest.at);
    assert_eq!(revoked.len(), 3, "its own row and two texts");
    assert!(revoked.iter().all(|change| change.status == "revoked"));
    assert_eq!(rows.key_change(&first.key_id).unwrap().len(), 3);
}
