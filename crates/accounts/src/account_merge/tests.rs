//! Tests of merged accounts with a real file.

use crate::organisations::tests::{by, open};
use crate::{
    AccountError, AccountStatus, Accounts, CloseAccountOutcome, KeyHolder, KeySettings,
    MergeRefusal, MovedParts, NewAccount, NewKey, OrganisationRole, Role,
};
use credits::money::Micro;
use ledger::{BalanceChange, BalanceChangeKind, StoreError};
use tempfile::TempDir;

const NOW: i64 = 1_800_000_000_000;

/// Two people, and the organisations `Old` and `New`, which the first one owns.
struct World {
    _folder: TempDir,
    accounts: Accounts,
    ann: String,
    bob: String,
    old: String,
    new: String,
}

fn world() -> World {
    let folder = tempfile::tempdir().unwrap();
    let accounts = Accounts::open(folder.path()).unwrap();
    let [ann, bob] = ["ann@example.com", "bob@example.com"].map(|email| open(&accounts, email));
    let actor = by(&ann);
    let acting = accounts.with_actor(&actor, NOW);
    let [old, new] = ["Old", "New"].map(|name| acting.create_organisation(name, &ann).unwrap().id);
    World {
        _folder: folder,
        accounts,
        ann,
        bob,
        old,
        new,
    }
}

impl World {
    fn key(&self, account: &str, member: Option<&str>, settings: &KeySettings) -> NewKey {
        let holder = KeyHolder { account, member };
        let keys = self.accounts.api_keys();
        keys.create_key_of(holder, "laptop", settings, NOW).unwrap()
    }

    /// Returns the account and the member of a key's text.
    fn payer(&self, key: &NewKey) -> (String, Option<String>) {
        let keys = self.accounts.api_keys();
        let key_id = keys.authenticate(&key.key, NOW).unwrap().key_id;
        let (account, key) = keys.key(None, &key_id).unwrap().unwrap();
        (account, key.member)
    }

    fn suspend(&self, account: &str) {
        let status = AccountStatus::Suspended;
        assert!(self.accounts.set_status(account, status).unwrap());
    }

    fn add(&self, account: &str, person: &str, role: OrganisationRole) {
        let operator = by("uid 0");
        let acting = self.accounts.with_actor(&operator, NOW);
        acting.add_member(account, person, role).unwrap();
    }

    fn merge(
        &self,
        from: &str,
        to: &str,
        member: Option<&str>,
    ) -> Result<MovedParts, AccountError> {
        let operator = by("uid 0");
        let acting = self.accounts.with_actor(&operator, NOW);
        acting.start_merge(from, to, member)
    }

    fn end(&self, from: &str) -> CloseAccountOutcome {
        let operator = by("uid 0");
        let acting = self.accounts.with_actor(&operator, NOW);
        acting.end_merge(from).unwrap()
    }

    fn refused(&self, from: &str, to: &str, member: Option<&str>) -> String {
        match self.merge(from, to, member).unwrap_err() {
            AccountError::Merge(MergeRefusal::Unfinished(_)) => "Unfinished".to_owned(),
            AccountError::Merge(MergeRefusal::Merged(_)) => "Merged".to_owned(),
            AccountError::Merge(refusal) => format!("{refusal:?}"),
            AccountError::KeyMove(refusal) => format!("{refusal:?}"),
            other => format!("{other:?}"),
        }
    }
}

#[test]
fn members_and_their_keys_move_to_the_other_organisation_and_a_repeat_moves_nothing() {
    let world = world();
    let (plain, bob) = (KeySettings::default(), Some(&*world.bob));
    let admin = OrganisationRole::Admin;
    world.add(&world.old, &world.bob, admin);
    let of_bob = world.key(&world.old, bob, &plain);
    let of_nobody = world.key(&world.old, None, &plain);
    world.suspend(&world.old);
    assert_eq!(world.refused(&world.old, &world.new, None), "NoMember");
    let members = world.accounts.organisations().members(&world.new).unwrap();
    assert_eq!(members.len(), 1, "a refusal moves nothing");

    let ann = Some(&*world.ann);
    let moved = world.merge(&world.old, &world.new, ann).unwrap();
    assert_eq!(
        (moved.members, moved.keys.len()),
        (vec![world.bob.clone()], 2)
    );
    let of = |member: &str| (world.new.clone(), Some(member.to_owned()));
    assert_eq!(world.payer(&of_bob), of(&world.bob), "the own one");
    assert_eq!(world.payer(&of_nobody), of(&world.ann), "the named one's");
    let members = world.accounts.organisations().members(&world.new).unwrap();
    let bob = members.iter().find(|it| it.person == world.bob).unwrap();
    assert_eq!((bob.role, bob.budget), (OrganisationRole::Member, None));
    let again = world.merge(&world.old, &world.new, None).unwrap();
    assert_eq!(again, MovedParts::default());
    let bob = Some(&*world.bob);
    assert_eq!(world.refused(&world.old, &world.new, bob), "Unfinished");
    assert_eq!(world.end(&world.old), CloseAccountOutcome::Done);
    assert_eq!(world.payer(&of_bob), of(&world.bob), "works on");
    let again = world.merge(&world.old, &world.new, None).unwrap();
    assert_eq!(again, MovedParts::default());
}

/// What may change an account that is being merged, and the one that gets everything.
#[test]
fn accounts_stay_as_they_are_until_their_merge_has_ended() {
    let world = world();
    let (bob, ann, new) = (&*world.bob, &*world.ann, &*world.new);
    world.suspend(bob);
    world.merge(bob, new, Some(ann)).unwrap();
    let operator = by("uid 0");
    let acting = world.accounts.with_actor(&operator, NOW);
    let keys = world.accounts.api_keys();
    let holder = KeyHolder {
        account: bob,
        member: None,
    };
    let grant = BalanceChange {
        kind: BalanceChangeKind::Grant,
        reference: "late",
        account: bob,
        amount: Micro::new(1),
        actor: None,
        at_ms: NOW,
    };
    let post = |change: &BalanceChange<'_>| {
        let posted = acting.record_then_post(change, || panic!("not posted"));
        posted.map(drop).map_err(AccountError::from)
    };
    let adjust = BalanceChange {
        kind: BalanceChangeKind::Adjust { reason: "by hand" },
        ..grant
    };
    let kept = BalanceChange {
        account: ann,
        reference: "merge-in:acct_1:1",
        ..grant
    };
    type Attempt<'a> = Box<dyn Fn() -> Result<(), AccountError> + 'a>;
    let attempts: Vec<(&str, Attempt<'_>)> = vec![
        (
            "resume",
            Box::new(|| Ok(acting.set_status(bob, AccountStatus::Active).map(drop)?)),
        ),
        (
            "resume by a page",
            Box::new(|| {
                let active = AccountStatus::Active;
                Ok(acting.set_status_remotely(bob, active).map(drop)?)
            }),
        ),
        (
            "delete",
            Box::new(|| Ok(acting.delete_account(bob).map(drop)?)),
        ),
        (
            "role",
            Box::new(|| Ok(acting.set_role(bob, Role::Admin).map(drop)?)),
        ),
        (
            "delete the target",
            Box::new(|| Ok(acting.delete_account(new).map(drop)?)),
        ),
        (
            "key",
            Box::new(|| {
                let settings = KeySettings::default();
                keys.create_key_of(holder, "late", &settings, NOW).map(drop)
            }),
        ),
        ("grant", Box::new(|| post(&grant))),
        ("adjust", Box::new(|| post(&adjust))),
        ("a reference of merges", Box::new(|| post(&kept))),
    ];
    for (what, attempt) in &attempts {
        let refused = attempt().unwrap_err();
        let is_refusal = matches!(refused, AccountError::Store(StoreError::Refused(_)));
        assert!(
            is_refusal && refused.to_string().contains("merge"),
            "{what}: {refused}"
        );
    }
    world.suspend(new);
    for (from, to) in [(new, ann), (new, bob), (bob, ann)] {
        assert_eq!(world.refused(from, to, None), "Unfinished", "{from}");
    }
    let merges = world.accounts.merges();
    let of = |account| merges.list(Some(account)).unwrap();
    assert_eq!((of(bob), of(ann).len()), (of(new), 0));
    assert_eq!(merges.list(None).unwrap(), of(bob));
    assert_eq!(world.end(bob), CloseAccountOutcome::Done);
    assert_eq!(world.refused(bob, ann, None), "Merged");
    assert_eq!((of(bob)[0].has_ended, of(new).len()), (true, 0));
    assert_eq!(
        acting.delete_account(new).unwrap(),
        CloseAccountOutcome::Done
    );
}

#[test]
fn keys_that_end_with_the_account_stay() {
    let world = world();
    let plain = KeySettings::default();
    let moved = world.key(&world.bob, None, &plain);
    let disabled = world.key(&world.bob, None, &plain);
    let keys = world.accounts.api_keys();
    let operator = by("uid 0");
    let acting = world.accounts.with_actor(&operator, NOW);
    acting.set_key_enabled(&disabled.key_id, false).unwrap();
    let expired = KeySettings {
        expires_at_ms: Some(NOW),
        ..plain.clone()
    };
    let playground = KeySettings {
        playground_session: Some("session".to_owned()),
        ..plain
    };
    world.key(&world.bob, None, &expired);
    world.key(&world.bob, None, &playground);
    world.suspend(&world.bob);
    let parts = world.merge(&world.bob, &world.ann, None).unwrap();
    assert_eq!(parts.keys.len(), 2);
    assert_eq!(world.payer(&moved), (world.ann.clone(), None));
    assert_eq!(keys.keys(&world.ann).unwrap().len(), 2);
}

#[test]
fn an_account_that_cannot_be_merged_stays_and_the_reason_is_said() {
    let world = world();
    let account = |email: &str, role| {
        let new = NewAccount {
            role,
            ..NewAccount::new(email)
        };
        world.accounts.create_account(&new, NOW).unwrap().id
    };
    let root = account("root@example.com", Role::Admin);
    let [gone, eve, full] =
        ["g", "e", "f"].map(|name| account(&format!("{name}@example.com"), Role::Member));
    world.accounts.delete(&by(&gone), NOW).unwrap();
    world.key(&eve, None, &KeySettings::default());
    for _ in 0..crate::MAX_LIVE_KEYS {
        world.key(&full, None, &KeySettings::default());
    }
    let (ann, bob, old, new) = (&world.ann, &world.bob, &world.old, &world.new);
    assert_eq!(world.refused(&eve, bob, None), "NotSuspended");
    for account in [&eve, old, ann] {
        world.suspend(account);
    }
    let none = &"acct_none".to_owned();
    for (from, to, member, expected) in [
        (&eve, &eve, None, "SameAccount"),
        (&eve, none, None, "NoAccount"),
        (none, bob, None, "NoAccount"),
        (&gone, bob, None, "Deleted"),
        (&eve, &gone, None, "ClosedAccount"),
        (&eve, ann, None, "ClosedAccount"),
        (&eve, &root, None, "Administrator"),
        (&root, bob, None, "Administrator"),
        (old, bob, None, "Members"),
        (&eve, new, Some(&*eve), "MemberEnds"),
        (&eve, bob, Some(&**ann), "NoOrganisation"),
        (&eve, new, None, "NoMember"),
        (&eve, new, Some(&**bob), "NoMember"),
        (&eve, &full, None, "TooManyKeys"),
        (ann, bob, None, "LastOwner"),
    ] {
        let refused = world.refused(from, to, member);
        assert_eq!(refused, expected, "{from} into {to}");
    }
    let keys = world.accounts.api_keys().keys(&eve).unwrap();
    assert_eq!(keys.len(), 1);
    assert_eq!(keys[0].revoked_at_ms, None);
}
