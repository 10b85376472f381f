//! Tests of moved keys with a real file.

use crate::db::audit::{AuditRow, OutcomeKind};
use crate::limits::MAX_LIVE_KEYS;
use crate::organisations::tests::{by, open};
use crate::{
    AccountError, AccountStatus, Accounts, ApiKeyStatus, AuthError, KeyHolder, KeyScope,
    KeySettings, MemberAuthority, MemberEdit, NewAccount, NewKey, OrganisationRole, Role,
    membership_id,
};
use credits::money::Micro;
use tempfile::TempDir;

const NOW: i64 = 1_800_000_000_000;

/// Two people, and an organisation that the first one owns.
struct World {
    _folder: TempDir,
    accounts: Accounts,
    ann: String,
    bob: String,
    organisation: String,
}

fn world() -> World {
    let folder = tempfile::tempdir().unwrap();
    let accounts = Accounts::open(folder.path()).unwrap();
    let (ann, bob) = (
        open(&accounts, "ann@example.com"),
        open(&accounts, "bob@example.com"),
    );
    let actor = by(&ann);
    let acting = accounts.with_actor(&actor, NOW);
    let organisation = acting.create_organisation("Acme", &ann).unwrap().id;
    World {
        _folder: folder,
        accounts,
        ann,
        bob,
        organisation,
    }
}

impl World {
    fn key(&self, account: &str, settings: &KeySettings) -> NewKey {
        let keys = self.accounts.api_keys();
        keys.create_key_with(account, "laptop", settings, NOW)
            .unwrap()
    }

    fn move_key(&self, key: &str, to: &str, member: Option<&str>) -> Result<String, AccountError> {
        let actor = by("uid 0");
        let acting = self.accounts.with_actor(&actor, NOW);
        acting.move_key(key, to, member)
    }

    /// Returns the account, the id and the member of a key's text.
    fn payer(&self, key: &NewKey) -> (String, String, Option<String>) {
        let principal = self
            .accounts
            .api_keys()
            .authenticate(&key.key, NOW)
            .unwrap();
        let member = principal.member_id().map(ToString::to_string);
        (
            principal.account_id.to_string(),
            principal.key_id.to_string(),
            member,
        )
    }

    fn refused(&self, key: &str, to: &str, member: Option<&str>) -> String {
        match self.move_key(key, to, member).unwrap_err() {
            AccountError::KeyMove(refusal) => format!("{refusal:?}"),
            other => format!("{other:?}"),
        }
    }
}

#[test]
fn a_moved_key_is_of_the_other_account_under_a_new_id_with_all_that_was_set() {
    let world = world();
    let settings = KeySettings {
        spend_limit: Some("10/day".parse().unwrap()),
        scope: Some(KeyScope::Inference),
        expires_at_ms: Some(NOW + 1_000),
        ..KeySettings::default()
    };
    let key = world.key(&world.ann, &settings);
    let keys = world.accounts.api_keys();
    let moved = world.move_key(&key.key_id, &world.bob, None).unwrap();
    assert_eq!(world.payer(&key), (world.bob.clone(), moved.clone(), None));
    let (_, new) = keys.key(Some(&world.bob), &moved).unwrap().unwrap();
    let (_, old) = keys.key(Some(&world.ann), &key.key_id).unwrap().unwrap();
    assert_eq!((&new.name, &new.shown), (&old.name, &old.shown));
    assert_eq!((new.settings, new.status), (settings, ApiKeyStatus::Active));
    assert_eq!(old.status, ApiKeyStatus::Revoked);
    // Its limits count anew from there on, and so do two moves back.
    let again = world.move_key(&moved, &world.organisation, Some(&world.ann));
    let member = membership_id(&world.organisation, &world.ann);
    assert_eq!(
        world.payer(&key),
        (world.organisation.clone(), again.unwrap(), Some(member))
    );
    let (_, id, _) = world.payer(&key);
    let back = world.move_key(&id, &world.ann, None).unwrap();
    assert_eq!(world.payer(&key), (world.ann.clone(), back.clone(), None));
    let ids = [key.key_id.clone(), moved, id, back];
    for (at, id) in ids.iter().enumerate() {
        assert!(!ids[at + 1..].contains(id), "{ids:?}");
    }
    for (id, to) in [(&ids[0], &world.bob), (&ids[2], &world.ann)] {
        assert_eq!(world.refused(id, to, None), "NoKey");
    }
    let log = world.accounts.audit_log();
    let lines = log.rows(None, 100).unwrap();
    let moves: Vec<_> = lines.iter().filter(|row| row.act == "key.move").collect();
    let done = |row: &&&AuditRow| row.outcome.kind == OutcomeKind::Done;
    // Each move has a line under either id, so that both accounts have it.
    assert_eq!(moves.iter().filter(done).count(), 6, "{moves:?}");
    assert_eq!(moves.len(), 8, "and two were refused");
    assert_eq!(log.verify().unwrap().findings, []);
}

#[test]
fn a_disabled_key_stays_disabled_and_of_two_who_move_a_key_one_does() {
    let world = world();
    let key = world.key(&world.ann, &KeySettings::default());
    let keys = world.accounts.api_keys();
    keys.set_key_enabled(&key.key_id, false).unwrap();
    let id = world.move_key(&key.key_id, &world.bob, None).unwrap();
    let status = keys.authenticate(&key.key, NOW).unwrap_err();
    assert!(matches!(&status, AuthError::KeyDisabled(it) if *it.account_id == *world.bob));
    keys.set_key_enabled(&id, true).unwrap();
    let operators = [&world.ann, &world.organisation];
    let moved: Vec<_> = std::thread::scope(|scope| {
        let operators = operators.map(|to| {
            let member = (to == &world.organisation).then_some(&*world.ann);
            let (world, id) = (&world, &id);
            scope.spawn(move || world.move_key(id, to, member))
        });
        operators
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let done: Vec<_> = moved.iter().flatten().collect();
    assert_eq!(done.len(), 1, "{moved:?}");
    assert_eq!(world.payer(&key).1, *done[0]);
}

#[test]
fn in_an_organisation_it_is_the_key_of_a_member_who_may_have_keys() {
    let world = world();
    let acme = &world.organisation;
    let key = || world.key(&world.bob, &KeySettings::default()).key_id;
    assert_eq!(world.refused(&key(), acme, None), "NoMember", "no member");
    let operator = by("uid 0");
    let acting = world.accounts.with_actor(&operator, NOW);
    let billing = OrganisationRole::Billing;
    acting.add_member(acme, &world.bob, billing).unwrap();
    assert_eq!(world.refused(&key(), acme, None), "NoMember", "billing");
    let role = MemberEdit::Role(OrganisationRole::Member);
    let change = |edit| {
        let operator = MemberAuthority::Operator;
        acting.change_member(operator, acme, &world.bob, edit, None)
    };
    change(role).unwrap();
    change(MemberEdit::Budget(Some("5/day".parse().unwrap()))).unwrap();
    let moved = world.key(&world.bob, &KeySettings::default());
    world.move_key(&moved.key_id, acme, None).unwrap();
    let principal = world.accounts.api_keys().authenticate(&moved.key, NOW);
    let member = principal.unwrap().member.unwrap();
    assert_eq!(*member.id, *membership_id(acme, &world.bob));
    let budget = member.budget.unwrap().credits;
    assert_eq!(budget, "5".parse::<Micro>().unwrap(), "judged by it");
    let named = world.key(&world.bob, &KeySettings::default());
    world
        .move_key(&named.key_id, acme, Some(&world.ann))
        .unwrap();
    let member = membership_id(acme, &world.ann);
    assert_eq!(world.payer(&named).2, Some(member));
    // An operator's key of an organisation is nobody's.
    let nobodys = world.key(acme, &KeySettings::default()).key_id;
    let acting = world.accounts.with_actor(&operator, NOW);
    let other = acting.create_organisation("Other", &world.ann).unwrap().id;
    assert_eq!(world.refused(&nobodys, &other, None), "NoMember");
    let (_, id, _) = world.payer(&moved);
    assert_eq!(world.refused(&id, &other, None), "NoMember", "bob's");
}

#[test]
fn what_cannot_move_stays_and_the_reason_is_said_and_logged() {
    let world = world();
    let key = |settings: &KeySettings| world.key(&world.ann, settings).key_id;
    let (plain, member) = (KeySettings::default(), Some(&*world.ann));
    let expired = KeySettings {
        expires_at_ms: Some(NOW),
        ..KeySettings::default()
    };
    let playground = KeySettings {
        playground_session: Some("session".to_owned()),
        ..KeySettings::default()
    };
    let revoked = key(&plain);
    let keys = world.accounts.api_keys();
    keys.revoke_key(None, &revoked, NOW).unwrap();
    let account = |email: &str, role| {
        let new = NewAccount {
            role,
            ..NewAccount::new(email)
        };
        world.accounts.create_account(&new, NOW).unwrap().id
    };
    let root = account("root@example.com", Role::Admin);
    let [suspended, deleted, full] =
        ["s", "d", "f"].map(|name| account(&format!("{name}@example.com"), Role::Viewer));
    let status = AccountStatus::Suspended;
    world.accounts.set_status(&suspended, status).unwrap();
    world.accounts.delete(&by(&deleted), NOW).unwrap();
    for _ in 0..MAX_LIVE_KEYS {
        world.key(&full, &plain);
    }
    let device_logins = world.accounts.device_logins();
    let request = device_logins
        .request("claude-code", "192.0.2.7", NOW)
        .unwrap();
    let holder = KeyHolder {
        account: &world.ann,
        member: None,
    };
    let ann = by(&world.ann);
    let acting = world.accounts.with_actor(&ann, NOW);
    assert!(acting.approve_login(&request.user_code, holder).unwrap());
    let all = keys.keys(&world.ann).unwrap();
    let login = all.iter().find(|key| key.is_login).unwrap();
    let bob = &world.bob;
    let cases = [
        (revoked, bob, None, "NoKey"),
        ("key_none".to_owned(), bob, None, "NoKey"),
        (key(&expired), bob, None, "Expired"),
        (key(&playground), bob, None, "StaysWithPerson"),
        (login.id.clone(), bob, None, "StaysWithPerson"),
        (key(&plain), &world.ann, None, "SameAccount"),
        (key(&plain), &suspended, None, "ClosedAccount"),
        (key(&plain), &deleted, None, "ClosedAccount"),
        (key(&plain), &root, None, "Administrator"),
        (key(&plain), bob, member, "NoOrganisation"),
        (key(&plain), &full, None, "TooManyKeys"),
        (key(&plain), &"acct_none".to_owned(), None, "NoAccount"),
    ];
    let before = keys.keys(&world.ann).unwrap();
    for (key, to, member, expected) in &cases {
        assert_eq!(&world.refused(key, to, *member), expected);
    }
    assert_eq!(keys.keys(&world.ann).unwrap(), before);
    let lines = world.accounts.audit_log().rows(None, 100).unwrap();
    let refused = lines.iter().filter(|row| row.act == "key.move");
    let refused = refused.filter(|row| row.outcome.kind == OutcomeKind::Refused);
    assert_eq!(refused.count(), cases.len());
}
