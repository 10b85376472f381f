//! Tests of organisations with a real file: members, invitations, sessions and keys.

use super::*;
use crate::db::AppDb;
use crate::db::audit::OutcomeKind;
use crate::limits::{MAX_MEMBERS, MAX_OWNED};
use crate::{
    AccountError, Accounts, Actor, AuthError, CloseAccountOutcome, KeyHolder, KeyMember,
    KeySettings, LinkPurpose, NewAccount, NewKey, membership_id, session_id,
};
use credits::money::Micro;
use tempfile::TempDir;

const NOW: i64 = 1_800_000_000_000;
const PASSWORD: &str = "a long password";

/// An organisation with an owner, and people who are no members.
struct World {
    _folder: TempDir,
    accounts: Accounts,
    owner: String,
    organisation: String,
}

fn world() -> World {
    let folder = tempfile::tempdir().unwrap();
    let accounts = Accounts::open(folder.path()).unwrap();
    let owner = open(&accounts, "owner@example.com");
    let created = accounts
        .with_actor(&by(&owner), NOW)
        .create_organisation(" Acme ", &owner);
    let organisation = created.unwrap().id;
    World {
        _folder: folder,
        accounts,
        owner,
        organisation,
    }
}

pub(crate) fn open(accounts: &Accounts, email: &str) -> String {
    let new = NewAccount::new(email);
    accounts.create_account(&new, NOW).unwrap().id
}

pub(crate) fn by(person: &str) -> Actor {
    Actor {
        actor: person.to_owned(),
        address: "192.0.2.1".to_owned(),
    }
}

impl World {
    /// Opens an account and makes its person a member.
    fn member(&self, email: &str, role: OrganisationRole) -> String {
        let person = open(&self.accounts, email);
        let operator = by("uid 0");
        let acting = self.accounts.with_actor(&operator, NOW);
        acting
            .add_member(&self.organisation, &person, role)
            .unwrap();
        person
    }

    /// Changes a member in the name of another one.
    fn change(
        &self,
        actor: &str,
        person: &str,
        role: Option<OrganisationRole>,
    ) -> Result<(), AccountError> {
        let acting_by = by(actor);
        self.accounts.with_actor(&acting_by, NOW).change_member(
            MemberAuthority::Member,
            &self.organisation,
            person,
            role.map_or(MemberEdit::Remove, MemberEdit::Role),
            None,
        )
    }

    /// An operator removes a member, whose keys another one gets.
    fn remove_and_hand_over(&self, person: &str, to: &str) {
        let operator = by("uid 0");
        let removed = self.accounts.with_actor(&operator, NOW).change_member(
            MemberAuthority::Operator,
            &self.organisation,
            person,
            MemberEdit::Remove,
            Some(to),
        );
        removed.unwrap();
    }

    fn invite(
        &self,
        actor: &str,
        email: &str,
        role: OrganisationRole,
    ) -> Result<String, AccountError> {
        let acting_by = by(actor);
        let acting = self.accounts.with_actor(&acting_by, NOW);
        let new = acting.invite_member(&self.organisation, email, role)?;
        Ok(new.token)
    }

    fn join(&self, person: &str, token: &str, now_ms: i64) -> Result<(), AccountError> {
        let acting_by = by(person);
        let acting = self.accounts.with_actor(&acting_by, now_ms);
        acting.join_organisation(token)
    }

    fn roles(&self) -> Vec<(String, OrganisationRole)> {
        let members = self.accounts.organisations();
        let members = members.members(&self.organisation).unwrap().into_iter();
        members.map(|member| (member.email, member.role)).collect()
    }

    fn key(&self, member: &str) -> Result<NewKey, AccountError> {
        self.key_in(&self.organisation, member)
    }

    fn key_in(&self, account: &str, member: &str) -> Result<NewKey, AccountError> {
        let holder = KeyHolder {
            account,
            member: Some(member),
        };
        let settings = KeySettings::default();
        self.accounts
            .api_keys()
            .create_key_of(holder, "laptop", &settings, NOW)
    }

    fn works(&self, key: &NewKey) -> bool {
        match self.accounts.api_keys().authenticate(&key.key, NOW) {
            Ok(principal) => *principal.account_id == *self.organisation,
            Err(AuthError::BadKey) => false,
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_person_of_before_signs_in_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let old = AppDb::create_old_version(folder.path(), 15);
    let (token, key) = ("a".repeat(64), crate::generate_key().unwrap());
    let password = crate::password::hash(PASSWORD).unwrap();
    old.execute(
        "INSERT INTO account(id, email, password, admin, status, created_at_ms)
         VALUES('acct_1', 'a@example.com', ?1, 0, 'active', 1)",
        [password],
    )
    .unwrap();
    old.execute(
        "INSERT INTO api_key(id, account, name, hash, shown, status, created_at_ms)
         VALUES('key_1', 'acct_1', 'laptop', ?1, 'gw', 'active', 1)",
        [key.hash],
    )
    .unwrap();
    old.execute(
        "INSERT INTO session(hash, account, created_at_ms, used_at_ms, confirmed_at_ms, address, browser)
         VALUES(?1, 'acct_1', ?2, ?2, ?2, '', '')",
        rusqlite::params![hash_token(&token), NOW],
    )
    .unwrap();
    drop(old);
    let accounts = Accounts::open(folder.path()).unwrap();
    let logins = accounts.logins();
    let found = logins.check_password("a@example.com", PASSWORD).unwrap();
    assert_eq!(found.unwrap().id, "acct_1");
    let session = logins.find_session(&token, NOW + 1).unwrap().unwrap();
    assert_eq!(session.account, session.person);
    assert_eq!(
        (&*session.account.id, session.role),
        ("acct_1", OrganisationRole::Owner)
    );
    let principal = accounts.api_keys().authenticate(&key.text, NOW).unwrap();
    assert_eq!(
        (&*principal.account_id, &*principal.key_id),
        ("acct_1", "key_1")
    );
    assert_eq!(accounts.organisations().memberships("acct_1").unwrap(), []);
}

#[test]
fn an_invitation_works_once_and_for_its_address() {
    let world = world();
    let ann = open(&world.accounts, "ann@example.com");
    let bob = open(&world.accounts, "bob@example.com");
    let token = world.invite(&world.owner, " Ann@Example.com ", OrganisationRole::Admin);
    let token = token.unwrap();
    let open_invites = || {
        let organisations = world.accounts.organisations();
        organisations.invites(&world.organisation, NOW).unwrap()
    };
    let shown = &open_invites()[0];
    assert_eq!(
        (&*shown.email, &*shown.organisation),
        ("ann@example.com", "Acme")
    );
    assert!(matches!(
        world.join(&bob, &token, NOW),
        Err(AccountError::OtherAddress)
    ));
    world.join(&ann, &token, NOW).unwrap();
    assert!(matches!(
        world.join(&ann, &token, NOW),
        Err(AccountError::NoMember)
    ));
    assert!(open_invites().is_empty());
    let expected = [
        ("ann@example.com".to_owned(), OrganisationRole::Admin),
        ("owner@example.com".to_owned(), OrganisationRole::Owner),
    ];
    assert_eq!(world.roles(), expected);
    let again = world.invite(&world.owner, "ann@example.com", OrganisationRole::Member);
    assert!(matches!(again, Err(AccountError::AlreadyMember)));
}

#[test]
fn an_invitation_ends_in_time_and_with_the_rights_of_its_sender() {
    let world = world();
    let ann = open(&world.accounts, "ann@example.com");
    let admin = world.member("admin@example.com", OrganisationRole::Admin);
    let is_open = |token: &str, now_ms| {
        let found = world.accounts.organisations().invite(token, now_ms);
        found.unwrap().is_some()
    };
    let token = world
        .invite(&admin, "ann@example.com", OrganisationRole::Member)
        .unwrap();
    assert!(is_open(&token, NOW + MEMBER_INVITE_MS - 1));
    assert!(!is_open(&token, NOW + MEMBER_INVITE_MS));
    let late = world.join(&ann, &token, NOW + MEMBER_INVITE_MS);
    assert!(matches!(late, Err(AccountError::NoMember)));

    let newer = world
        .invite(&admin, "ann@example.com", OrganisationRole::Member)
        .unwrap();
    assert!(!is_open(&token, NOW) && is_open(&newer, NOW), "replaced");
    let id = world
        .accounts
        .organisations()
        .invites(&world.organisation, NOW)
        .unwrap()[0]
        .id
        .clone();
    let owner = by(&world.owner);
    let acting = world.accounts.with_actor(&owner, NOW);
    acting
        .revoke_member_invite(MemberAuthority::Member, &world.organisation, &id)
        .unwrap();
    assert!(matches!(
        world.join(&ann, &newer, NOW),
        Err(AccountError::NoMember)
    ));

    for role in [Some(OrganisationRole::Member), None] {
        let token = world
            .invite(&admin, "ann@example.com", OrganisationRole::Member)
            .unwrap();
        world.change(&world.owner, &admin, role).unwrap();
        assert!(!is_open(&token, NOW), "{role:?}");
        assert!(matches!(
            world.join(&ann, &token, NOW),
            Err(AccountError::NoMember)
        ));
        let sent = world.invite(&admin, "x@example.com", OrganisationRole::Member);
        assert!(matches!(sent, Err(AccountError::NotAllowed)));
        if role.is_some() {
            world
                .change(&world.owner, &admin, Some(OrganisationRole::Admin))
                .unwrap();
            assert!(!is_open(&token, NOW), "it does not come back");
        }
    }
}

#[test]
fn an_admin_ends_no_invitation_of_an_owner() {
    let world = world();
    let admin = world.member("admin@example.com", OrganisationRole::Admin);
    let token = world
        .invite(&world.owner, "ann@example.com", OrganisationRole::Owner)
        .unwrap();
    let organisations = world.accounts.organisations();
    let id = organisations.invites(&world.organisation, NOW).unwrap()[0]
        .id
        .clone();
    let actor = by(&admin);
    let acting = world.accounts.with_actor(&actor, NOW);
    let revoked = acting.revoke_member_invite(MemberAuthority::Member, &world.organisation, &id);
    assert!(matches!(revoked, Err(AccountError::NotAllowed)));
    let replaced = world.invite(&admin, "ann@example.com", OrganisationRole::Member);
    assert!(matches!(replaced, Err(AccountError::NotAllowed)));
    assert!(organisations.invite(&token, NOW).unwrap().is_some());
    let operator = by("uid 0");
    let acting = world.accounts.with_actor(&operator, NOW);
    acting
        .revoke_member_invite(MemberAuthority::Operator, &world.organisation, &id)
        .unwrap();
    assert_eq!(organisations.invite(&token, NOW).unwrap(), None);
}

#[test]
fn a_role_decides_each_change_when_it_is_made() {
    let world = world();
    let admin = world.member("admin@example.com", OrganisationRole::Admin);
    let member = world.member("member@example.com", OrganisationRole::Member);
    let billing = world.member("billing@example.com", OrganisationRole::Billing);
    let refused = |actor: &str, person: &str, role| {
        let changed = world.change(actor, person, role);
        assert!(
            matches!(changed, Err(AccountError::NotAllowed)),
            "{changed:?}"
        );
    };
    for actor in [&member, &billing] {
        refused(actor, &admin, None);
        refused(actor, actor, Some(OrganisationRole::Admin));
        assert!(matches!(
            world.invite(actor, "x@example.com", OrganisationRole::Member),
            Err(AccountError::NotAllowed)
        ));
    }
    refused(&admin, &world.owner, None);
    refused(&admin, &world.owner, Some(OrganisationRole::Member));
    refused(&admin, &member, Some(OrganisationRole::Owner));
    refused(&admin, &admin, Some(OrganisationRole::Owner));
    let owner = world.invite(&admin, "x@example.com", OrganisationRole::Owner);
    assert!(matches!(owner, Err(AccountError::NotAllowed)));
    let stranger = open(&world.accounts, "stranger@example.com");
    refused(&stranger, &member, None);
    refused(&stranger, &member, Some(OrganisationRole::Member));
    world
        .change(&admin, &member, Some(OrganisationRole::Billing))
        .unwrap();
    world.change(&billing, &billing, None).unwrap();
    assert_eq!(world.roles().len(), 3);
    assert!(matches!(
        world.change(&world.owner, &stranger, None),
        Err(AccountError::NoMember)
    ));
}

#[test]
fn an_organisation_keeps_an_owner() {
    let world = world();
    let other = world.member("other@example.com", OrganisationRole::Admin);
    let operator = by("uid 0");
    for role in [None, Some(OrganisationRole::Admin)] {
        let own = world.change(&world.owner, &world.owner, role);
        assert!(matches!(own, Err(AccountError::LastOwner)), "{own:?}");
        let acting = world.accounts.with_actor(&operator, NOW);
        let operators = acting.change_member(
            MemberAuthority::Operator,
            &world.organisation,
            &world.owner,
            role.map_or(MemberEdit::Remove, MemberEdit::Role),
            None,
        );
        assert!(matches!(operators, Err(AccountError::LastOwner)));
    }
    let delete = |person: &str| world.accounts.delete(&by(person), NOW).unwrap();
    assert_eq!(delete(&world.owner), CloseAccountOutcome::LastOwner);
    world
        .change(&world.owner, &other, Some(OrganisationRole::Owner))
        .unwrap();
    let key = world.key(&world.owner).unwrap();
    assert_eq!(delete(&world.owner), CloseAccountOutcome::Done);
    assert!(!world.works(&key));
    let lines = world.accounts.audit_log().rows(None, 2).unwrap();
    let lines: Vec<_> = lines.iter().map(|it| (&*it.act, &*it.object)).collect();
    let ended = ("organisation.remove", &*world.organisation);
    assert_eq!(lines, [("account.delete", &*world.owner), ended]);
    assert_eq!(
        world.roles(),
        [("other@example.com".to_owned(), OrganisationRole::Owner)]
    );
}

#[test]
fn keys_end_with_the_membership_or_are_handed_over() {
    let world = world();
    let ann = world.member("ann@example.com", OrganisationRole::Member);
    let (mine, hers) = (world.key(&world.owner).unwrap(), world.key(&ann).unwrap());
    let own = world
        .accounts
        .api_keys()
        .create_key(&ann, "own", NOW)
        .unwrap();
    world
        .change(&world.owner, &ann, Some(OrganisationRole::Admin))
        .unwrap();
    assert!(world.works(&hers));
    for (role, may_have_keys) in [
        (Some(OrganisationRole::Billing), false),
        (Some(OrganisationRole::Member), true),
    ] {
        world.change(&world.owner, &ann, role).unwrap();
        assert_eq!(world.key(&ann).is_ok(), may_have_keys);
        assert!(!world.works(&hers), "revoked for good");
    }
    let session = world
        .accounts
        .logins()
        .create_session(&ann, NOW)
        .unwrap()
        .token;
    let holder = KeyHolder {
        account: &world.organisation,
        member: Some(&ann),
    };
    let five = Micro::new(5_000_000);
    let keys = world.accounts.api_keys();
    let played = keys
        .create_playground_key(holder, &session, five, NOW)
        .unwrap();
    let kept = world.key(&ann).unwrap();
    world.remove_and_hand_over(&ann, &world.owner);
    assert!(world.works(&kept) && world.works(&mine));
    let (_, key) = keys
        .key(Some(&world.organisation), &kept.key_id)
        .unwrap()
        .unwrap();
    assert_eq!(key.member.as_ref(), Some(&world.owner));
    assert!(keys.authenticate(&played.key, NOW).is_err());
    assert!(matches!(world.key(&ann), Err(AccountError::NotAllowed)));
    assert!(
        keys.authenticate(&own.key, NOW).is_ok(),
        "her own account's"
    );
}

#[test]
fn a_playground_key_in_an_organisation_ends_with_its_session() {
    let world = world();
    let ann = world.member("ann@example.com", OrganisationRole::Member);
    let logins = world.accounts.logins();
    let key_of = |person: &str| {
        let token = logins.create_session(person, NOW).unwrap().token;
        let holder = KeyHolder {
            account: &world.organisation,
            member: Some(person),
        };
        let five = Micro::new(5_000_000);
        let keys = world.accounts.api_keys();
        let key = keys.create_playground_key(holder, &token, five, NOW);
        (key.unwrap().key, token)
    };
    let ((hers, token), (mine, _)) = (key_of(&ann), key_of(&world.owner));
    assert!(logins.end_own_session(&ann, &session_id(&token)).unwrap());
    let works = |key: &str| world.accounts.api_keys().authenticate(key, NOW).is_ok();
    assert_eq!((works(&hers), works(&mine)), (false, true));
}

#[test]
fn a_session_shows_an_organisation_as_long_as_its_person_is_a_member() {
    let world = world();
    let ann = world.member("ann@example.com", OrganisationRole::Member);
    let logins = world.accounts.logins();
    let token = logins.create_session(&ann, NOW).unwrap().token;
    let shown = || {
        let session = logins.find_session(&token, NOW).unwrap().unwrap();
        assert_eq!(session.person.id, ann);
        (session.account.id, session.role)
    };
    let own = (ann.clone(), OrganisationRole::Owner);
    assert_eq!(shown(), own);
    assert!(
        logins
            .show_account(&token, Some(&world.organisation))
            .unwrap()
    );
    assert_eq!(
        shown(),
        (world.organisation.clone(), OrganisationRole::Member)
    );
    world
        .change(&world.owner, &ann, Some(OrganisationRole::Billing))
        .unwrap();
    assert_eq!(shown().1, OrganisationRole::Billing);
    assert!(logins.show_account(&token, None).unwrap());
    assert_eq!(shown(), own);
    logins
        .show_account(&token, Some(&world.organisation))
        .unwrap();
    world.change(&ann, &ann, None).unwrap();
    assert_eq!(shown(), own);
    for other in [&world.organisation, &world.owner, "acct_none"] {
        assert!(
            !logins.show_account(&token, Some(other)).unwrap(),
            "{other}"
        );
    }
    assert_eq!(shown(), own);
}

#[test]
fn the_first_proof_of_a_mailbox_ends_what_a_stranger_made_in_an_organisation() {
    let world = world();
    let ann = world.member("ann@example.com", OrganisationRole::Member);
    let (hers, owners) = (world.key(&ann).unwrap(), world.key(&world.owner).unwrap());
    let links = world.accounts.one_time_links();
    let link = links
        .create_own_link(&ann, LinkPurpose::Reset, NOW)
        .unwrap();
    let set = links.set_password_by_link(&link.token, PASSWORD, None, "", NOW);
    assert_eq!(set.unwrap().as_ref(), Some(&ann));
    assert_eq!((world.works(&hers), world.works(&owners)), (false, true));
    assert_eq!(world.roles().len(), 2, "the mailbox was invited");
}

#[test]
fn the_first_proof_of_a_mailbox_ends_what_others_may_do_in_its_own_organisations() {
    let world = world();
    let (stranger, organisation) = (&world.owner, &world.organisation);
    let friend = world.member("friend@example.com", OrganisationRole::Admin);
    let key = world.key(&friend).unwrap();
    let invite = || world.invite(stranger, "next@example.com", OrganisationRole::Member);
    let token = invite().unwrap();
    let webhooks = world.accounts.database().webhooks();
    let hook = "https://stranger.example.com";
    assert!(
        webhooks
            .set_webhook(organisation, hook, &[7; 32], NOW)
            .unwrap()
    );
    let create = |name: &str, maker: &str, owner: &str, others: (&str, OrganisationRole)| {
        let (maker, operator) = (by(maker), by("uid 0"));
        let acting = world.accounts.with_actor(&maker, NOW);
        let id = acting.create_organisation(name, owner).unwrap().id;
        let acting = world.accounts.with_actor(&operator, NOW);
        acting.add_member(&id, others.0, others.1).unwrap();
        id
    };
    let (own, co_owner) = (OrganisationRole::Member, OrganisationRole::Owner);
    let operators = create("Operator's", "uid 0", stranger, (&friend, own));
    let shared = create("Shared", stranger, stranger, (&friend, co_owner));
    let handed = create("Handed over", &friend, &friend, (stranger, co_owner));
    let make_friend = |account: &str, role: OrganisationRole| {
        let operator = by("uid 0");
        let acting = world.accounts.with_actor(&operator, NOW);
        let edit = MemberEdit::Role(role);
        let changed = acting.change_member(MemberAuthority::Operator, account, &friend, edit, None);
        changed.unwrap();
    };
    make_friend(&handed, own);
    // In the operator's organisation, the stranger invites a mate, and the mate another one.
    let mut inviter = stranger.clone();
    let mut guest = |email: &str| {
        let person = open(&world.accounts, email);
        let (by_inviter, by_guest) = (by(&inviter), by(&person));
        let acting = world.accounts.with_actor(&by_inviter, NOW);
        let role = OrganisationRole::Admin;
        let invite = acting.invite_member(&operators, email, role).unwrap();
        let acting = world.accounts.with_actor(&by_guest, NOW);
        acting.join_organisation(&invite.token).unwrap();
        inviter.clone_from(&person);
        world.key_in(&operators, &person).unwrap().key
    };
    let guest_keys = ["mate@example.com", "next-mate@example.com"].map(&mut guest);
    let is_set = webhooks.set_webhook(&operators, hook, &[7; 32], NOW);
    assert!(is_set.unwrap());
    let keys_of = |account: &str| {
        [stranger, &friend].map(|person| world.key_in(account, person).unwrap().key)
    };
    let ([operators_key, friends_key], [left_key, kept_key], [_, handed_key]) =
        (keys_of(&operators), keys_of(&shared), keys_of(&handed));
    let organisations = world.accounts.organisations();
    let guests = |webhook: bool| FirstProofEnds::Guests {
        emails: vec!["mate@example.com".into(), "next-mate@example.com".into()],
        webhook,
    };
    make_friend(&operators, OrganisationRole::Admin);
    let listed = organisations.unproven(stranger).unwrap();
    assert_eq!(
        listed[2].ends,
        guests(false),
        "the friend could have set it"
    );
    make_friend(&operators, own);
    let listed = organisations.unproven(stranger).unwrap().into_iter();
    assert_eq!(
        listed.map(|it| (it.name, it.ends)).collect::<Vec<_>>(),
        [
            ("Acme", FirstProofEnds::Others),
            ("Handed over", FirstProofEnds::Others),
            ("Operator's", guests(true)),
            ("Shared", FirstProofEnds::Membership),
        ]
        .map(|(name, ends)| (name.to_owned(), ends))
    );
    let of_person = world.accounts.api_keys().keys_of_person(stranger).unwrap();
    assert_eq!(of_person.len(), 3, "in three organisations");
    let links = world.accounts.one_time_links();
    let prove = |ends_credentials: Option<bool>| {
        let link = links.create_own_link(stranger, LinkPurpose::Reset, NOW);
        let token = link.unwrap().token;
        let set = links.set_password_by_link(&token, PASSWORD, ends_credentials, "", NOW);
        assert_eq!(set.unwrap().as_ref(), Some(stranger));
    };
    prove(None);
    let owner = ("owner@example.com".to_owned(), OrganisationRole::Owner);
    assert_eq!(world.roles(), [owner]);
    assert!(!world.works(&key));
    assert!(organisations.invite(&token, NOW).unwrap().is_none());
    assert!(webhooks.webhook(organisation).unwrap().is_none());
    let members = |account: &str| organisations.members(account).unwrap().len();
    assert_eq!((members(&operators), members(&handed)), (2, 1));
    assert_eq!(organisations.members(&shared).unwrap()[0].person, friend);
    assert_eq!(members(&shared), 1);
    let keys = world.accounts.api_keys();
    let works = |key: &String| keys.authenticate(key, NOW).is_ok();
    assert!(works(&kept_key) && works(&friends_key), "of others");
    for ended in [operators_key, left_key, handed_key]
        .iter()
        .chain(&guest_keys)
    {
        assert!(!works(ended));
    }
    assert!(webhooks.webhook(&operators).unwrap().is_none());

    // From then on, the organisation is its holder's.
    invite().unwrap();
    let operator = by("uid 0");
    let acting = world.accounts.with_actor(&operator, NOW);
    let again = acting.add_member(organisation, &friend, OrganisationRole::Admin);
    again.unwrap();
    prove(Some(true));
    assert_eq!(world.roles().len(), 2);
}

#[test]
fn nobody_signs_in_to_an_organisation() {
    let world = world();
    let id = &world.organisation;
    let operator = by("uid 0");
    let acting = world.accounts.with_actor(&operator, NOW);
    let account = world.accounts.find(id).unwrap().unwrap();
    assert_eq!((account.label(), account.role), ("Acme", Role::Member));
    assert!(!acting.set_password(id, PASSWORD).unwrap());
    let link = acting.create_one_time_link(id, LinkPurpose::Setup);
    assert!(matches!(link, Err(AccountError::NoAccount)));
    let raised = acting.set_role(id, Role::Admin).unwrap();
    assert_eq!(raised, CloseAccountOutcome::NoAccount);
    let logins = world.accounts.logins();
    assert!(
        logins
            .check_password(&account.email, PASSWORD)
            .unwrap()
            .is_none()
    );
    let ann = open(&world.accounts, "ann@example.com");
    let member = acting.add_member(&ann, &world.owner, OrganisationRole::Member);
    assert!(
        matches!(member, Err(AccountError::NoMember)),
        "of a person's account"
    );
    let nested = acting.add_member(id, id, OrganisationRole::Member);
    assert!(matches!(nested, Err(AccountError::NoMember)));
}

#[test]
fn the_numbers_of_organisations_members_and_keys_are_limited() {
    let world = world();
    let owner = by(&world.owner);
    let acting = world.accounts.with_actor(&owner, NOW);
    for _ in 1..MAX_OWNED {
        acting.create_organisation("Another", &world.owner).unwrap();
    }
    let one_more = acting.create_organisation("Another", &world.owner);
    assert!(matches!(one_more, Err(AccountError::TooManyOrganisations)));
    for bad in [
        "",
        " ",
        "a\nb",
        "a\u{200b}b",
        &"x".repeat(MAX_ORGANISATION_NAME_CHARS + 1),
    ] {
        let named = acting.create_organisation(bad, &world.owner);
        assert!(
            matches!(named, Err(AccountError::BadOrganisationName)),
            "{bad:?}"
        );
    }
    for _ in 0..crate::limits::MAX_LIVE_KEYS {
        world.key(&world.owner).unwrap();
    }
    assert!(matches!(
        world.key(&world.owner),
        Err(AccountError::TooManyKeys)
    ));
    let ann = world.member("ann@example.com", OrganisationRole::Member);
    assert!(
        world.key(&ann).is_ok(),
        "each member has a limit of their own"
    );

    let remove = |to: &str| {
        acting.change_member(
            MemberAuthority::Member,
            &world.organisation,
            &ann,
            MemberEdit::Remove,
            Some(to),
        )
    };
    let taken = remove(&world.owner);
    assert!(matches!(taken, Err(AccountError::TooManyKeys)), "{taken:?}");
    let billing = world.member("billing@example.com", OrganisationRole::Billing);
    for nobody in [&*billing, &*ann, "acct_none"] {
        let taken = remove(nobody);
        assert!(matches!(taken, Err(AccountError::NoMember)), "{taken:?}");
    }
    let keys = world.accounts.api_keys();
    let one = keys.live_of_member(&world.organisation, &world.owner);
    assert!(keys.revoke_key(None, &one.unwrap()[0], NOW).unwrap());
    remove(&world.owner).unwrap();
    let all = keys.live_of_member(&world.organisation, &world.owner);
    assert_eq!(all.unwrap().len(), 100);

    world.accounts.database().with_writer(|writer| {
        let sql = "WITH RECURSIVE n(i) AS (VALUES(3) UNION ALL SELECT i + 1 FROM n WHERE i < ?2 - 1)
                   INSERT INTO member_invite SELECT randomblob(32), ?1, i || '@x.example', 'member', ?3, 1, ?4 FROM n";
        let (id, owner) = (&world.organisation, &world.owner);
        let ends = NOW + 1;
        writer.execute(sql, rusqlite::params![id, MAX_MEMBERS, owner, ends]).unwrap();
    });
    world
        .invite(&world.owner, "last@example.com", OrganisationRole::Member)
        .unwrap();
    let full = world.invite(&world.owner, "more@example.com", OrganisationRole::Member);
    assert!(matches!(full, Err(AccountError::TooManyMembers)));
    let bob = open(&world.accounts, "bob@example.com");
    let added = acting.add_member(&world.organisation, &bob, OrganisationRole::Member);
    assert!(matches!(added, Err(AccountError::TooManyMembers)));
    let later = world.accounts.with_actor(&owner, NOW + 1);
    later
        .add_member(&world.organisation, &bob, OrganisationRole::Member)
        .unwrap();
}

#[test]
fn the_audit_log_has_each_change_with_its_actor() {
    let world = world();
    let ann = open(&world.accounts, "ann@example.com");
    let token = world
        .invite(&world.owner, "ann@example.com", OrganisationRole::Member)
        .unwrap();
    world.join(&ann, &token, NOW).unwrap();
    world
        .change(&world.owner, &ann, Some(OrganisationRole::Admin))
        .unwrap();
    world.change(&ann, &ann, None).unwrap();
    assert!(world.change(&ann, &world.owner, None).is_err());
    let log = world.accounts.audit_log();
    let lines = log.rows(None, 10).unwrap();
    let acts: Vec<_> = lines
        .iter()
        .rev()
        .map(|line| (&*line.act, &*line.actor))
        .collect();
    let expected = [
        ("organisation.create", &*world.owner),
        ("organisation.invite", &*world.owner),
        ("organisation.join", &*ann),
        ("organisation.role", &*world.owner),
        ("organisation.remove", &*ann),
    ];
    assert_eq!(acts, expected);
    assert!(lines.iter().all(|line| line.object == world.organisation));
    assert!(lines.iter().all(|line| !line.after.contains(&token)));
    assert!(log.verify().unwrap().findings.is_empty());
}

#[test]
fn the_audit_log_has_what_an_operator_was_refused_and_not_what_a_member_was() {
    let world = world();
    let admin = world.member("admin@example.com", OrganisationRole::Admin);
    let lines = || world.accounts.audit_log().rows(None, 20).unwrap();
    let before = lines().len();
    let own = by(&admin);
    let acting = world.accounts.with_actor(&own, NOW);
    let set = |acting: &AuditedAccounts<'_>, authority, person: &str, edit| {
        acting.change_member(authority, &world.organisation, person, edit, None)
    };
    let owner = MemberEdit::Role(OrganisationRole::Owner);
    assert!(set(&acting, MemberAuthority::Member, &admin, owner).is_err());
    assert!(acting.create_organisation("", &admin).is_err());
    assert_eq!(lines().len(), before, "members could fill it");

    let operator = by("uid 0");
    let acting = world.accounts.with_actor(&operator, NOW);
    let authority = MemberAuthority::Operator;
    let budget = MemberEdit::Budget(Some("5/day".parse().unwrap()));
    let member = OrganisationRole::Member;
    let refused = [
        acting.add_member(&world.organisation, &admin, member),
        set(&acting, authority, &world.owner, MemberEdit::Remove),
        set(&acting, authority, "acct_none", budget),
        set(&acting, authority, "acct_none", MemberEdit::Role(member)),
        acting.set_domain("acct_none", "example.com", true),
        acting.create_organisation("New", "acct_none").map(drop),
    ];
    assert!(refused.iter().all(Result::is_err), "{refused:?}");
    let mut found: Vec<_> = lines().into_iter().take(6).collect();
    found.reverse();
    let reasons: Vec<_> = refused
        .into_iter()
        .map(|it| it.unwrap_err().to_string())
        .collect();
    let acts = [
        "organisation.add",
        "organisation.remove",
        "organisation.budget",
        "organisation.role",
        "organisation.claim",
        "organisation.create",
    ];
    for ((line, act), reason) in found.iter().zip(acts).zip(&reasons) {
        assert_eq!((&*line.act, &*line.actor), (act, "uid 0"));
        assert_eq!(line.outcome.kind, OutcomeKind::Refused, "{act}");
        assert_eq!(&line.outcome.why, reason, "{act}");
    }
    assert!(found[2].after.contains("5/day"), "{}", found[2].after);
}

#[test]
fn a_budget_is_of_the_member_and_reaches_each_of_their_keys() {
    let world = world();
    let ann = world.member("ann@example.com", OrganisationRole::Member);
    let bob = world.member("bob@example.com", OrganisationRole::Member);
    let admin = world.member("admin@example.com", OrganisationRole::Admin);
    let set = |actor: &str, person: &str, budget: &str| {
        let acting_by = by(actor);
        world.accounts.with_actor(&acting_by, NOW).change_member(
            MemberAuthority::Member,
            &world.organisation,
            person,
            MemberEdit::Budget(Some(budget.parse().unwrap())),
            None,
        )
    };
    let (first, second) = (world.key(&ann).unwrap(), world.key(&ann).unwrap());
    let of = |key: &NewKey| {
        let keys = world.accounts.api_keys();
        let principal = keys.authenticate(&key.key, NOW).unwrap();
        let [_, budget] = principal.spend_limits();
        let change = world.accounts.database().keys().key_change(&key.key_id);
        let change = change.unwrap().remove(0);
        // What edges get is the same.
        let published = KeyMember::decode(&change.member_id, &change.budget, &change.models);
        assert_eq!(published.unwrap(), principal.member);
        (
            principal.member.unwrap().id.to_string(),
            budget.map(|budget| budget.to_string()),
            change.at.rev,
        )
    };
    let (id, none, before) = of(&first);
    assert_eq!((id, none), (membership_id(&world.organisation, &ann), None));
    set(&admin, &ann, "5/day").unwrap();
    for key in [&first, &second] {
        let (_, budget, rev) = of(key);
        assert_eq!(budget.as_deref(), Some("5/day"));
        assert!(rev > before, "edges hear of it");
    }
    for (actor, person) in [(&ann, &ann), (&bob, &ann), (&admin, &world.owner)] {
        let refused = set(actor, person, "9/day");
        assert!(
            matches!(refused, Err(AccountError::NotAllowed)),
            "{refused:?}"
        );
    }
    world
        .change(&admin, &ann, Some(OrganisationRole::Admin))
        .unwrap();
    let (_, budget, before) = of(&first);
    assert_eq!(budget.as_deref(), Some("5/day"), "a role leaves it");
    set(&admin, &bob, "7/total").unwrap();
    world.remove_and_hand_over(&ann, &bob);
    let (id, budget, rev) = of(&first);
    assert_eq!(id, membership_id(&world.organisation, &bob));
    assert_eq!(budget.as_deref(), Some("7/total"));
    assert!(rev > before, "edges hear of it");
}

#[test]
fn a_key_may_use_what_its_own_list_and_that_of_its_member_have() {
    let world = world();
    let ann = world.member("ann@example.com", OrganisationRole::Member);
    let bob = world.member("bob@example.com", OrganisationRole::Member);
    let admin = world.member("admin@example.com", OrganisationRole::Admin);
    let set = |actor: &str, person: &str, models: &[&str]| {
        let acting_by = by(actor);
        world.accounts.with_actor(&acting_by, NOW).change_member(
            MemberAuthority::Member,
            &world.organisation,
            person,
            MemberEdit::Models(models.iter().map(|it| (*it).to_owned()).collect()),
            None,
        )
    };
    let keys = world.accounts.api_keys();
    // Which of a, b and c the key may use, and the number of its last change.
    let of = |key: &NewKey| {
        let principal = keys.authenticate(&key.key, NOW).unwrap();
        let change = world.accounts.database().keys().key_change(&key.key_id);
        let change = change.unwrap().remove(0);
        let published = KeyMember::decode(&change.member_id, &change.budget, &change.models);
        assert_eq!(published.unwrap(), principal.member, "what edges get");
        let allowed = ["a", "b", "c"].map(|model| principal.allows(model));
        let listed = keys.keys(&world.organisation).unwrap().into_iter();
        let listed = listed.filter(|one| one.id == key.key_id);
        for one in listed {
            assert_eq!(["a", "b", "c"].map(|model| one.allows(model)), allowed);
        }
        (allowed, change.at.rev)
    };
    let key = world.key(&ann).unwrap();
    keys.change_key(None, &key.key_id, |set| {
        set.allowed_models = vec!["a".into(), "b".into()];
    })
    .unwrap();
    let (allowed, before) = of(&key);
    assert_eq!(allowed, [true, true, false]);
    set(&admin, &ann, &["b", "c"]).unwrap();
    let (allowed, rev) = of(&key);
    assert_eq!(allowed, [false, true, false]);
    assert!(rev > before, "edges hear of it");
    let (allowed, _) = of(&world.key(&ann).unwrap());
    assert_eq!(allowed, [false, true, true], "a later key");
    for (actor, person) in [(&ann, &ann), (&bob, &ann), (&admin, &world.owner)] {
        let refused = set(actor, person, &[]);
        assert!(matches!(refused, Err(AccountError::NotAllowed)));
    }
    let refused = set(&admin, &ann, &["b c"]);
    assert!(matches!(refused, Err(AccountError::BadModels)));
    world
        .change(&admin, &ann, Some(OrganisationRole::Admin))
        .unwrap();
    assert_eq!(of(&key).0, [false, true, false], "a role leaves it");
    set(&admin, &bob, &["c"]).unwrap();
    let (_, before) = of(&key);
    world.remove_and_hand_over(&ann, &bob);
    let (allowed, rev) = of(&key);
    assert_eq!(allowed, [false; 3]);
    assert!(rev > before, "edges hear of it");
    set(&admin, &bob, &[]).unwrap();
    assert_eq!(of(&key).0, [true, true, false]);
}

#[test]
fn who_proves_a_mailbox_of_a_claimed_domain_becomes_a_member() {
    let world = world();
    let operator = by("uid 0");
    let claim = |account: &str, domain: &str, is_claimed| {
        let acting = world.accounts.with_actor(&operator, NOW);
        acting.set_domain(account, domain, is_claimed)
    };
    let other = world
        .accounts
        .with_actor(&operator, NOW)
        .create_organisation("Other", &world.owner);
    let other = other.unwrap().id;
    claim(&world.organisation, " B\u{fc}cher.Example ", true).unwrap();
    let domains = |account: &str| world.accounts.organisations().domains(account).unwrap();
    assert_eq!(domains(&world.organisation), ["xn--bcher-kva.example"]);
    for (account, domain, is_claimed, expected) in [
        (&*other, "b\u{fc}cher.example", true, "DomainTaken"),
        (&*other, "xn--bcher-kva.example", true, "DomainTaken"),
        (
            &*world.organisation,
            "xn--bcher-kva.example",
            true,
            "DomainTaken",
        ),
        (&*other, "xn--bcher-kva.example", false, "NoMember"),
        (&*other, "ann@example.com", true, "BadDomain"),
        (&*other, "example..com", true, "BadDomain"),
        (&*other, "com", true, "BadDomain"),
        (&*world.owner, "example.org", true, "NoMember"),
    ] {
        let refused = claim(account, domain, is_claimed).unwrap_err();
        assert_eq!(format!("{refused:?}"), expected, "{domain}");
    }
    let prove = |person: &str| {
        let links = world.accounts.one_time_links();
        let link = links
            .create_own_link(person, LinkPurpose::Verify, NOW)
            .unwrap();
        assert!(links.verify_email_by_link(&link.token, NOW).unwrap());
    };
    let emails = || {
        let roles = world.roles().into_iter();
        roles.map(|(email, _)| email).collect::<Vec<_>>()
    };
    let ann = open(&world.accounts, "ann@b\u{fc}cher.example");
    let bob = open(&world.accounts, "bob@sub.b\u{fc}cher.example");
    assert_eq!(emails(), ["owner@example.com"], "not before it is proven");
    for person in [&ann, &bob] {
        prove(person);
    }
    assert_eq!(emails(), ["ann@xn--bcher-kva.example", "owner@example.com"]);
    assert_eq!(world.roles()[0].1, OrganisationRole::Member);
    world.change(&world.owner, &ann, None).unwrap();
    prove(&ann);
    assert_eq!(emails(), ["owner@example.com"], "who was removed stays so");
    let (carl, dora) = (
        open(&world.accounts, "carl@b\u{fc}cher.example"),
        open(&world.accounts, "dora@b\u{fc}cher.example"),
    );
    for person in [&carl, &dora] {
        prove(person);
    }
    world.change(&world.owner, &carl, None).unwrap();
    for (person, email) in [(&ann, "ann"), (&carl, "carl"), (&dora, "dora")] {
        world.accounts.delete(&by(person), NOW).unwrap();
        prove(&open(
            &world.accounts,
            &format!("{email}@b\u{fc}cher.example"),
        ));
        assert_eq!(
            emails(),
            match email {
                "dora" => vec!["owner@example.com"],
                _ => vec!["dora@xn--bcher-kva.example", "owner@example.com"],
            },
            "nor does a new account of {email} join"
        );
    }
    claim(&world.organisation, "xn--bcher-kva.example", false).unwrap();
    let eve = open(&world.accounts, "eve@b\u{fc}cher.example");
    prove(&eve);
    assert_eq!(emails(), ["owner@example.com"]);
}
