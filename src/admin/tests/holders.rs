//! Tests of accounts, links, keys and usage over the admin API.

use super::*;
use ::accounts::db::audit::{AuditRow, OutcomeKind};
use ::accounts::{AccountStatus, Actor, KeyScope};
use credits::money::Micro;

/// The address of a member's keys.
const KEYS: &str = "/accounts/a@example.com/keys";

#[tokio::test]
async fn an_account_is_created_with_a_link_that_sets_its_password() {
    let world = world().await;
    let body = json!({"email": "New@Example.com", "role": "viewer", "trial": false});
    let created = world.post("/accounts", &body).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let created = created.json();
    assert_eq!(
        (&created["email"], &created["role"], &created["balance"]),
        (&json!("new@example.com"), &json!("viewer"), &json!("0"))
    );
    let link = created["setup_link"].as_str().unwrap();
    let base_url = world.settings.load().base_url.clone();
    let token = link
        .strip_prefix(&format!("{base_url}/dashboard/link/"))
        .unwrap();
    let set = world
        .accounts
        .one_time_links()
        .set_password_by_link(token, "a long password", None, "", now_ms())
        .unwrap();
    assert_eq!(set.as_deref(), created["account_id"].as_str());

    let shortest = json!({"email": "t@example.com"});
    let trial = world.post("/accounts", &shortest).await.json();
    assert_eq!(
        (&trial["role"], &trial["balance"]),
        (&json!("member"), &json!("300"))
    );

    let again = body.to_string();
    world
        .fails("POST", "/accounts", &again, 409, "email_taken")
        .await;
    for (body, named) in [
        (json!({}), "email"),
        (json!({"email": "no address"}), "e-mail"),
        (json!({"email": "x@example.com", "role": "admin"}), "admin"),
        (
            json!({"email": "x@example.com", "password": "x"}),
            "password",
        ),
        (json!({"email": "x@example.com", "trial": "no"}), "boolean"),
    ] {
        let sent = body.to_string();
        let why = world
            .fails("POST", "/accounts", &sent, 400, "invalid")
            .await;
        assert!(why.contains(named), "{body}: {why}");
    }
    assert!(world.accounts.find("x@example.com").unwrap().is_none());
    let log = world.accounts.audit_log().rows(None, 10).unwrap();
    let acts: Vec<_> = log.iter().rev().map(|line| line.act.as_str()).collect();
    assert_eq!(
        acts,
        [
            "account.create",
            "account.create-link",
            "account.use-link",
            "account.create",
            "account.create-link"
        ]
    );
    let root = world.accounts.find("root@example.com").unwrap().unwrap().id;
    assert_eq!(log.last().unwrap().actor, root);
    assert!(log.iter().all(|line| !line.after.contains(token)));
}

#[tokio::test]
async fn links_are_for_active_accounts_of_others_than_administrators() {
    let world = world().await;
    let path = "/accounts/a@example.com/links";
    for purpose in ["reset", "setup"] {
        let created = world.post(path, &json!({"purpose": purpose})).await;
        assert_eq!(created.status, 201, "{}", created.body);
        let created = created.json();
        assert_eq!(created["purpose"], purpose);
        let (_, token) = created["url"]
            .as_str()
            .unwrap()
            .split_at(world.settings.load().base_url.len() + "/dashboard/link/".len());
        let found = world
            .accounts
            .one_time_links()
            .one_time_link(token, now_ms())
            .unwrap();
        assert_eq!(found.unwrap().purpose.name(), purpose);
    }
    for body in ["{\"purpose\":\"verify\"}", "{}", "{\"purpose\":null}", ""] {
        world.fails("POST", path, body, 400, "invalid").await;
    }
    let reset = "{\"purpose\":\"reset\"}";
    let own = "/accounts/root@example.com/links";
    world.fails("POST", own, reset, 422, "refused").await;
    let none = "/accounts/acct_none/links";
    world.fails("POST", none, reset, 404, "not_found").await;
    let account = world.accounts.find("a@example.com").unwrap().unwrap().id;
    world
        .accounts
        .set_status(&account, AccountStatus::Suspended)
        .unwrap();
    world.fails("POST", path, reset, 404, "not_found").await;
}

#[tokio::test]
async fn accounts_are_found_by_a_part_of_what_identifies_them() {
    let world = world().await;
    let account = world.accounts.find("a@example.com").unwrap().unwrap().id;
    for (query, emails) in [
        ("q=A@ex", vec!["a@example.com"]),
        ("q=nobody", vec![]),
        ("q=", vec!["root@example.com", "a@example.com"]),
        ("q=EXAMPLE", vec!["root@example.com", "a@example.com"]),
        ("q=example&limit=1", vec!["root@example.com"]),
        (&format!("q={}", &account[5..]), vec!["a@example.com"]),
        (&format!("q={}", world.key_id), vec!["a@example.com"]),
    ] {
        let found = world.ask("GET", &format!("/accounts?{query}"), "").await;
        let found = found.json();
        let rows = found["accounts"].as_array().unwrap();
        let found: Vec<_> = rows
            .iter()
            .map(|row| row["email"].as_str().unwrap())
            .collect();
        assert_eq!(found, emails, "{query}");
    }
}

#[tokio::test]
async fn a_key_is_created_shown_once_changed_rotated_and_revoked() {
    let world = world().await;
    let model = world.settings.load().catalog.models()[0].id.clone();
    let body = json!({
        "name": "ci", "expires_in_seconds": 3_600, "spend_limit": "100/day", "models": [model],
        "scope": "inference", "requests_per_minute": 7,
    });
    let created = world.post(KEYS, &body).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let created = created.json();
    let (id, text) = (
        created["key_id"].as_str().unwrap(),
        created["key"].as_str().unwrap(),
    );
    let principal = world
        .accounts
        .api_keys()
        .authenticate(text, now_ms())
        .unwrap();
    assert_eq!(principal.settings.scope, Some(KeyScope::Inference));
    assert_eq!(principal.settings.allowed_models, [model.as_str()]);
    assert_eq!(principal.settings.rates.requests_per_minute, Some(7));
    let limit = json!({"credits": "100", "period": "day"});
    assert_eq!(created["spend_limit"], limit);

    let path = format!("/keys/{id}");
    let shown = world.ask("GET", &path, "").await.json();
    assert_eq!((&shown["name"], shown.get("key")), (&json!("ci"), None));
    let listed = world.ask("GET", KEYS, "").await;
    assert!(!listed.body.contains(text));
    assert_eq!(listed.json()["keys"].as_array().unwrap().len(), 2);

    // What the body does not have stays; null resets it.
    let change = json!({"expires_in_seconds": null, "models": null, "concurrent": 2});
    let changed = world.ask("PATCH", &path, &change.to_string()).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    let changed = changed.json();
    assert_eq!(
        (
            &changed["expires_at"],
            &changed["models"],
            &changed["spend_limit"]
        ),
        (&Value::Null, &json!([]), &limit)
    );
    let rates = json!({"requests_per_minute": 7, "tokens_per_minute": null, "concurrent": 2});
    assert_eq!(changed["rates"], rates);

    let (rotate, at_once) = (format!("{path}/rotate"), json!({"overlap_seconds": 0}));
    let rotated = world.post(&rotate, &at_once).await;
    assert_eq!(rotated.status, 201, "{}", rotated.body);
    let rotated = rotated.json();
    assert_eq!(
        (&rotated["name"], &rotated["spend_limit"]),
        (&json!("ci"), &limit)
    );
    assert!(
        world
            .accounts
            .api_keys()
            .authenticate(text, now_ms())
            .is_err()
    );
    let new = rotated["key"].as_str().unwrap();
    let id = rotated["key_id"].as_str().unwrap();
    let to = world
        .post("/accounts", &json!({"email": "b@example.com"}))
        .await
        .json();
    let path = format!("/keys/{id}/move");
    for (body, status, code) in [
        (r#"{"to":"root@example.com"}"#, 422, "refused"),
        (r#"{"to":"a@example.com"}"#, 422, "refused"),
        (
            r#"{"to":"b@example.com","member":"a@example.com"}"#,
            422,
            "refused",
        ),
        (r#"{"to":"nobody@example.com"}"#, 404, "not_found"),
        ("{}", 400, "invalid"),
    ] {
        world.fails("POST", &path, body, status, code).await;
    }
    let moved = world.post(&path, &json!({"to": "b@example.com"})).await;
    assert_eq!(moved.status, 200, "{}", moved.body);
    let moved = moved.json();
    assert_eq!(
        (&moved["account_id"], &moved["moved_from"]),
        (&to["account_id"], &json!(id))
    );
    let keys = world.accounts.api_keys();
    let principal = keys.authenticate(new, now_ms()).unwrap();
    assert_eq!(json!(*principal.account_id), to["account_id"]);
    let path = format!("/keys/{}", moved["key_id"].as_str().unwrap());
    assert_eq!(
        world
            .ask("POST", &format!("{path}/revoke"), "")
            .await
            .status,
        200
    );
    assert!(
        world
            .accounts
            .api_keys()
            .authenticate(new, now_ms())
            .is_err()
    );
    assert_eq!(
        world.ask("GET", &path, "").await.json()["status"],
        "revoked"
    );
    for (method, act) in [("PATCH", ""), ("POST", "/rotate"), ("POST", "/revoke")] {
        let path = format!("{path}{act}");
        world.fails(method, &path, "{}", 404, "not_found").await;
    }
    let log = world.accounts.audit_log().rows(None, 20).unwrap();
    let acts = |outcome| {
        let is_it = |row: &&AuditRow| row.act.starts_with("key.") && row.outcome.kind == outcome;
        let rows = log.iter().rev().filter(is_it);
        rows.map(|row| &row.act["key.".len()..]).collect::<Vec<_>>()
    };
    let done = ["create", "set", "rotate", "move", "move", "revoke"];
    assert_eq!(acts(OutcomeKind::Done), done);
    let refused = ["move", "move", "move", "set", "rotate"];
    assert_eq!(acts(OutcomeKind::Refused), refused);
    assert!(log.iter().all(|line| !line.after.contains(text)));
}

#[tokio::test]
async fn a_key_that_is_not_valid_or_of_an_administrator_is_not_created() {
    let world = world().await;
    for (body, named) in [
        (json!({}), "name"),
        (json!({"name": "x".repeat(65)}), "name"),
        (
            json!({"name": "x", "expires_in_seconds": 0}),
            "expires_in_seconds",
        ),
        (
            json!({"name": "x", "expires_in_seconds": 3_660 * 86_400 + 1}),
            "expires_in_seconds",
        ),
        (json!({"name": "x", "spend_limit": "much"}), "spend_limit"),
        (json!({"name": "x", "models": ["none"]}), "models"),
        (json!({"name": "x", "scope": "all"}), "inference"),
        (
            json!({"name": "x", "requests_per_minute": u64::MAX}),
            "rate",
        ),
        (json!({"name": "x", "expires_in": "1d"}), "expires_in"),
    ] {
        let sent = body.to_string();
        let why = world.fails("POST", KEYS, &sent, 400, "invalid").await;
        assert!(why.contains(named), "{body}: {why}");
    }
    let path = format!("/keys/{}", world.key_id);
    let name = "{\"name\":\"other\"}";
    world.fails("PATCH", &path, name, 400, "invalid").await;
    let overlap = "{\"overlap_seconds\":2592001}";
    let rotate = format!("{path}/rotate");
    world.fails("POST", &rotate, overlap, 400, "invalid").await;
    assert_eq!(
        world.ask("GET", KEYS, "").await.json()["keys"]
            .as_array()
            .unwrap()
            .len(),
        1
    );

    let root = world.accounts.find("root@example.com").unwrap().unwrap().id;
    let own = world.accounts.api_keys().keys(&root).unwrap()[0].id.clone();
    for (method, path, body) in [
        ("POST", format!("/accounts/{root}/keys"), "{\"name\":\"x\"}"),
        ("PATCH", format!("/keys/{own}"), "{\"scope\":null}"),
        ("POST", format!("/keys/{own}/rotate"), ""),
    ] {
        world.fails(method, &path, body, 422, "refused").await;
    }
    assert_eq!(world.accounts.api_keys().keys(&root).unwrap().len(), 1);
    world
        .fails("GET", "/keys/key_none", "", 404, "not_found")
        .await;
}

#[tokio::test]
async fn usage_is_the_holders_report() {
    let world = world().await;
    let path = "/accounts/a@example.com/usage";
    let report = world.ask("GET", &format!("{path}?group_by=key"), "").await;
    assert_eq!(report.status, 200, "{}", report.body);
    let report = report.json();
    assert_eq!(
        (&report["group_by"], &report["data"]),
        (&json!(["key"]), &json!([]))
    );
    assert_eq!(report["total"]["responses"], 0);
    let range = format!("{path}?from=2026-02-02&to=2026-02-01");
    let why = world.fails("GET", &range, "", 400, "invalid").await;
    assert!(why.starts_with("from"), "{why}");
    let none = "/accounts/acct_none/usage";
    world.fails("GET", none, "", 404, "not_found").await;
}

#[tokio::test]
async fn an_account_is_merged_into_another_one_once() {
    let world = world().await;
    let to = world
        .post(
            "/accounts",
            &json!({"email": "b@example.com", "trial": false}),
        )
        .await
        .json();
    let id = &world.accounts.find("a@example.com").unwrap().unwrap().id;
    let grant = json!({"credits": "5", "ref": "funds"});
    let granted = world.post(&format!("/accounts/{id}/grants"), &grant).await;
    assert_eq!(granted.status, 201, "{}", granted.body);
    let path = format!("/accounts/{id}/merge");
    let into = json!({"into": "b@example.com"});
    let active = into.to_string();
    for (body, status, code) in [
        ("{}", 400, "invalid"),
        (r#"{"into":"nobody@example.com"}"#, 404, "not_found"),
        (r#"{"into":"root@example.com"}"#, 422, "refused"),
        (&*active, 422, "refused"),
    ] {
        world.fails("POST", &path, body, status, code).await;
    }
    let suspend = format!("/accounts/{id}/suspend");
    assert_eq!(world.post(&suspend, &json!({})).await.status, 200);
    // The merge was begun, and the account has less now than the part that was to be taken first.
    let by = Actor {
        actor: "uid 0".to_owned(),
        address: String::new(),
    };
    let acting = world.accounts.with_actor(&by, now_ms());
    let target = to["account_id"].as_str().unwrap();
    acting.start_merge(id, target, None).unwrap();
    let merges = world.accounts.merges();
    merges.set_part(id, 1, Micro::new(5_000_000)).unwrap();
    let late = Micro::new(-2_000_000);
    let corrections = world.billing.corrections();
    corrections
        .adjust(id, late, "late", "late", now_ms())
        .unwrap();
    for is_new in [true, false] {
        let merged = world.post(&path, &into).await;
        assert_eq!(merged.status, 200, "{}", merged.body);
        let merged = merged.json();
        assert_eq!(
            (&merged["account_id"], &merged["credits"], &merged["is_new"]),
            (&to["account_id"], &json!("3"), &json!(is_new))
        );
    }
    let principal = (world.accounts.api_keys()).authenticate(&world.key, now_ms());
    assert_eq!(json!(*principal.unwrap().account_id), to["account_id"]);
    let balance = |id: &str| world.billing.balance(id, now_ms()).unwrap().balance;
    let to = to["account_id"].as_str().unwrap();
    assert_eq!(balance(to).to_string(), "3");
    assert_eq!(balance(id), Micro::ZERO);
    let log = world.accounts.audit_log().rows(None, 100).unwrap();
    let lines = |object: &str| {
        let lines = log
            .iter()
            .filter(|row| row.act == "account.merge" && row.object == object);
        let done = lines.filter(|row| row.outcome.kind == OutcomeKind::Done);
        done.count()
    };
    assert_eq!((lines(id), lines(to)), (2, 2));
}
