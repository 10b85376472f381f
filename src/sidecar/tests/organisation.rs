//! Tests of organisations on the pages: what each role may see and do, and what nobody else may.

use super::*;
use crate::billing::usage_report::UsageReportQuery;
use accounts::{
    Actor, KeyHolder, KeySettings, MemberAuthority, MemberEdit, NewKey, OrganisationRole,
    membership_id,
};
use serde_json::{Value, json};

const ON: &[(&str, &str)] = &[("signup:", "organisations: true\nsignup:")];

/// An organisation with a member of each role, who have keys where the role allows it.
struct Company {
    world: World,
    id: String,
    people: Vec<Colleague>,
}

struct Colleague {
    role: OrganisationRole,
    id: String,
    /// Of a session that shows the organisation.
    cookie: String,
    key: Option<NewKey>,
}

fn actor(id: &str) -> Actor {
    Actor {
        actor: id.to_owned(),
        address: "192.0.2.1".to_owned(),
    }
}

fn id_of(world: &World, email: &str) -> String {
    world.accounts.find(email).unwrap().unwrap().id
}

fn token(cookie: &str) -> &str {
    cookie.split_once('=').unwrap().1
}

async fn company() -> Company {
    let world = world(ON).await;
    let mut people = Vec::new();
    let mut organisation = String::new();
    for role in OrganisationRole::ALL {
        let email = format!("{}@example.com", role.name());
        let cookie = world.sign_up(&email).await;
        let id = id_of(&world, &email);
        let by = actor("uid 0");
        let acting = world.accounts.with_actor(&by, now_ms());
        if role == OrganisationRole::Owner {
            organisation = acting.create_organisation("Acme", &id).unwrap().id;
            let ledger = world.billing.ledger();
            accounts::complete_sign_ups(&world.accounts, ledger, now_ms()).unwrap();
        } else {
            acting.add_member(&organisation, &id, role).unwrap();
        }
        let logins = world.accounts.logins();
        assert!(
            logins
                .show_account(token(&cookie), Some(&organisation))
                .unwrap()
        );
        let holder = KeyHolder {
            account: &organisation,
            member: Some(&id),
        };
        let keys = world.accounts.api_keys();
        let key = keys.create_key_of(
            holder,
            &format!("of {}", role.name()),
            &KeySettings::default(),
            now_ms(),
        );
        people.push(Colleague {
            role,
            id,
            cookie,
            key: key.ok(),
        });
    }
    let has_key: Vec<_> = people.iter().map(|one| one.key.is_some()).collect();
    assert_eq!(has_key, [true, true, false, true]);
    Company {
        world,
        id: organisation,
        people,
    }
}

impl Company {
    fn person(&self, role: OrganisationRole) -> &Colleague {
        self.people.iter().find(|one| one.role == role).unwrap()
    }

    /// Enters an answered request for each key, and returns the ids by the roles.
    fn spend(&self) -> Vec<(OrganisationRole, String)> {
        use ledger::{Ending, EndingDetail, Ledger, RequestOutcome};
        let price = self.world.price();
        let ledger = Ledger::open(self.world.folder.path()).unwrap();
        ledger.rows().store_price(&price, 0).unwrap();
        let grant = "5".parse().unwrap();
        let corrections = self.world.billing.corrections();
        corrections
            .grant(&self.id, grant, "invoice 1", now_ms())
            .unwrap();
        let with_keys = self.people.iter().enumerate();
        let endings: Vec<_> = with_keys
            .filter_map(|(n, one)| {
                let id = format!("req_{n:032x}");
                let key = one.key.as_ref()?;
                let plain = Ending::in_test(&id, &self.id, now_ms() - 1, RequestOutcome::Completed);
                let ending = Ending {
                    paid: credits::money::Micro::new(1_000),
                    detail: EndingDetail {
                        key_id: key.key_id.clone(),
                        price_version: price.version.clone(),
                        member: Some(membership_id(&self.id, &one.id)),
                        ..plain.detail
                    },
                    ..plain
                };
                Some((one.role, id, ending))
            })
            .collect();
        let pairs: Vec<_> = endings
            .iter()
            .map(|(_, _, it)| (it, Default::default()))
            .collect();
        assert_eq!(ledger.enter_endings(&pairs, "").unwrap(), 3);
        endings
            .into_iter()
            .map(|(role, id, _)| (role, id))
            .collect()
    }
}

#[tokio::test]
async fn a_team_is_invited_works_and_loses_a_member() {
    let world = world(ON).await;
    let owner = world.sign_up("owner@example.com").await;
    let page = world.get("/dashboard/organisation", &owner).await;
    let csrf = page.csrf();
    let created = world
        .post(
            "/dashboard/organisation",
            &owner,
            &format!("name=Acme%20%3Cb%3E&csrf={csrf}"),
        )
        .await;
    assert_eq!(created.status, 303, "{}", created.body);
    let overview = world.get("/dashboard", &owner).await;
    assert_eq!(overview.inside("balance"), "0", "no trial");
    assert_eq!(overview.inside("shown-account"), "Acme &#60;b&#62;");

    let csrf = form_token(&world.accounts, token(&owner));
    let invite = format!("email=ann%40example.com&role=member&csrf={csrf}");
    let invited = world
        .post("/dashboard/organisation/invites", &owner, &invite)
        .await;
    assert_eq!(invited.status, 200, "{}", invited.body);
    let link = invited.inside("invite-link").to_owned();
    let join = link.strip_prefix("http://127.0.0.1:8080").unwrap();
    let visitor = world.get(join, "").await;
    assert_eq!(visitor.status, 200);
    assert!(visitor.body.contains("ann@example.com") && !visitor.body.contains("<button>Join"));
    assert_eq!(visitor.cookie(), format!("gw-return={join}"), "leads back");
    let stranger = world.sign_up("bob@example.com").await;
    let theirs = world.get(join, &stranger).await.csrf();
    let refused = world.post(join, &stranger, &format!("csrf={theirs}")).await;
    assert_eq!(refused.status, 403);
    refused.shows("This invitation is for another e-mail");
    let ann = world.sign_up("ann@example.com").await;
    let page = world.get(join, &ann).await;
    assert!(page.body.contains("<button>Join"));
    let joined = world
        .post(join, &ann, &format!("csrf={}", page.csrf()))
        .await;
    assert_eq!(
        (joined.status, &*joined.headers["location"]),
        (303, "/dashboard")
    );
    assert_eq!(world.get(join, &ann).await.status, 410, "used");
    let first = world.get("/dashboard", &ann).await;
    assert_eq!(
        (first.status, &*first.headers["location"]),
        (303, "/dashboard/keys")
    );

    let csrf_ann = world.get("/dashboard/keys", &ann).await.csrf();
    let made = world
        .create_key(&ann, &format!("name=laptop&csrf={csrf_ann}"))
        .await;
    let key = made.inside("new-key").to_owned();
    let principal = world
        .accounts
        .api_keys()
        .authenticate(&key, now_ms())
        .unwrap();
    let organisation = world.accounts.find(&principal.account_id).unwrap().unwrap();
    assert_eq!(organisation.label(), "Acme <b>");
    let listed = world.get("/dashboard/keys", &owner).await;
    assert!(listed.body.contains("laptop") && listed.body.contains("ann@example.com"));

    // Her own account is another one, with its trial.
    let own = world
        .post("/dashboard/switch", &ann, &format!("csrf={csrf_ann}"))
        .await;
    assert_eq!(own.status, 303);
    let overview = world.get("/dashboard", &ann).await;
    assert_eq!(overview.inside("balance"), "300");
    assert!(
        !world
            .get("/dashboard/keys", &ann)
            .await
            .body
            .contains("laptop")
    );

    let remove = format!(
        "/dashboard/organisation/members/{}/remove",
        id_of(&world, "ann@example.com")
    );
    let fields = format!("csrf={csrf}&keys=revoke");
    assert_eq!(
        world.post(&remove, &owner, &fields).await.status,
        200,
        "asks first"
    );
    assert!(world.accepts(&key));
    let removed = world
        .post(&remove, &owner, &format!("{fields}&confirmed=yes"))
        .await;
    assert_eq!(removed.status, 303, "{}", removed.body);
    assert!(!world.accepts(&key));
    let csrf_ann = form_token(&world.accounts, token(&ann));
    let back = format!("account={}&csrf={csrf_ann}", organisation.id);
    world
        .post("/dashboard/switch", &ann, &back)
        .await
        .expect(404);
}

#[tokio::test]
async fn a_form_acts_on_no_other_account_than_its_page_showed() {
    let company = company().await;
    let (world, logins) = (&company.world, company.world.accounts.logins());
    let member = company.person(OrganisationRole::Member);
    let show = |shown| logins.show_account(token(&member.cookie), shown).unwrap();
    let keys_of = |account: &str| {
        let keys = world.accounts.api_keys();
        keys.keys(account).unwrap().len()
    };
    let counts = || (keys_of(&company.id), keys_of(&member.id));
    let before = counts();
    let send = async |csrf: &str| {
        let form = format!("name=laptop&count=1&csrf={csrf}");
        let refused = world.post("/dashboard/keys", &member.cookie, &form).await;
        assert_eq!(refused.status, 403);
        assert!(refused.body.contains("This form is out of date"));
        assert_eq!(counts(), before);
    };
    let of_company = world.get("/dashboard/keys", &member.cookie).await.csrf();
    show(None);
    send(&of_company).await;
    let own = world.get("/dashboard/keys", &member.cookie).await.csrf();
    show(Some(&company.id));
    send(&own).await;
    // Removed: the session shows the own account again.
    let admin = company.person(OrganisationRole::Admin);
    let by = actor(&admin.id);
    let acting = world.accounts.with_actor(&by, now_ms());
    acting
        .change_member(
            MemberAuthority::Member,
            &company.id,
            &member.id,
            MemberEdit::Remove,
            None,
        )
        .unwrap();
    send(&of_company).await;
}

/// Beginnings of paths, and which roles may use what is below: owner, admin, billing, member.
const ACCESS: [(&str, [bool; 4]); 10] = [
    ("/dashboard/keys", [true, true, false, true]),
    ("/dashboard/playground", [true, true, false, true]),
    ("/dashboard/setup", [true, true, false, true]),
    ("/dashboard/live", [true, true, true, false]),
    ("/dashboard/conversations", [true, true, true, false]),
    ("/dashboard/spending", [true, true, true, false]),
    ("/dashboard/alerts/webhook", [true, true, false, false]),
    ("/dashboard/alerts/deliveries", [true, true, false, false]),
    ("/dashboard/alerts", [true, true, true, false]),
    ("/dashboard/statement", [true, false, true, false]),
];

#[tokio::test]
async fn every_route_answers_each_role_of_an_organisation_as_it_is_meant_to() {
    let company = company().await;
    let mut refused = 0;
    for (method, path, _) in super::matrix::all() {
        // Those end the session, or need none.
        if path.starts_with("/dashboard/sign-") || *path == "/dashboard/live" {
            continue;
        }
        for (one, at) in company.people.iter().zip(0..) {
            let named = path.split('{').next().unwrap();
            let path = super::security::filled(path, "x");
            // The request before may have switched the account.
            let logins = company.world.accounts.logins();
            logins
                .show_account(token(&one.cookie), Some(&company.id))
                .unwrap();
            let csrf = form_token(&company.world.accounts, token(&one.cookie));
            let body = format!("csrf={csrf}");
            let response = match *method {
                "POST" => company.world.post(&path, &one.cookie, &body).await,
                _ => company.world.get(&path, &one.cookie).await,
            };
            let what = format!("{method} {path} for {:?}: {}", one.role, response.status);
            let rule = ACCESS.iter().find(|(start, _)| named.starts_with(start));
            let manages = matches!(one.role, OrganisationRole::Owner | OrganisationRole::Admin);
            let may = match rule {
                Some((_, may)) => may[at],
                None => !path.starts_with("/dashboard/organisation/invites") || manages,
            };
            let is_refused =
                response.status == 403 && response.body.contains("Your role in this organisation");
            assert_eq!(is_refused, !may, "{what}");
            assert!(response.status < 500, "{what}");
            refused += usize::from(is_refused);
            if is_refused && *method == "GET" {
                response.shows("<body class=\"app\">");
                response.shows("href=\"/dashboard/organisation\"");
            }
            if path.starts_with("/dashboard/operator") {
                assert_eq!(response.status, 404, "{what}");
            }
        }
    }
    assert!(refused >= 30, "{refused}");
}

#[tokio::test]
async fn a_member_sees_what_the_own_keys_spend_and_others_see_all() {
    let company = company().await;
    let world = &company.world;
    let spent = company.spend();
    let outsider = world.sign_up("outsider@example.com").await;
    let receipt = async |id: &str, role| {
        let path = format!("/dashboard/activity/{id}");
        world.get(&path, &company.person(role).cookie).await
    };
    for (of, id) in &spent {
        for role in OrganisationRole::ALL {
            let may = role != OrganisationRole::Member || *of == role;
            let page = receipt(id, role).await;
            assert_eq!(
                page.status,
                if may { 200 } else { 404 },
                "{id} of {of:?} for {role:?}"
            );
            let address = format!("(of {0} ({0}@example.com)", of.name());
            let address = address.trim_start_matches('(');
            assert_eq!(page.body.contains(address), may, "{}", page.body);
        }
    }
    let member = company.person(OrganisationRole::Member);
    let own = member.key.as_ref().unwrap();
    let other = company
        .person(OrganisationRole::Owner)
        .key
        .as_ref()
        .unwrap();
    for page in ["activity", "activity.csv"] {
        let all = world
            .get(
                &format!("/dashboard/{page}"),
                &company.person(OrganisationRole::Billing).cookie,
            )
            .await;
        let mine = world
            .get(&format!("/dashboard/{page}"), &member.cookie)
            .await;
        assert_eq!((all.status, mine.status), (200, 200));
        for (of, id) in &spent {
            assert!(all.body.contains(id), "{page}");
            assert_eq!(
                mine.body.contains(id),
                *of == OrganisationRole::Member,
                "{page} {id}"
            );
        }
        let path = format!("/dashboard/{page}?key={}", other.key_id);
        assert_eq!(world.get(&path, &member.cookie).await.status, 404, "{page}");
        let path = format!("/dashboard/{page}?key={}", own.key_id);
        assert_eq!(world.get(&path, &member.cookie).await.status, 200, "{page}");
        assert_eq!(world.get(&path, &outsider).await.status, 404, "{page}");
    }
    let query = format!("key={}", other.key_id);
    for (role, responses) in [
        (Some(OrganisationRole::Owner), [3, 1]),
        (Some(OrganisationRole::Admin), [3, 1]),
        (Some(OrganisationRole::Member), [1, 1]),
        (None, [3, 1]),
    ] {
        let key = role.map(|role| &*company.person(role).key.as_ref().unwrap().key_id);
        for (query, expected) in ["", &query].into_iter().zip(responses) {
            let query = UsageReportQuery::parse(query, now_ms()).unwrap();
            let reports = world.billing.reports();
            let report = reports.account_usage(&world.accounts, &company.id, key, &query);
            let report = report.unwrap();
            assert_eq!(report["total"]["responses"], expected, "{role:?}: {report}");
            if role == Some(OrganisationRole::Member) {
                assert!(!report.to_string().contains(&other.key_id), "{report}");
            }
        }
    }
    let found = format!("/dashboard/activity?q={}", spent[0].1);
    world.get(&found, &member.cookie).await.expect(422);

    let refused = world.refuse(&company.id, 1, (400, "invalid_request"));
    for role in OrganisationRole::ALL {
        let status = if role == OrganisationRole::Member {
            404
        } else {
            200
        };
        assert_eq!(receipt(&refused, role).await.status, status, "{role:?}");
    }
    let members = world
        .get(
            "/dashboard/organisation",
            &company.person(OrganisationRole::Billing).cookie,
        )
        .await;
    assert_eq!(
        members.body.matches("value=\"0.001\"").count(),
        3,
        "{}",
        members.body
    );
    let members = world.get("/dashboard/organisation", &member.cookie).await;
    assert_eq!(
        members.body.matches("value=\"0.001\"").count(),
        1,
        "the own"
    );
    let sees = |email: &str| members.body.contains(email);
    let seen =
        ["owner", "admin", "member", "billing"].map(|role| sees(&format!("{role}@example.com")));
    assert_eq!(seen, [true, true, true, false], "whom to ask, and no other");
    let export = world.get("/dashboard/account/export", &member.cookie).await;
    let membership = r#""organisation":"Acme","role":"member""#;
    assert!(export.body.contains(membership), "{}", export.body);
}

#[tokio::test]
async fn usage_by_member_is_of_who_held_the_key_when_it_was_used() {
    use OrganisationRole::{Admin, Member, Owner};
    let company = company().await;
    let world = &company.world;
    company.spend();
    let report = |role: Option<OrganisationRole>, query: &str| {
        let key = role.map(|role| &*company.person(role).key.as_ref().unwrap().key_id);
        let query = UsageReportQuery::parse(query, now_ms()).unwrap();
        let reports = world.billing.reports();
        let report = reports.account_usage(&world.accounts, &company.id, key, &query);
        let rows = report.unwrap()["data"].clone();
        let rows = rows.as_array().unwrap().iter();
        let row = |row: &Value| {
            assert_eq!(row["responses"], 1, "{row}");
            let member = &row["member"];
            (member["account_id"].clone(), member["email"].clone())
        };
        let mut rows: Vec<_> = rows.map(row).collect();
        rows.sort_by_key(|(_, email)| email.to_string());
        rows
    };
    let row = |role: OrganisationRole| {
        let email = format!("{}@example.com", role.name());
        (json!(company.person(role).id), json!(email))
    };
    let all = [row(Admin), row(Member), row(Owner)];
    for role in [None, Some(Owner), Some(Admin)] {
        assert_eq!(report(role, "group_by=member"), all, "{role:?}");
    }
    assert_eq!(report(Some(Member), "group_by=member"), [row(Member)]);

    let page = async |role: OrganisationRole| {
        let cookie = &company.person(role).cookie;
        world.get("/dashboard/spending?by=member", cookie).await
    };
    let shown = page(Owner).await.expect(200);
    for role in [Admin, Member, Owner] {
        shown.shows(&format!("{}@example.com", role.name()));
    }
    page(Member).await.expect(403);

    // What a role may not do, its pages do not offer.
    for (role, uses_keys, gets_credits) in [
        (Owner, true, true),
        (Admin, true, false),
        (OrganisationRole::Billing, false, true),
    ] {
        let cookie = &company.person(role).cookie;
        let overview = world.get("/dashboard", cookie).await.expect(200);
        let may_key = overview.body.contains(">Create key<");
        let may_set_up = overview.body.contains("href=\"/dashboard/setup\"");
        assert_eq!((may_key, may_set_up), (uses_keys, uses_keys), "{role:?}");
        let may_get = overview.body.contains("Get credits");
        assert_eq!(may_get, gets_credits, "{role:?}");
    }
    let cookie = &company.person(Admin).cookie;
    let playground = world.get("/dashboard/playground", cookie).await;
    playground.shows("Answers cost credits of Acme, like any other request.");

    let operator = actor("uid 0");
    let acting = world.accounts.with_actor(&operator, now_ms());
    let keys_to = Some(&*company.person(Member).id);
    let (by, admin) = (MemberAuthority::Operator, &company.person(Admin).id);
    acting
        .change_member(by, &company.id, admin, MemberEdit::Remove, keys_to)
        .unwrap();
    for query in ["group_by=member", "group_by=day,model,key,member"] {
        assert_eq!(report(Some(Owner), query), all, "{query}");
        let none = report(Some(Admin), query);
        assert_eq!(none, [], "the key is a member's now, the spending is not");
    }
    let closed = acting.delete_account(admin).unwrap();
    assert_eq!(closed, accounts::CloseAccountOutcome::Done);
    page(Owner)
        .await
        .expect(200)
        .shows(&format!("Former member ({admin})"));
    let of_admin = (json!(admin), Value::Null);
    assert!(report(None, "group_by=member").contains(&of_admin));
}

#[tokio::test]
async fn an_owner_or_admin_sets_the_budget_of_a_member() {
    let company = company().await;
    let world = &company.world;
    company.spend();
    let member = company.person(OrganisationRole::Member);
    let path = format!("/dashboard/organisation/members/{}/budget", member.id);
    let set = async |role, typed: &str| {
        let cookie = &company.person(role).cookie;
        let csrf = form_token(&company.world.accounts, token(cookie));
        world
            .post(&path, cookie, &format!("csrf={csrf}&{typed}"))
            .await
    };
    let budget = || {
        let keys = world.accounts.api_keys();
        let key = &member.key.as_ref().unwrap().key;
        let principal = keys.authenticate(key, now_ms()).unwrap();
        principal.spend_limits()[1].map(|limit| limit.to_string())
    };
    for (role, typed, status, now) in [
        (
            OrganisationRole::Owner,
            "budget=2.5&period=week",
            303,
            Some("2.5/week"),
        ),
        (
            OrganisationRole::Billing,
            "budget=9&period=day",
            403,
            Some("2.5/week"),
        ),
        (
            OrganisationRole::Member,
            "budget=9&period=day",
            403,
            Some("2.5/week"),
        ),
        (
            OrganisationRole::Admin,
            "budget=x&period=day",
            422,
            Some("2.5/week"),
        ),
        (
            OrganisationRole::Admin,
            "budget=-1&period=day",
            422,
            Some("2.5/week"),
        ),
        (
            OrganisationRole::Admin,
            "budget=9&period=year",
            422,
            Some("2.5/week"),
        ),
        (
            OrganisationRole::Admin,
            "budget=10&period=month",
            303,
            Some("10/month"),
        ),
    ] {
        let response = set(role, typed).await;
        assert_eq!(
            response.status, status,
            "{role:?} {typed}: {}",
            response.body
        );
        assert_eq!(budget().as_deref(), now, "{role:?} {typed}");
    }
    for (role, shows) in [
        (OrganisationRole::Billing, true),
        (OrganisationRole::Member, true),
        (OrganisationRole::Owner, true),
    ] {
        let page = world
            .get("/dashboard/organisation", &company.person(role).cookie)
            .await;
        let text = "0.001 of 10 credits this month";
        assert_eq!(page.body.contains(text), shows, "{role:?}: {}", page.body);
    }
    assert_eq!(
        set(OrganisationRole::Owner, "budget=&period=day")
            .await
            .status,
        303
    );
    assert_eq!(budget(), None);
}

#[tokio::test]
async fn keys_of_other_members_are_for_owners_and_admins() {
    let company = company().await;
    let world = &company.world;
    let owners = &company
        .person(OrganisationRole::Owner)
        .key
        .as_ref()
        .unwrap()
        .key_id;
    let member = company.person(OrganisationRole::Member);
    let csrf = form_token(&company.world.accounts, token(&member.cookie));
    let listed = world.get("/dashboard/keys", &member.cookie).await;
    assert!(listed.body.contains("of member") && !listed.body.contains("of owner"));
    assert!(listed.body.contains("Not revoked (1)"), "{}", listed.body);
    let key = format!("/dashboard/keys/{owners}");
    world.get(&key, &member.cookie).await.expect(404);
    let fields = format!("csrf={csrf}&confirmed=yes&overlap_hours=0&keeps_expiry=yes");
    for act in ["settings", "enable", "disable", "rotate", "revoke"] {
        let path = format!("{key}/{act}");
        assert_eq!(
            world.post(&path, &member.cookie, &fields).await.status,
            404,
            "{act}"
        );
    }
    let setup = world
        .get(&format!("/dashboard/setup?key={owners}"), &member.cookie)
        .await;
    assert!(!setup.body.contains(owners));
    let admin = company.person(OrganisationRole::Admin);
    world.get(&key, &admin.cookie).await.expect(200);
    let fields = format!(
        "csrf={}&confirmed=yes",
        form_token(&company.world.accounts, token(&admin.cookie))
    );
    let revoked = world
        .post(&format!("{key}/revoke"), &admin.cookie, &fields)
        .await;
    assert_eq!(revoked.status, 303);
}

#[tokio::test]
async fn a_role_that_is_taken_away_counts_for_a_page_that_is_open() {
    let company = company().await;
    let world = &company.world;
    let (owner, admin) = (
        company.person(OrganisationRole::Owner),
        company.person(OrganisationRole::Admin),
    );
    let csrf = world
        .get("/dashboard/organisation", &admin.cookie)
        .await
        .csrf();
    let by = actor(&owner.id);
    let member = MemberEdit::Role(OrganisationRole::Member);
    let acting = world.accounts.with_actor(&by, now_ms());
    acting
        .change_member(
            MemberAuthority::Member,
            &company.id,
            &admin.id,
            member,
            None,
        )
        .unwrap();
    let invite = format!("email=x%40example.com&role=admin&csrf={csrf}");
    let path = "/dashboard/organisation/invites";
    let refused = world.post(path, &admin.cookie, &invite).await;
    assert_eq!(refused.status, 403);
    refused.shows("Your role in this organisation does not allow this");
    let raise = format!("role=owner&csrf={csrf}");
    let path = format!("/dashboard/organisation/members/{}/role", admin.id);
    let refused = world.post(&path, &admin.cookie, &raise).await;
    assert_eq!(refused.status, 403);
    refused.shows("Your role in this organisation does not allow this");
}

#[tokio::test]
async fn an_admin_chooses_the_models_of_a_member() {
    let company = company().await;
    let world = &company.world;
    let admin = company.person(OrganisationRole::Admin);
    let member = company.person(OrganisationRole::Member);
    let path = format!("/dashboard/organisation/members/{}/models", member.id);
    let page = world.get(&path, &admin.cookie).await;
    assert!(
        page.body.contains("name=\"model:beta-5.2\""),
        "{}",
        page.body
    );
    assert!(!page.body.contains(" checked"), "all are allowed");
    let save = async |of: &Colleague, boxes: &str| {
        let csrf = form_token(&world.accounts, token(&of.cookie));
        let form = format!("csrf={csrf}{boxes}");
        world.post(&path, &of.cookie, &form).await
    };
    let unknown = save(admin, "&model:no-such=on").await;
    assert_eq!(unknown.status, 422);
    unknown.shows("does not exist");
    assert_eq!(save(admin, "&model:beta-5.2=on").await.status, 303);
    let may = |model: &str| {
        let keys = world.accounts.api_keys();
        let key = &member.key.as_ref().unwrap().key;
        keys.authenticate(key, now_ms()).unwrap().allows(model)
    };
    assert_eq!((may("beta-5.2"), may("beta-5.5")), (true, false));
    for role in [OrganisationRole::Billing, OrganisationRole::Member] {
        let other = company.person(role);
        world.get(&path, &other.cookie).await.expect(403);
        assert_eq!(save(other, "").await.status, 403, "{role:?}");
    }
    assert!(!may("beta-5.5"));
    let own = world.get("/dashboard/organisation", &member.cookie).await;
    assert!(own.body.contains("data-label=\"Models\">beta-5.2<"));
    for page in ["/dashboard/playground", "/dashboard/setup"] {
        let shown = world.get(page, &member.cookie).await.body;
        assert!(!shown.contains("beta-5.5"), "{page}");
    }
    assert_eq!(save(admin, "").await.status, 303);
    assert!(may("beta-5.5"));
}

#[tokio::test]
async fn a_fault_stands_beside_its_field_alone() {
    let company = company().await;
    let world = &company.world;
    let owner = company.person(OrganisationRole::Owner);
    let member = company.person(OrganisationRole::Member);
    let stranger = world.sign_up("stranger@example.com").await;
    let id_of_field = |field: &str, of: &Colleague| format!("{field}-{}", of.id);
    let path_of = |path: &str, of: &Colleague| format!("/members/{}/{path}", of.id);
    let (invites, role) = ("/invites".to_owned(), path_of("role", member));
    let (role_id, own_role_id) = (id_of_field("role", member), id_of_field("role", owner));
    let (budget, budget_id) = (path_of("budget", member), id_of_field("budget", member));
    for (path, fields, status, field) in [
        ("", "name=", 422, "name"),
        (&*invites, "role=member&email=x", 422, "email"),
        (
            &invites,
            "role=member&email=member%40example.com",
            409,
            "email",
        ),
        (&invites, "role=king&email=x%40example.com", 422, "role"),
        (&role, "role=king", 422, &*role_id),
        (&path_of("role", owner), "role=member", 409, &own_role_id),
        (&budget, "budget=1x&period=month", 422, &budget_id),
        (&budget, "budget=1&period=eon", 422, &budget_id),
        (&path_of("remove", owner), "confirmed=yes", 409, ""),
    ] {
        let cookie = if path.is_empty() {
            &stranger
        } else {
            &owner.cookie
        };
        let path = format!("/dashboard/organisation{path}");
        let csrf = form_token(&world.accounts, token(cookie));
        let form = format!("csrf={csrf}&{fields}");
        let refused = world.post(&path, cookie, &form).await.expect(status);
        refused.has_fault_at(field);
        let is_kept = refused.body.contains("value=\"1x\"");
        assert_eq!(is_kept, fields.contains("1x"), "{fields}");
    }
}

#[tokio::test]
async fn no_id_of_another_organisation_opens_anything() {
    let company = company().await;
    let world = &company.world;
    let spent = company.spend();
    let stranger = world.sign_up("stranger@example.com").await;
    let id = id_of(world, "stranger@example.com");
    let by = actor(&id);
    let acting = world.accounts.with_actor(&by, now_ms());
    let own = acting.create_organisation("Other", &id).unwrap().id;
    world
        .accounts
        .logins()
        .show_account(token(&stranger), Some(&own))
        .unwrap();
    let owner = actor(&company.person(OrganisationRole::Owner).id);
    let acting = world.accounts.with_actor(&owner, now_ms());
    acting
        .invite_member(&company.id, "x@example.com", OrganisationRole::Member)
        .unwrap();
    let invites = world.accounts.organisations();
    let invite = invites.invites(&company.id, now_ms()).unwrap().remove(0).id;
    let key = &company.people[0].key.as_ref().unwrap().key_id;
    let ids = [
        &*company.id,
        &invite,
        key,
        &company.people[3].id,
        &spent[0].1,
    ];
    let members = || invites.members(&company.id).unwrap();
    let before = members();
    let csrf = form_token(&company.world.accounts, token(&stranger));
    let mut asked = 0;
    for (method, path, _) in super::matrix::all().filter(|(_, path, _)| path.contains('{')) {
        for id in ids {
            let path = super::security::filled(path, id);
            let body = format!("csrf={csrf}&confirmed=yes&role=member&overlap_hours=1");
            let response = match *method {
                "POST" => world.post(&path, &stranger, &body).await,
                _ => world.get(&path, &stranger).await,
            };
            let is_link =
                path.starts_with("/dashboard/link/") || path.starts_with("/dashboard/join/");
            let status = if is_link { 410 } else { 404 };
            assert_eq!(
                response.status, status,
                "{method} {path}: {}",
                response.body
            );
            asked += 1;
        }
    }
    assert!(asked > 100, "{asked}");
    let switch = format!("csrf={csrf}&account={}", company.id);
    world
        .post("/dashboard/switch", &stranger, &switch)
        .await
        .expect(404);
    assert_eq!(members(), before);
    assert_eq!(invites.invites(&company.id, now_ms()).unwrap().len(), 1);
}

#[tokio::test]
async fn an_organisation_invites_at_most_a_hundred_times_an_hour() {
    let company = company().await;
    let owner = company.person(OrganisationRole::Owner);
    let csrf = form_token(&company.world.accounts, token(&owner.cookie));
    let fields = format!("email=x%40example.com&role=member&csrf={csrf}");
    let path = "/dashboard/organisation/invites";
    for number in 0..100 {
        let invited = company.world.post(path, &owner.cookie, &fields).await;
        assert_eq!(invited.status, 200, "{number}");
    }
    let refused = company.world.post(path, &owner.cookie, &fields).await;
    assert_eq!(refused.status, 429);
    assert!(refused.body.contains("Too many invitations. Try again in"));
}

#[tokio::test]
async fn without_organisations_each_session_shows_the_own_account() {
    let company = company().await;
    let member = company.person(OrganisationRole::Member);
    let off = config::parse(include_str!("../../../conf/local.yaml"), &|_| None).unwrap();
    company.world.state.settings.store(Arc::new(off));
    let overview = company.world.get("/dashboard", &member.cookie).await;
    assert_eq!(overview.inside("balance"), "300");
    assert!(!overview.body.contains("/dashboard/organisation"));
    let key = member.key.as_ref().unwrap();
    let keys = company.world.accounts.api_keys();
    assert!(keys.authenticate(&key.key, now_ms()).is_ok());
}

#[tokio::test]
async fn only_addresses_of_the_named_domains_sign_up() {
    let domains = "signup: {domains: [example.com, \"B\u{fc}cher.example\"], ";
    let world = world(&[("signup: {", domains)]).await;
    let text =
        "Only e-mail addresses of these domains can sign up: example.com, xn--bcher-kva.example.";
    let page = world.get("/dashboard/sign-up", "").await;
    assert!(page.body.contains(text), "{}", page.body);
    let form = format!("email=ann@sub.example.com&password={PASSWORD}");
    let refused = world.post("/dashboard/sign-up", "", &form).await;
    assert_eq!(refused.status, 403);
    assert_eq!(refused.body.matches(text).count(), 2, "{}", refused.body);
    world.sign_up("ann@example.com").await;
}
