//! `GET /v1/usage`: an account's debits in groups, against the receipts of the same responses.

use crate::account::micro;
use crate::client::{Answer, Request};
use crate::surface::{BOTH, Chat};
use crate::world::{SOON, World, wait_until};
use serde_json::{Value, json};

fn usage(world: &World, key: &str, query: &str) -> Answer {
    world.ask(&Request::get(&format!("/v1/usage{query}")).bearer(key))
}

fn report(world: &World, key: &str, query: &str) -> Value {
    let answer = usage(world, key, query);
    assert_eq!(answer.status, 200, "{query}: {}", answer.text());
    answer.json()
}

/// The members of one group, as key name, model, number of responses and millionths of a credit.
fn row(row: &Value) -> (&str, &str, u64, i64) {
    (
        row["key"]["name"].as_str().unwrap_or_default(),
        row["model"].as_str().unwrap_or_default(),
        row["responses"].as_u64().unwrap(),
        micro(&row["credits"]),
    )
}

#[test]
fn a_report_adds_up_to_the_receipts_in_every_grouping() {
    let (world, account) = World::with_account();
    let other = world.account_with("other@example.test", &[]);
    let (second_id, second) = world.key(&account.id, "night job");
    let mut cost = 0;
    for surface in BOTH {
        for key in [&account.key, &second] {
            let answer = world.expect(200, &surface.whole(key, "input=100 output=20"));
            cost += micro(&world.receipt(&account, &answer.request_id())["credits"]);
        }
    }
    world.ended(&account, 4);
    let all = report(&world, &account.key, "");
    assert_eq!(all["object"], "usage");
    assert_eq!(all["time_zone"], "UTC");
    assert_eq!(all["group_by"], json!(["day", "model", "key"]));
    assert_eq!(all["next"], Value::Null);
    assert_eq!(all["total"]["responses"], 4);
    assert_eq!(micro(&all["total"]["credits"]), cost);
    assert_eq!(all["total"]["tokens"]["output"], 80);
    let rows = all["data"].as_array().unwrap();
    assert_eq!(rows.iter().map(|one| row(one).3).sum::<i64>(), cost);
    assert!(
        rows.iter()
            .all(|row| row["day"].as_str().unwrap().len() == 10)
    );

    // The account decides, not the key that asks.
    assert_eq!(report(&world, &second, ""), all);
    assert_eq!(report(&world, &other.key, "")["total"]["responses"], 0);

    let by_key = report(&world, &account.key, "?group_by=key");
    let rows = by_key["data"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{by_key}");
    assert!(
        rows.iter()
            .all(|one| row(one).2 == 2 && one.get("model").is_none())
    );
    let mine = rows.iter().find(|one| one["key"]["id"] == json!(second_id));
    let mine = mine.unwrap();
    assert_eq!(row(mine).0, "night job");
    assert!(mine["key"]["shown"].as_str().unwrap().starts_with("gw-sk-"));
    assert!(!by_key.to_string().contains(&second), "the key itself");

    let filter = format!("?group_by=model&key={second_id}&model={}", Chat.model());
    let one = report(&world, &account.key, &filter);
    assert_eq!(one["data"].as_array().unwrap().len(), 1, "{one}");
    assert_eq!(
        row(&one["data"][0]),
        ("", Chat.model(), 1, Chat.cost(100, 20))
    );
    assert_eq!(one["data"][0]["credits"], one["total"]["credits"]);

    // Page by page, without gap or overlap.
    let (mut seen, mut query) = (Vec::new(), "?limit=1".to_owned());
    loop {
        let page = report(&world, &account.key, &query);
        assert_eq!(page["total"], all["total"]);
        seen.extend(page["data"].as_array().unwrap().clone());
        let Some(next) = page["next"].as_str() else {
            break;
        };
        query = format!("?limit=1&cursor={next}");
    }
    assert_eq!(json!(seen), all["data"]);

    // A revoked key keeps its name; it is not accepted any more.
    world.json(&["key", "revoke", &second_id]);
    wait_until("the revocation", SOON, || {
        usage(&world, &second, "").status == 401
    });
    assert_eq!(report(&world, &account.key, "?group_by=key"), by_key);
}

#[test]
fn a_query_that_is_not_valid_is_refused_in_the_shape_of_the_surface() {
    let (world, account) = World::with_account();
    for (query, code, named) in [
        ("?from=2026-02-30", "invalid_range", "from"),
        ("?from=2016-01-01&to=2026-12-31", "invalid_range", "from"),
        ("?group_by=hour", "invalid_group", "group_by"),
        ("?limit=1001", "invalid_limit", "limit"),
        ("?cursor=x", "invalid_cursor", "cursor"),
        ("?since=2026-01-01", "invalid_parameter", "since"),
    ] {
        let answer = usage(&world, &account.key, query);
        let error = &answer.json()["error"];
        assert_eq!(answer.status, 400, "{query}: {error}");
        assert_eq!(
            (&error["code"], &error["param"]),
            (&json!(code), &json!(named))
        );
        let request = Request::get(&format!("/v1/usage{query}"))
            .header("x-api-key", &account.key)
            .header("anthropic-version", "2023-06-01");
        let answer = world.ask(&request);
        let error = &answer.json()["error"];
        assert_eq!(answer.status, 400, "{query}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().unwrap().starts_with(named));
    }
    world.expect(401, &Request::get("/v1/usage"));
    let posted = world.ask(&Request::post("/v1/usage", "{}").bearer(&account.key));
    assert_eq!(
        (posted.status, posted.header("allow")),
        (405, Some("GET, HEAD"))
    );
}
