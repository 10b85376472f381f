//! Tests the pages of keys: creation, which redirects to the page of the new key; settings, rate
//! limits, pause, rotation and revocation.

use super::*;

#[tokio::test]
async fn a_key_is_made_with_limits_changed_paused_rotated_and_revoked() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let account = world.accounts.find("a@example.com").unwrap().unwrap().id;
    let token = world.get("/dashboard/account", &cookie).await.csrf();
    let post = async |path: &str, fields: &str| {
        world
            .post(path, &cookie, &format!("csrf={token}&{fields}"))
            .await
    };
    let fields = "name=laptop&expires_days=30&spend_credits=12.5&spend_period=month&\
                  model:beta-5.2=on&requests_per_minute=60&concurrent=0";
    let made = world
        .create_key(&cookie, &format!("csrf={token}&{fields}"))
        .await;
    let key = made.inside("new-key").to_owned();
    let set = world
        .accounts
        .api_keys()
        .authenticate(&key, now_ms())
        .unwrap()
        .settings;
    assert_eq!(set.allowed_models, ["beta-5.2"]);
    assert_eq!(set.spend_limit.unwrap().to_string(), "12.5/month");
    let days = (set.expires_at_ms.unwrap() - now_ms()) / 86_400_000;
    assert!((29..=30).contains(&days), "{days}");
    let rates = set.rates;
    assert_eq!(
        (rates.requests_per_minute, rates.tokens_per_minute),
        (Some(60), None)
    );
    assert_eq!(rates.concurrent, Some(0));
    let list = world.get("/dashboard/keys", &cookie).await.body;
    assert!(
        list.contains("0 of 12.5 credits this month") && list.contains("never"),
        "{list}"
    );

    let invisible = "one line without invisible characters";
    for (fields, fault, field) in [
        (
            "name=k&spend_credits=x&spend_period=day",
            "Spend limit",
            "spend_credits",
        ),
        (
            "name=k&spend_credits=1&spend_period=year",
            "period",
            "spend_credits",
        ),
        (
            "name=k&spend_credits=-1&spend_period=day",
            "must not be below 0",
            "spend_credits",
        ),
        ("name=a%0Ab", invisible, "name"),
        ("name=a%E2%80%AEb", invisible, "name"),
        ("name=k&expires_days=2", "expires", "expires_days"),
        ("name=k&model:no-such=on", "does not exist", ""),
        (
            "name=k&requests_per_minute=x",
            "Requests per minute: enter",
            "requests_per_minute",
        ),
        (
            "name=k&tokens_per_minute=-1",
            "Tokens per minute: enter",
            "tokens_per_minute",
        ),
        (
            "name=k&concurrent=1000000001",
            "Concurrent requests: enter",
            "concurrent",
        ),
        (
            "name=k&concurrent=1.5",
            "Concurrent requests: enter",
            "concurrent",
        ),
    ] {
        let refused = post("/dashboard/keys", fields).await;
        assert_eq!(refused.status, 422, "{fields}");
        assert!(refused.body.contains(fault), "{fields}");
        refused.has_fault_at(field);
        let (_, typed) = fields.rsplit_once('=').unwrap();
        let is_kept = refused.body.contains(&format!("value=\"{typed}\""));
        assert!(is_kept || !fault.contains("enter"), "{fields} is lost");
    }
    assert_eq!(
        world.accounts.api_keys().keys(&account).unwrap().len(),
        1,
        "nothing was made"
    );

    let id = world.accounts.api_keys().keys(&account).unwrap()[0]
        .id
        .clone();
    let at = |what: &str| format!("/dashboard/keys/{id}/{what}");
    let saved = post(
        &at("settings"),
        "expires_days=keep&spend_credits=&spend_period=day&tokens_per_minute=1000000000",
    )
    .await;
    assert_eq!(saved.status, 200, "{}", saved.body);
    let changed = world
        .accounts
        .api_keys()
        .authenticate(&key, now_ms())
        .unwrap()
        .settings;
    assert_eq!(changed.expires_at_ms, set.expires_at_ms, "kept");
    assert!(changed.spend_limit.is_none() && changed.allowed_models.is_empty());
    assert_eq!(changed.rates.requests_per_minute, None, "the default again");
    assert_eq!(changed.rates.tokens_per_minute, Some(1_000_000_000));

    let question = post(&at("disable"), "").await;
    assert!(question.status == 200 && question.body.contains("Disable this key?"));
    assert!(world.accepts(&key));
    assert_eq!(post(&at("disable"), "confirmed=yes").await.status, 303);
    assert!(!world.accepts(&key));
    assert_eq!(post(&at("enable"), "").await.status, 303);
    assert!(world.accepts(&key));

    assert_eq!(post(&at("rotate"), "overlap_hours=2").await.status, 422);
    let question = post(&at("rotate"), "overlap_hours=0&once=0123456789abcdef").await;
    assert!(question.status == 200 && question.body.contains("Rotate this key at once?"));
    for repeated in [
        "overlap_hours\" value=\"0\"",
        "once\" value=\"0123456789abcdef\"",
    ] {
        assert!(question.body.contains(repeated), "{repeated}");
    }
    assert_eq!(world.accounts.api_keys().keys(&account).unwrap().len(), 1);
    let fields = format!("csrf={token}&overlap_hours=1");
    let rotated = world.create_key_by(&at("rotate"), &cookie, &fields).await;
    assert!(rotated.body.contains("The old key works until"));
    let new = rotated.inside("new-key").to_owned();
    assert_ne!(new, key);
    let now = now_ms();
    assert!(
        world.accounts.api_keys().authenticate(&key, now).is_ok(),
        "the old key works on"
    );
    assert!(
        world
            .accounts
            .api_keys()
            .authenticate(&key, now + 3_600_001)
            .is_err(),
        "for an hour"
    );
    assert!(
        world
            .accounts
            .api_keys()
            .authenticate(&new, now + 3_600_001)
            .is_ok()
    );

    assert_eq!(post(&at("revoke"), "").await.status, 200);
    assert_eq!(post(&at("revoke"), "confirmed=yes").await.status, 303);
    assert_eq!(
        world
            .get(&format!("/dashboard/keys/{id}"), &cookie)
            .await
            .status,
        404,
        "a dead key has no page"
    );
    assert!(world.accepts(&new), "another key is not revoked");
}

#[tokio::test]
async fn a_reload_or_a_form_that_is_sent_twice_makes_no_second_key() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let account = world.accounts.find("a@example.com").unwrap().unwrap().id;
    let count = || world.accounts.api_keys().keys(&account).unwrap().len();
    let form = world.get("/dashboard/keys", &cookie).await;
    let (_, rest) = form.body.split_once("name=\"once\" value=\"").unwrap();
    let (csrf, once) = (form.csrf(), rest.split_once('"').unwrap().0);
    let fields = format!("csrf={csrf}&name=laptop&once={once}");
    let send = async |fields: &str| {
        let sent = world.post("/dashboard/keys", &cookie, fields).await;
        assert_eq!(sent.status, 303, "{}", sent.body);
        sent.headers["location"].clone()
    };
    let (one, other) = tokio::join!(send(&fields), send(&fields));
    assert_eq!((&one, count()), (&other, 1), "a double click makes one key");

    let page = world.get(&one, &cookie).await;
    let key = page.inside("new-key").to_owned();
    assert_eq!(page.headers["cache-control"], "no-store");
    assert!(page.body.contains("this page shows it for 5 minutes"));
    assert!(world.accepts(&key));
    for _ in 0..3 {
        let again = world.get(&one, &cookie).await;
        assert_eq!(again.inside("new-key"), key, "a reload shows the same key");
    }
    assert_eq!((send(&fields).await, count()), (one.clone(), 1));

    // The same page's form with another name asks for another key; so does a new page's form.
    let server = fields.replace("laptop", "server");
    let other = send(&server).await;
    let changed = world.get(&other, &cookie).await;
    assert!(changed.body.contains("Your new key: server") && count() == 2);
    assert_ne!(other, one, "each key has its own page");
    let first = world.get(&one, &cookie).await;
    assert_eq!(first.inside("new-key"), key, "the first key still shows");
    assert_eq!(
        (send(&fields).await, send(&server).await),
        (one.clone(), other)
    );
    assert_eq!(count(), 2, "each form leads back to its key");
    let next = world.get("/dashboard/keys", &cookie).await;
    assert!(!next.body.contains(once), "every form has its own number");
    for key in world.accounts.api_keys().keys(&account).unwrap() {
        assert!(
            world
                .accounts
                .api_keys()
                .revoke_key(None, &key.id, now_ms())
                .unwrap()
        );
    }
    assert_eq!(world.get(&one, &cookie).await.status, 410, "revoked");
    for unnumbered in ["", "&once=", "&once=x", "&once=0123456789abcdeg"] {
        send(&format!("csrf={csrf}&name=script{unnumbered}")).await;
    }
    assert_eq!(count(), 6);
}

#[tokio::test]
async fn the_page_of_a_new_key_is_for_the_session_that_made_it_alone() {
    let mut first = world(&[]).await;
    let cookie = first.sign_up("a@example.com").await;
    let csrf = first.get("/dashboard/keys", &cookie).await.csrf();
    let fields = format!("csrf={csrf}&name=laptop");
    let sent = first.post("/dashboard/keys", &cookie, &fields).await;
    let path = &sent.headers["location"];
    first.get(path, &cookie).await.expect(200);
    let body = format!("email=a@example.com&password={PASSWORD}");
    let same_user = first.post("/dashboard/sign-in", "", &body).await.cookie();
    let stranger = first.sign_up("b@example.com").await;
    for other in [&same_user, &stranger] {
        let refused = first.get(path, other).await;
        assert_eq!(refused.status, 404);
        assert!(!refused.body.contains("gw-sk-"));
    }
    assert_eq!(first.get(path, "").await.status, 303, "signed out");
    let unknown = format!("/dashboard/keys/new/{}", "0".repeat(32));
    first.get(&unknown, &cookie).await.expect(404);

    // A restart forgets the key. Its page says so, and what to do.
    first.restart().await;
    let gone = first.get(path, &cookie).await;
    assert_eq!(gone.status, 410);
    assert!(gone.body.contains("data-testid=\"key-gone\"") && !gone.body.contains("new-key"));
    first.get(path, &stranger).await.expect(404);
}

#[tokio::test]
async fn the_page_of_a_key_shows_each_rate_limit_and_who_set_it() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let account = world.accounts.find("a@example.com").unwrap().unwrap().id;
    let key = world
        .accounts
        .api_keys()
        .create_key(&account, "k", now_ms())
        .unwrap()
        .key_id;
    world
        .accounts
        .api_keys()
        .change_key(None, &key, |settings| {
            settings.rates.requests_per_minute = Some(1_200);
            settings.rates.concurrent = Some(0);
        })
        .unwrap();
    let rates = accounts::RateSettings {
        tokens_per_minute: Some(5_000),
        ..Default::default()
    };
    world.accounts.set_account_rates(&account, &rates).unwrap();
    let page = world.get(&format!("/dashboard/keys/{key}"), &cookie).await;
    let (_, table) = page.body.split_once("data-testid=\"rates\"").unwrap();
    let (table, _) = table.split_once("</table>").unwrap();
    for shown in [
        "1\u{202f}200, set for this key",
        "no limit, set for this key",
        "no limit, the gateway&#39;s default",
        "5\u{202f}000, set by the operator",
    ] {
        assert!(table.contains(shown), "{shown}: {table}");
    }
    assert!(page.body.contains("name=\"requests_per_minute\""));
    assert!(page.body.contains("value=\"1200\"") && page.body.contains("value=\"0\""));
}

#[tokio::test]
async fn a_playground_key_is_for_one_session_and_is_listed_while_it_works() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let page = world
        .get("/dashboard/playground?model=beta-5.2", &cookie)
        .await;
    assert_eq!(page.status, 200);
    page.shows("value=\"beta-5.2\" data-surface=\"chat\"");
    // The block scrolls, so the keyboard must reach it.
    page.shows("<code tabindex=\"0\" data-testid=\"curl\">");
    let curl = page
        .inside("curl")
        .replace("&#39;", "'")
        .replace("&#34;", "\"");
    assert!(curl.contains("/v1/chat/completions'") && curl.contains("\"beta-5.2\""));
    let csrf = page.csrf();
    let ask = async |cookie: &str, csrf: &str, credits: &str| {
        let fields = format!("csrf={csrf}&credits={credits}");
        world
            .post("/dashboard/playground/key", cookie, &fields)
            .await
    };
    for refused in ["", "0", "-1", "100.000001", "x", "1e2"] {
        let response = ask(&cookie, &csrf, refused).await;
        assert_eq!(response.status, 422, "{refused}");
        response.shows("at most 100 credits");
    }
    let made = ask(&cookie, &csrf, "100").await;
    assert_eq!(
        (made.status, made.headers["cache-control"].as_str()),
        (201, "no-store")
    );
    let text = |made: &TestResponse| {
        let made: serde_json::Value = serde_json::from_str(&made.body).unwrap();
        made["key"].as_str().unwrap().to_owned()
    };
    let key = text(&made);
    let lives = |key: &str| world.accepts(key);
    assert!(lives(&key));

    let list = world.get("/dashboard/keys", &cookie).await.body;
    assert_eq!(list.matches(">Playground</th>").count(), 1);
    assert!(list.contains("0 of 100 credits in total") && list.contains("inference only"));
    let (_, rest) = list.split_once("/dashboard/keys/key_").unwrap();
    let id = rest.split('/').next().unwrap();
    let at = |what: &str| format!("/dashboard/keys/key_{id}{what}");
    assert_eq!(world.get(&at(""), &cookie).await.status, 404, "no settings");
    let fields = format!("csrf={csrf}&overlap_hours=24&confirmed=yes");
    world
        .post(&at("/rotate"), &cookie, &fields)
        .await
        .expect(404);
    world.get(&at("/revoke"), &cookie).await.expect(200);

    let second = text(&ask(&cookie, &csrf, "5").await);
    assert!(!lives(&key) && lives(&second), "one per session");
    let list = world.get("/dashboard/keys", &cookie).await.body;
    assert_eq!(
        list.matches(">Playground</th>").count(),
        1,
        "only what works"
    );
    for _ in 2..60 {
        assert_eq!(ask(&cookie, &csrf, "5").await.status, 201);
    }
    let throttled = ask(&cookie, &csrf, "5").await;
    assert!(throttled.status == 429 && throttled.headers.contains_key("retry-after"));

    let stranger = world.sign_up("b@example.com").await;
    let own = world.get("/dashboard/playground", &stranger).await.csrf();
    let last = text(&ask(&stranger, &own, "5").await);
    let out = format!("csrf={own}");
    world.post("/dashboard/sign-out", &stranger, &out).await;
    assert!(!lives(&last), "a playground key ends with its session");
}

#[tokio::test]
async fn ten_thousand_keys_come_in_pages_and_each_is_found() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let account = world.accounts.find("a@example.com").unwrap().unwrap().id;
    let database = rusqlite::Connection::open(world.folder.path().join("app.db")).unwrap();
    database
        .execute(
            "WITH RECURSIVE series(value) AS
               (SELECT 1 UNION ALL SELECT value + 1 FROM series WHERE value < 10000)
             INSERT INTO api_key(id, account, name, hash, shown, status, created_at_ms, revoked_at_ms)
             SELECT format('key_%05d', value), ?1, 'key number ' || value, randomblob(32),
               format('gw-sk-%04d…abcd', value), iif(value % 100 = 0, 'active', 'revoked'),
               1000 + value / 2, iif(value % 100 = 0, NULL, 5)
             FROM series",
            [&account],
        )
        .unwrap();
    let names = |page: &TestResponse| -> Vec<String> {
        let rows = page.body.split("class=\"name a\">").skip(1);
        rows.map(|row| {
            let (_, name) = row.split_once("key number ").unwrap();
            name.split('<').next().unwrap().to_owned()
        })
        .collect()
    };
    let get = async |path: &str| {
        let page = world.get(path, &cookie).await;
        assert_eq!(page.status, 200, "{path}");
        assert!(page.body.len() < 80_000, "{path}: {}", page.body.len());
        page
    };
    let first = get("/dashboard/keys").await;
    let expected: Vec<_> = (0..50).map(|at| (10_000 - 100 * at).to_string()).collect();
    assert_eq!(names(&first), expected);
    assert!(first.body.contains("Not revoked (100)"));
    assert!(first.body.contains("Revoked (9\u{202f}900)"));
    let (before, _) = first.body.split_once("#keys\" rel=\"next\"").unwrap();
    let (_, next) = before.rsplit_once("href=\"").unwrap();
    let second = get(&next.replace("&#38;", "&")).await;
    assert_eq!(names(&second).first().map(String::as_str), Some("5000"));
    assert_eq!(names(&second).len(), 50);
    assert!(!second.body.contains("rel=\"next\""));
    let revoked = get("/dashboard/keys?keys=revoked").await;
    assert_eq!(names(&revoked)[..2], ["9999", "9998"]);
    for term in ["Number+7777", "gw-sk-7777", "key_07777"] {
        let found = get(&format!("/dashboard/keys?key_q={term}")).await;
        assert_eq!(names(&found), ["7777"], "{term}");
    }
    let activity = get("/dashboard/activity?key=key_07777").await;
    activity.shows("<option value=\"key_07777\" selected>");
    assert_eq!(activity.body.matches("<option value=\"key_").count(), 51);
}
