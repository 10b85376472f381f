//! Activity: names of keys, the sum of a filter, and the way from an id to its page.

use super::*;
use crate::refused_requests::{NoteKind, RequestNote, VendorFault};

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
        world.get(&page, &cookie).await.expect(200);
        let theirs = world.get(&path, &stranger).await;
        assert_eq!(theirs.status, 422);
        theirs.has_fault_at("q");
        assert!(theirs.body.contains("has this id"), "{}", theirs.body);
    }
    let version = world.price().version;
    let prices = format!("/dashboard/activity?q={version}");
    let page = world.get(&prices, &cookie).await;
    assert!(
        page.body.contains("the id of a price list"),
        "{}",
        page.body
    );
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
    for (filter, field) in [
        ("from=never", "from"),
        ("to=never", "to"),
        ("from=2026-02-02&to=2026-02-01", "from"),
        ("outcome=lost", "outcome"),
    ] {
        let path = format!("/dashboard/activity?{filter}");
        let page = world.get(&path, &cookie).await;
        page.has_fault_at(field);
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
    page.shows(">gw-sk-Ab12…wxyz</span>");
    assert!(page.body.contains(">1.5 s</span>"));
    let key = world
        .accounts
        .api_keys()
        .create_key(&account, "CI <b>", now_ms());
    let key_id = key.unwrap().key_id;
    rename_key(&world, &key_id, "key_1");
    let page = world.get("/dashboard/activity", &cookie).await;
    page.shows(">CI &#60;b&#62;</span>");
    let file = world.get("/dashboard/activity.csv", &cookie).await;
    assert!(
        file.body.contains(",key_name,image_input,")
            && file.body.contains(",\"CI <b>\",0,0,0,0,0\r\n")
    );
    let revoked = world
        .accounts
        .api_keys()
        .revoke_key(Some(&account), "key_1", now_ms());
    assert!(revoked.unwrap());
    let page = world.get("/dashboard/activity", &cookie).await;
    assert!(page.body.contains("(revoked)"));
    let receipt = format!("/dashboard/activity/req_{:032x}", 1);
    let receipt = world.get(&receipt, &cookie).await;
    receipt.shows("CI &#60;b&#62; (revoked)");
}

/// Gives a key the id that the test's responses name.
fn rename_key(world: &World, key_id: &str, id: &str) {
    let database = rusqlite::Connection::open(world.folder.path().join("app.db")).unwrap();
    database.pragma_update(None, "foreign_keys", false).unwrap();
    let renamed = database.execute("UPDATE api_key SET id = ?2 WHERE id = ?1", [key_id, id]);
    assert_eq!(renamed.unwrap(), 1);
}

#[tokio::test]
async fn refused_requests_stand_among_the_responses_and_each_has_a_page() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let other = world.sign_up("b@example.com").await;
    let account = spend(&world, "a@example.com", 1);
    for name in ["key_1", "key_2"] {
        let keys = world.accounts.api_keys();
        let key = keys.create_key(&account, name, now_ms()).unwrap();
        rename_key(&world, &key.key_id, name);
    }
    let first = world.refuse(&account, 1, (402, "insufficient_credits"));
    world.refuse_model("", &account, 2, (429, "rate_limited"));
    let newest = world.refuse(&account, 3, (429, "rate_limited"));

    let page = world.get("/dashboard/activity", &cookie).await.body;
    assert_eq!(page.matches(">no model<").count(), 1, "{page}");
    let order: Vec<_> = page
        .split("data-outcome=\"")
        .skip(1)
        .map(|rest| rest.split_once('"').unwrap().0)
        .collect();
    assert_eq!(order, ["refused", "refused", "refused", "completed"]);
    assert!(page.contains("<code>402 insufficient_credits</code>"));
    let (_, counts) = page.split_once("data-testid=\"refused-counts\"").unwrap();
    let (counts, _) = counts.split_once("</p>").unwrap();
    assert!(counts.contains("<strong>3</strong>"), "{counts}");
    assert!(counts.contains("2 × <code>429 rate_limited</code>, 1 × <code>402"));
    for (query, rows) in [
        ("outcome=refused", 3),
        ("outcome=completed", 1),
        ("model=beta-5.2", 0),
        ("key=key_1&outcome=refused", 3),
        ("key=key_2&outcome=refused", 0),
        ("from=2000-01-01&to=2000-01-02", 0),
    ] {
        let path = format!("/dashboard/activity?{query}");
        let page = world.get(&path, &cookie).await.body;
        assert_eq!(page.matches("data-outcome=").count(), rows, "{query}");
    }
    let overview = world.get("/dashboard", &cookie).await.body;
    assert!(overview.contains("data-outcome=\"refused\""));
    assert!(!world.get("/dashboard", &other).await.body.contains(&newest));

    let path = format!("/dashboard/activity/{first}");
    let page = world.get(&path, &cookie).await;
    assert_eq!(page.status, 200);
    for part in [
        "Refused with status 402, <code>insufficient_credits</code>.",
        "Sentence of &#60;b&#62; insufficient_credits.",
        "nothing is billed",
        "alpha-opus-4-7",
        &first,
    ] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    let found = world
        .get(&format!("/dashboard/activity?q={first}"), &cookie)
        .await;
    assert_eq!(found.headers["location"], path);
    // An id that nobody knows, and one of another account, are explained and say nothing else.
    let unknown = "/dashboard/activity/req_0193000000007abc8def0123456789ab".to_owned();
    for (path, cookie) in [(&path, &other), (&unknown, &cookie)] {
        let page = world.get(path, cookie).await;
        assert_eq!(page.status, 404);
        let (_, page) = page.body.split_once("<main").unwrap();
        assert!(page.contains("No such request"));
        assert!(!page.contains("insufficient_credits"));
    }
    let nonsense = world.get("/dashboard/activity/nonsense", &cookie).await;
    assert_eq!(nonsense.status, 404);
    assert!(!nonsense.body.contains("No such request"));
    let csv = world
        .get("/dashboard/activity.csv?outcome=refused", &cookie)
        .await;
    csv.shows(",status,code,message,key_name\r\n");
    assert_eq!(csv.body.matches("\"req_").count(), 3);
    assert!(csv.body.contains(",\"402\",\"insufficient_credits\","));
}

#[tokio::test]
async fn refused_requests_are_paged_with_the_responses() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let account = spend(&world, "a@example.com", 30);
    for number in 0..40 {
        world.refuse(&account, number, (429, "rate_limited"));
    }
    let mut path = "/dashboard/activity".to_owned();
    let (mut pages, mut rows) = (Vec::new(), Vec::new());
    loop {
        let page = world.get(&path, &cookie).await.body;
        let on_page: Vec<_> = page
            .split("<a class=\"row-link\" href=\"/dashboard/activity/")
            .skip(1)
            .map(|rest| rest.split_once('"').unwrap().0.to_owned())
            .collect();
        pages.push(on_page.len());
        rows.extend(on_page);
        let Some((before, _)) = page.split_once("\" rel=\"next\"") else {
            break;
        };
        let (_, link) = before.rsplit_once("href=\"").unwrap();
        path = format!("/dashboard/{}", link.replace("&amp;", "&"));
    }
    assert_eq!(pages, [50, 20]);
    rows.sort();
    rows.dedup();
    assert_eq!(rows.len(), 70, "each once");
}

#[tokio::test]
async fn pages_say_that_the_last_request_was_refused_for_want_of_credits() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let account = world.accounts.find("a@example.com").unwrap().unwrap().id;
    let banner = "data-testid=\"refused-for-credit\"";
    let has_banner = async || {
        let page = world.get("/dashboard/keys", &cookie).await;
        page.body.contains(banner)
    };
    world.refuse(&account, 1, (402, "key_spend_limit"));
    assert!(!has_banner().await, "the account has credits");
    world.refuse(&account, 2, (402, "insufficient_credits"));
    assert!(has_banner().await);
    spend(&world, "a@example.com", 1);
    assert!(!has_banner().await, "a request was answered since");
}

#[tokio::test]
async fn pages_say_when_the_balance_is_below_what_a_usual_request_reserves() {
    let world = world(&[("trial_credits: \"300\"", "trial_credits: \"0.13\"")]).await;
    let cookie = world.sign_up("a@example.com").await;
    let banner = async || {
        let page = world.get("/dashboard", &cookie).await.body;
        let (_, rest) = page.split_once("data-testid=\"no-credit\"")?;
        Some(rest.split_once("</p>")?.0.to_owned())
    };
    // A short request to the cheapest model: 1 · 100 + 256 · 500 per 1 000 000 = 0.1281.
    assert_eq!(banner().await, None);
    spend(&world, "a@example.com", 1);
    let text = banner().await.expect("a banner");
    assert!(text.contains("a request like your latest ones"), "{text}");
    let page = world.get("/dashboard", &cookie).await.body;
    assert!(page.contains("a usual request reserves more than is available"));
    assert!(!page.contains("your credits last"));
}

#[tokio::test]
async fn pages_leave_out_what_the_disk_of_refused_requests_does_not_answer() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let account = spend(&world, "a@example.com", 1);
    world.refuse(&account, 2, (402, "insufficient_credits"));
    let refused = world.state.refused.clone().unwrap();
    refused.flush();
    let (release, until) = std::sync::mpsc::sync_channel::<()>(0);
    let held = refused.read_until(until);
    test_world::wait_until("the read to count as stuck", test_world::SOON, || {
        refused.counts(&account, 0).is_err()
    });
    let receipt = format!("/dashboard/activity/req_{:032x}", 1);
    for path in [
        "/dashboard",
        "/dashboard/keys",
        "/dashboard/activity",
        &receipt,
    ] {
        world.get(path, &cookie).await.expect(200);
    }
    // What is all about it says that it cannot be had.
    for path in ["/dashboard/account/export", "/dashboard/activity/req_2"] {
        let status = world.get(path, &cookie).await.status;
        assert!(status >= 500, "{path}: {status}");
    }
    drop(release);
    held.join().unwrap();
    let page = world.get("/dashboard/activity", &cookie).await;
    page.shows("data-outcome=\"refused\"");
}

fn failed_note(account: &str, request_id: &str) -> RequestNote {
    RequestNote {
        request_id: request_id.to_owned(),
        account: account.into(),
        at_ms: now_ms(),
        kind: NoteKind::Failed,
        status: 502,
        asked_for: String::new(),
        header_id: Some("req_vendor".into()),
        answer_id: Some("chatcmpl-77".into()),
        fault: Some(VendorFault {
            vendor: "beta".into(),
            status: Some(503),
            cause: "overloaded".into(),
            words: "<b>busy</b>".into(),
            is_private: false,
        }),
    }
}

#[tokio::test]
async fn a_failed_request_says_what_its_vendor_said_and_is_found_by_the_vendors_ids() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let account = spend(&world, "a@example.com", 1);
    let id = format!("req_{:032x}", 1);
    let refused = world.state.refused.clone().unwrap();
    refused.note(failed_note(&account, &id));
    let receipt = format!("/dashboard/activity/{id}");
    let page = world.get(&receipt, &cookie).await;
    for part in [
        "<strong>beta, status 503: overloaded.</strong>",
        "&#60;b&#62;busy",
        "<code>chatcmpl-77</code>",
    ] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    for vendor_id in ["req_vendor", "chatcmpl-77"] {
        let found = world
            .get(&format!("/dashboard/activity?q={vendor_id}"), &cookie)
            .await;
        assert_eq!((found.status, &found.headers["location"]), (303, &receipt));
        let path = format!("/dashboard/activity/{vendor_id}");
        let found = world.get(&path, &cookie).await;
        assert_eq!((found.status, &found.headers["location"]), (303, &receipt));
    }

    // What is about the operator's own account is for operators only.
    let mut private = failed_note(&account, &id);
    private.fault.as_mut().unwrap().is_private = true;
    let words = |is_operator| private.fault.as_ref().unwrap().words_for(is_operator);
    assert_eq!((words(false), words(true)), (None, Some("<b>busy</b>")));

    let free = RequestNote {
        request_id: "req_0193000000007abc8def00000000f4ee".into(),
        kind: NoteKind::Free,
        asked_for: "the list of models".into(),
        status: 200,
        fault: None,
        ..private
    };
    refused.note(free.clone());
    let page = world
        .get(&format!("/dashboard/activity/{}", free.request_id), &cookie)
        .await;
    assert_eq!(page.status, 200);
    page.shows("It asked for the list of models, and got status 200.");
}
