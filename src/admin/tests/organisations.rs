//! Tests of organisations and their members over the admin API.

use super::openapi::turn_all_on;
use super::*;
use ::accounts::Actor;
use ::accounts::db::audit::OutcomeKind;

/// A world with organisations, and an organisation of `a@example.com`. Returns its path.
async fn organisation() -> (World, String) {
    let world = world().await;
    turn_all_on(&world);
    let body = json!({"name": " Acme ", "owner": "a@example.com"});
    let created = world.post("/organisations", &body).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let created = created.json();
    let member = &created["members"][0];
    assert_eq!(
        (&created["name"], &member["email"], &member["role"]),
        (&json!("Acme"), &json!("a@example.com"), &json!("owner"))
    );
    let path = format!("/organisations/{}", created["account_id"].as_str().unwrap());
    (world, path)
}

#[tokio::test]
async fn an_organisation_is_created_and_its_members_are_added_changed_and_removed() {
    let (world, path) = organisation().await;
    let id = path.rsplit_once('/').unwrap().1;
    let listed = world.ask("GET", "/organisations", "").await.json();
    assert_eq!(listed["organisations"][0]["account_id"], id);
    let full = world.ask("GET", "/organisations?limit=1", "").await.json();
    let next = format!("/organisations?cursor={}", full["next"].as_str().unwrap());
    let rest = world.ask("GET", &next, "").await.json();
    assert_eq!(
        (&rest["organisations"], &rest["next"]),
        (&json!([]), &Value::Null)
    );
    let balance = world
        .ask("GET", &format!("/accounts/{id}"), "")
        .await
        .json();
    assert_eq!(balance["balance"], "0", "no trial");

    for email in ["ann@example.com", "bob@example.com"] {
        world.post("/accounts", &json!({"email": email})).await;
    }
    let members = format!("{path}/members");
    let added = world
        .post(&members, &json!({"person": "ann@example.com"}))
        .await;
    assert_eq!(added.status, 201, "{}", added.body);
    let body = json!({"person": "bob@example.com", "role": "admin"});
    let roles = |document: &Value| {
        let members = document["members"].as_array().unwrap().iter();
        let role = |member: &Value| member["role"].as_str().unwrap().to_owned();
        members.map(role).collect::<Vec<_>>()
    };
    let added = world.post(&members, &body).await.json();
    assert_eq!(roles(&added), ["owner", "member", "admin"], "by address");

    let ann = format!("{members}/ann@example.com");
    let set = async |body: Value| world.ask("PATCH", &ann, &body.to_string()).await.json();
    let changed = set(json!({"budget": "5/month"})).await;
    assert_eq!(changed["members"][1]["budget"], "5/month");
    let changed = set(json!({"role": "billing"})).await;
    assert_eq!(roles(&changed), ["owner", "billing", "admin"]);
    assert_eq!(changed["members"][1]["budget"], "5/month");
    let changed = set(json!({"budget": null})).await;
    assert_eq!(changed["members"][1]["budget"], Value::Null);

    let model = world.settings.load().catalog.models()[0].id.clone();
    let changed = set(json!({"models": [model]})).await;
    assert_eq!(changed["members"][1]["models"], json!([model]));
    let changed = set(json!({"models": null})).await;
    assert_eq!(changed["members"][1]["models"], json!([]));

    let keys = format!("/accounts/{id}/keys");
    let body = json!({"name": "ci", "member": "bob@example.com"});
    let key = world.post(&keys, &body).await.json();
    let works = || {
        let keys = world.accounts.api_keys();
        keys.authenticate(key["key"].as_str().unwrap(), now_ms())
            .is_ok()
    };
    let change = json!({"member": "a@example.com"}).to_string();
    let one = format!("/keys/{}", key["key_id"].as_str().unwrap());
    world.fails("PATCH", &one, &change, 400, "invalid").await;
    let remove = format!("{members}/bob@example.com/remove");
    let to_billing = json!({"keys_to": "ann@example.com"}).to_string();
    world
        .fails("POST", &remove, &to_billing, 404, "not_found")
        .await;
    let removed = world
        .post(&remove, &json!({"keys_to": "a@example.com"}))
        .await;
    assert_eq!(roles(&removed.json()), ["owner", "billing"]);
    assert!(works(), "handed over");
    let remove = format!("{members}/ann@example.com/remove");
    let removed = world.ask("POST", &remove, "").await;
    assert_eq!(
        (removed.status, roles(&removed.json())),
        (200, vec!["owner".to_owned()])
    );
}

#[tokio::test]
async fn what_an_organisation_does_not_allow_is_refused_and_in_the_audit_log() {
    let (world, path) = organisation().await;
    let members = format!("{path}/members");
    let owner = format!("{members}/a@example.com");
    let before = world.accounts.audit_log().rows(None, 99).unwrap().len();
    for (method, path, body, status, code) in [
        (
            "POST",
            &*members,
            json!({"person": "a@example.com"}),
            422,
            "refused",
        ),
        ("PATCH", &owner, json!({"role": "admin"}), 422, "refused"),
        (
            "POST",
            &format!("{owner}/remove"),
            json!({}),
            422,
            "refused",
        ),
        (
            "PATCH",
            &format!("{members}/root@example.com"),
            json!({"budget": null}),
            404,
            "not_found",
        ),
    ] {
        world
            .fails(method, path, &body.to_string(), status, code)
            .await;
    }
    let lines = world.accounts.audit_log().rows(None, 99).unwrap();
    let refused = &lines[..lines.len() - before];
    assert_eq!(refused.len(), 4);
    let root = world.accounts.find("root@example.com").unwrap().unwrap().id;
    for line in refused {
        assert_eq!(
            (line.outcome.kind, &line.actor),
            (OutcomeKind::Refused, &root)
        );
    }
    let none = "/organisations/a@example.com";
    world.fails("GET", none, "", 404, "not_found").await;
    for (path, body) in [
        (
            "/organisations",
            json!({"name": "a\u{202e}b", "owner": "a@example.com"}),
        ),
        ("/organisations", json!({"name": "x"})),
        (
            &*members,
            json!({"person": "root@example.com", "role": "boss"}),
        ),
    ] {
        world
            .fails("POST", path, &body.to_string(), 400, "invalid")
            .await;
    }
    for body in [
        json!({}),
        json!({"role": "admin", "budget": "1/day"}),
        json!({"budget": "much"}),
        json!({"models": ["no-such-model"]}),
    ] {
        world
            .fails("PATCH", &owner, &body.to_string(), 400, "invalid")
            .await;
    }
}

#[tokio::test]
async fn an_operator_revokes_an_invitation() {
    let (world, path) = organisation().await;
    let owner = world.accounts.find("a@example.com").unwrap().unwrap().id;
    let by = Actor {
        actor: owner,
        address: "192.0.2.1".to_owned(),
    };
    let acting = world.accounts.with_actor(&by, now_ms());
    let id = path.rsplit_once('/').unwrap().1;
    let role = ::accounts::OrganisationRole::Admin;
    let new = acting.invite_member(id, "x@example.com", role).unwrap();
    let shown = world.ask("GET", &path, "").await;
    assert!(!shown.body.contains(&new.token));
    let invite = shown.json()["invites"][0].clone();
    assert_eq!(
        (&invite["email"], &invite["role"]),
        (&json!("x@example.com"), &json!("admin"))
    );
    let revoke = format!(
        "{path}/invites/{}/revoke",
        invite["invite_id"].as_str().unwrap()
    );
    let revoked = world.ask("POST", &revoke, "").await;
    assert_eq!(
        (revoked.status, &revoked.json()["invites"]),
        (200, &json!([]))
    );
    let found = world.accounts.organisations().invite(&new.token, now_ms());
    assert_eq!(found.unwrap(), None);
    world.fails("POST", &revoke, "", 404, "not_found").await;
}

#[tokio::test]
async fn an_operator_claims_a_domain_and_releases_it() {
    let (world, path) = organisation().await;
    let domains = format!("{path}/domains");
    let body = json!({"domain": "Example.com"});
    let claimed = world.post(&domains, &body).await;
    assert_eq!(
        (claimed.status, &claimed.json()["domains"]),
        (201, &json!(["example.com"]))
    );
    let other = json!({"name": "Other", "owner": "a@example.com"});
    let other = world.post("/organisations", &other).await.json();
    let other = format!(
        "/organisations/{}/domains",
        other["account_id"].as_str().unwrap()
    );
    let taken = body.to_string();
    world.fails("POST", &other, &taken, 422, "refused").await;
    let release = format!("{domains}/example.com/remove");
    let not_theirs = format!("{other}/example.com/remove");
    world.fails("POST", &not_theirs, "", 404, "not_found").await;
    let bad = json!({"domain": "ann@example.com"}).to_string();
    world.fails("POST", &domains, &bad, 400, "invalid").await;
    let released = world.ask("POST", &release, "").await;
    assert_eq!(
        (released.status, &released.json()["domains"]),
        (200, &json!([]))
    );
    world.fails("POST", &release, "", 404, "not_found").await;
    let acts = world.accounts.audit_log().rows(None, 99).unwrap();
    let acts = acts.into_iter().filter(|row| row.act.contains("claim"));
    let outcomes: Vec<_> = acts.map(|row| row.outcome.kind).collect();
    assert_eq!(outcomes, [OutcomeKind::Refused, OutcomeKind::Done]);
}
