//! Refused requests of a whole gateway: their account holder sees each with its reason, also after
//! a restart, and requests that are answered leave nothing there.

use crate::client::{Answer, Request};
use crate::surface::{Chat, Messages};
use crate::world::{Plan, SOON, Simulator, World, free_port, wait_for};
use serde_json::json;

fn request_id(answer: &Answer) -> String {
    answer.header("x-request-id").expect("an id").to_owned()
}

#[test]
fn every_refused_request_of_a_known_key_is_on_the_pages_of_its_account() {
    let credits = ("trial_credits: \"300\"", "trial_credits: \"0.5\"");
    let mut world = Plan::default().edit(credits.0, credits.1).start();
    let (status, cookie) = world.sign_up("a@example.test", "");
    assert_eq!(status, 303);
    let create = [
        "key",
        "create",
        "--account",
        "a@example.test",
        "--name",
        "n",
    ];
    let created = world.json(&create);
    let (key, key_id) = (
        created["key"].as_str().unwrap().to_owned(),
        created["key_id"].as_str().unwrap(),
    );
    let post = |body: &str| world.ask(&Request::post(Chat.path(), body).bearer(&key));
    let message = r#""messages":[{"role":"user","content":"hello"}]"#;
    // The trial does not cover the shortest answer of this model: 256 tokens at 3 000.
    let unpaid = format!(r#"{{"model":"beta-5.5",{message}}}"#);
    let embedding = r#"{"model":"no-such-embed","input":"x"}"#;
    let mut refused = vec![
        (402, "insufficient_credits", "beta-5.5", post(&unpaid)),
        (
            404,
            "model_not_found",
            "no-such",
            post(&format!(r#"{{"model":"no-such",{message}}}"#)),
        ),
        (400, "", "", post("{")),
        (
            404,
            "model_not_found",
            "no-such-embed",
            world.ask(&Request::post("/v1/embeddings", embedding).bearer(&key)),
        ),
    ];
    world.expect(200, &Chat.whole(&key, "output=1"));
    world.json(&["key", "disable", key_id]);
    let disabled = post(&format!(r#"{{"model":"beta-5.2",{message}}}"#));
    refused.push((403, "key_disabled", "", disabled));
    // Not of this account: no key is recognised.
    let strange = world.ask(&Request::post(Chat.path(), "{}").bearer("gw-sk-none"));
    assert_eq!(strange.status, 401);

    let page = |world: &World, path: &str| {
        let answer = world.ask(&Request::get(path).header("cookie", &cookie));
        (answer.status, answer.text())
    };
    let check = |world: &World| {
        let list = wait_for("the refusals to be written", SOON, || {
            let (_, list) = page(world, "/dashboard/activity?outcome=refused");
            let rows = list.matches("data-outcome=\"refused\"").count();
            (rows == refused.len()).then_some(list)
        });
        for (status, code, model, answer) in &refused {
            assert_eq!(answer.status, *status, "{}", answer.text());
            let id = request_id(answer);
            assert!(list.contains(&id) && list.contains(&format!("<code>{status} {code}")));
            let (found, receipt) = page(world, &format!("/dashboard/activity/{id}"));
            assert_eq!(found, 200);
            assert!(receipt.contains(&format!("Refused with status {status}")));
            assert!(receipt.contains(model), "{receipt}");
        }
        assert_eq!(
            page(
                world,
                &format!("/dashboard/activity/{}", request_id(&strange))
            )
            .0,
            404
        );
    };
    check(&world);
    world.kill();
    world.start_gateway();
    check(&world);
}

/// Every id that a client got finds something: at `/v1/receipts`, in the admin API, on the pages.
#[test]
fn every_id_of_a_client_is_known_and_a_failure_has_its_vendors_words() {
    let nobody = free_port();
    let simulator = Simulator::start(None);
    let (world, account) = Plan::default()
        .turns()
        .endpoints_of(&[nobody], &[simulator.port])
        .with_account();
    let ask = |request: Request| world.ask(&request.bearer(&account.key));
    let find = |id: &str| {
        let answer = ask(Request::get(&format!("/v1/receipts/{id}")));
        assert_eq!(answer.status, 200, "{id}: {}", answer.text());
        answer.json()
    };
    let whole = world.ask(&Chat.whole(&account.key, "output=1"));
    let receipt = world.receipt(&account, &whole.request_id());
    let answer_id = whole.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(find(&answer_id)["credits"], receipt["credits"]);
    assert_eq!(find(&answer_id)["request_id"], receipt["request_id"]);

    // A vendor that says why, and one that does not answer at all.
    let failed = world.ask(&Chat.whole(&account.key, "status=503"));
    assert!(failed.status >= 500, "{}", failed.text());
    let failure = &world.receipt(&account, &failed.request_id())["vendor_failure"];
    assert_eq!(failure["status"], 503, "{failure}");
    assert!(
        failure["message"]
            .as_str()
            .is_some_and(|words| !words.is_empty()),
        "{failure}"
    );
    let unreachable = world.ask(&Messages.whole(&account.key, "output=1"));
    let failure = &world.receipt(&account, &unreachable.request_id())["vendor_failure"];
    assert_eq!(failure["cause"], "no connection", "{failure}");
    assert!(
        failure["message"].as_str().unwrap().contains("refused"),
        "{failure}"
    );

    let unsupported = ask(Request::post("/v1/images/variations", "{}"));
    assert_eq!(unsupported.status, 404);
    let known = find(&unsupported.request_id());
    assert_eq!(
        (&known["outcome"], &known["code"]),
        (&json!("refused"), &json!("not_supported"))
    );
    let models = ask(Request::get("/v1/models"));
    let known = find(&models.request_id());
    assert_eq!(known["asked_for"], "the list of models");
    let admin = world.admin_api().expect("an admin API");
    for id in [
        &whole.request_id(),
        &answer_id,
        &unsupported.request_id(),
        &models.request_id(),
    ] {
        let found = admin.get(&format!("/requests/{id}"));
        assert_eq!(found["account_id"], json!(account.id), "{id}");
    }
}
