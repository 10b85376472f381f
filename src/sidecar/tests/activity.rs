//! Activity: names of keys, the sum of a filter, and the way from an id to its page.

use super::*;

#[tokio::test]
async fn an_id_leads_to_its_page_and_to_no_other_account_s() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let stranger = world.sign_up("b@example.com").await;
    spend(&world, "a@example.com", 61);
    let request = format!("req_{:032x}", 7);
    for (id, page) in [
        (request.as_str(), format!("/dashboard/activity/{request}")),
        ("c1", "/dashboard/conversations/c1".to_owned()),
    ] {
        let path = format!("/dashboard/activity?q=+{id}");
        let found = world.get(&path, &cookie).await;
        assert_eq!((found.status, &found.headers["location"]), (303, &page));
        assert_eq!(world.get(&page, &cookie).await.status, 200);
        let theirs = world.get(&path, &stranger).await;
        assert_eq!(theirs.status, 422);
        assert!(theirs.body.contains("has this id"), "{}", theirs.body);
    }
    for bad in [
        "req_0",
        "%22%3E%3Cscript%3E",
        "..%2F..%2Faccount",
        "%0D%0Ax%3A+y",
    ] {
        let path = format!("/dashboard/activity?q={bad}");
        let page = world.get(&path, &cookie).await;
        assert_eq!(page.status, 422, "{bad}");
        assert!(!page.body.contains("<script>"), "{bad}");
    }
}

#[tokio::test]
async fn a_filter_has_its_sum_whatever_the_page() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    spend(&world, "a@example.com", 61);
    let sum = async |query: &str| {
        let page = world
            .get(&format!("/dashboard/activity?{query}"), &cookie)
            .await;
        let (_, text) = page.body.split_once("data-testid=\"total\">")?;
        Some(text.split_once("</p>").unwrap().0.to_owned())
    };
    let all = sum("").await.unwrap();
    assert!(
        all.contains("0.0610") && all.contains("for 61 billed"),
        "{all}"
    );
    let odd = sum("model=%3Dodd").await.unwrap();
    assert!(
        odd.contains("0.0310") && odd.contains("for 31 billed"),
        "{odd}"
    );
    assert_eq!(sum("from=2001-01-01&to=2001-01-02").await, None);
    assert_eq!(sum("key=key_other").await, None);
    assert_eq!(sum("outcome=completed").await, None, "no sums by outcome");
}

#[tokio::test]
async fn a_row_names_its_key_and_how_long_it_took() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let account = spend(&world, "a@example.com", 1);
    let page = world.get("/dashboard/activity", &cookie).await;
    // A key that is not among the account's stands as it was shown when it was used.
    assert!(
        page.body.contains(">gw-sk-Ab12…wxyz</span>"),
        "{}",
        page.body
    );
    assert!(page.body.contains(">1.5 s</span>"));
    let key = world
        .accounts
        .api_keys()
        .create_key(&account, "CI <b>", now_ms());
    let key_id = key.unwrap().key_id;
    rename_key(&world, &key_id);
    let page = world.get("/dashboard/activity", &cookie).await;
    assert!(
        page.body.contains(">CI &#60;b&#62;</span>"),
        "{}",
        page.body
    );
    let file = world.get("/dashboard/activity.csv", &cookie).await;
    assert!(file.body.contains(",key_name\r\n") && file.body.contains(",\"CI <b>\"\r\n"));
    let revoked = world
        .accounts
        .api_keys()
        .revoke_key(Some(&account), "key_1", now_ms());
    assert!(revoked.unwrap());
    let page = world.get("/dashboard/activity", &cookie).await;
    assert!(page.body.contains("(revoked)"));
    let receipt = format!("/dashboard/activity/req_{:032x}", 1);
    let receipt = world.get(&receipt, &cookie).await;
    assert!(
        receipt.body.contains("CI &#60;b&#62; (revoked)"),
        "{}",
        receipt.body
    );
}

/// Gives a key the id that the test's responses name.
fn rename_key(world: &World, key_id: &str) {
    let database = rusqlite::Connection::open(world.folder.path().join("app.db")).unwrap();
    database.pragma_update(None, "foreign_keys", false).unwrap();
    let renamed = database.execute("UPDATE api_key SET id = 'key_1' WHERE id = ?1", [key_id]);
    assert_eq!(renamed.unwrap(), 1);
}
