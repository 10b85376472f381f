//! Set-up pages: which models and which key they show to whom.

use super::*;
use crate::client_guides::guides;
use accounts::KeySettings;

/// The text of a page as a browser shows it.
fn shown(response: &TestResponse) -> String {
    response
        .body
        .replace("&#34;", "\"")
        .replace("&#39;", "'")
        .replace("&#60;", "<")
        .replace("&#62;", ">")
        .replace("&#38;", "&")
}

/// Signs up an account and creates a key that may use these models; all if there are none.
async fn account_with_key(world: &World, email: &str, models: &[&str]) -> (String, String) {
    let cookie = world.sign_up(email).await;
    let accounts = world.accounts.directory().list().unwrap();
    let account = accounts.iter().find(|account| account.email == email);
    let settings = KeySettings {
        allowed_models: models.iter().map(|id| (*id).to_owned()).collect(),
        ..KeySettings::default()
    };
    let id = &account.unwrap().id;
    let key = world
        .accounts
        .api_keys()
        .create_key_with(id, "laptop", &settings, now_ms());
    (cookie, key.unwrap().key_id)
}

#[tokio::test]
async fn each_client_of_the_list_has_a_page_with_the_chosen_key_and_model() {
    let world = world(&[]).await;
    let (cookie, key) = account_with_key(&world, "a@example.com", &[]).await;
    let list = world.get("/dashboard/setup", &cookie).await;
    let docs = world.get("/docs/clients", "").await;
    for guide in guides() {
        let path = format!("/dashboard/setup/{}", guide.id);
        assert!(list.body.contains(&format!("href=\"{path}\"")), "{path}");
        let public = format!("/docs/clients/{}", guide.id);
        assert!(docs.body.contains(&format!("href=\"{public}\"")));
        let page = world
            .get(&format!("{path}?key={key}&model=beta-5.5"), &cookie)
            .await;
        assert_eq!(page.status, 200, "{path}");
        let text = shown(&page);
        assert!(text.contains("<option value=\"beta-5.5\" selected>"));
        assert!(text.contains(&format!("<option value=\"{key}\" selected>")));
        let pasted = text.split_once("id=\"paste-title\"").unwrap().1;
        let pasted_model = pasted.contains("beta-5.5");
        let pasted_key = pasted.contains("GATEWAY_KEY") || guide.id == "vscode";
        assert!(pasted_model && pasted_key, "{path}");
        let page = world.get(&public, "").await;
        assert_eq!(page.status, 200, "{public}");
        assert!(
            !page.body.contains("name=\"key\""),
            "there is no key without a session"
        );
    }
}

#[tokio::test]
async fn a_page_shows_the_models_of_the_key_and_no_other() {
    let world = world(&[]).await;
    let allowed = ["alpha-haiku-4-5-20251001", "beta-5.2"];
    let (cookie, _) = account_with_key(&world, "a@example.com", &allowed).await;
    let path = "/dashboard/setup/claude-code";
    let page = world.get(path, &cookie).await;
    for model in allowed {
        assert!(page.body.contains(model), "{model}");
    }
    for model in ["alpha-opus-4-7", "alpha-sonnet-4-6", "beta-5.5"] {
        assert!(!page.body.contains(model), "{model}");
    }
    assert!(!page.body.contains("role=\"alert\""));

    let page = world
        .get(&format!("{path}?model=alpha-opus-4-7"), &cookie)
        .await;
    assert_eq!(page.status, 200);
    page.shows("This key cannot use the model alpha-opus-4-7.");
    let page = world
        .get(&format!("{path}?model=%3Cscript%3Ealert(1)"), &cookie)
        .await;
    assert!(!page.body.contains("<script>alert"), "not escaped");
    let twice = format!("{path}?model=a&model=b");
    world.get(&twice, &cookie).await.expect(200);
}

#[tokio::test]
async fn a_key_that_can_use_no_model_of_the_catalog_gets_no_files() {
    let world = world(&[]).await;
    let (cookie, _) = account_with_key(&world, "a@example.com", &["gone"]).await;
    let page = world.get("/dashboard/setup/codex", &cookie).await;
    assert_eq!(page.status, 200);
    assert!(page.body.contains("This key can use none of the models"));
    assert!(!page.body.contains("config.toml"));
}

#[tokio::test]
async fn a_key_of_another_account_and_a_revoked_key_are_not_found() {
    let world = world(&[]).await;
    let (cookie, own) = account_with_key(&world, "a@example.com", &[]).await;
    let (_, other) = account_with_key(&world, "b@example.com", &[]).await;
    let path = |key: &str| format!("/dashboard/setup/codex?key={key}");
    world.get(&path(&own), &cookie).await.expect(200);
    world.get(&path(&other), &cookie).await.expect(404);
    let account = world
        .accounts
        .api_keys()
        .key(None, &own)
        .unwrap()
        .unwrap()
        .0;
    let revoked = world
        .accounts
        .api_keys()
        .revoke_key(Some(&account), &own, now_ms());
    assert!(revoked.unwrap());
    world.get(&path(&own), &cookie).await.expect(404);
    let page = world.get("/dashboard/setup/codex", &cookie).await;
    assert!(page.body.contains("You have no key yet."));
    assert!(page.body.contains("/dashboard/keys?client=codex"));
}

#[tokio::test]
async fn the_key_of_the_playground_is_not_offered_to_a_client() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let account = world.accounts.find("a@example.com").unwrap().unwrap().id;
    let token = cookie.split_once('=').unwrap().1;
    let five = "5".parse().unwrap();
    let playground = world
        .accounts
        .api_keys()
        .create_playground_key(
            accounts::KeyHolder {
                account: &account,
                member: None,
            },
            token,
            five,
            now_ms(),
        )
        .unwrap()
        .key_id;
    let page = world.get("/dashboard/setup/codex", &cookie).await;
    assert!(page.body.contains("You have no key yet."));
    assert!(!page.body.contains(&playground));
    let named = format!("/dashboard/setup/codex?key={playground}");
    world.get(&named, &cookie).await.expect(404);
    let list = format!("/dashboard/setup?key={playground}");
    assert!(!world.get(&list, &cookie).await.body.contains(&playground));
}

#[tokio::test]
async fn a_page_says_what_a_usual_turn_costs_with_each_model_that_its_files_name() {
    let world = world(&[]).await;
    let page = world.get("/docs/clients/claude-code", "").await;
    let (_, costs) = page.body.split_once("data-testid=\"turn-costs\"").unwrap();
    let (costs, _) = costs.split_once("</table>").unwrap();
    assert!(costs.contains("15000 tokens in, none of them cached, 100 out"));
    for (role, model, first) in [
        ("opus", "alpha-opus-4-7", "9.625"),
        ("sonnet", "alpha-sonnet-4-6", "5.775"),
        ("haiku", "alpha-haiku-4-5-20251001", "1.925"),
    ] {
        let (_, row) = costs.split_once(&format!(">{role}</th>")).expect(role);
        let (_, rest) = row.split_once(&format!(">{model}</td>")).expect(role);
        let (cells, _) = rest.split_once("</tr>").unwrap();
        assert!(cells.contains(first), "{role}: {cells}");
    }
    let page = world.get("/docs/clients/curl", "").await;
    assert!(page.body.contains("One request"));
}

#[tokio::test]
async fn a_disabled_key_is_marked_and_another_one_comes_first() {
    let world = world(&[]).await;
    let (cookie, first) = account_with_key(&world, "a@example.com", &["beta-5.2"]).await;
    let account = world
        .accounts
        .api_keys()
        .key(None, &first)
        .unwrap()
        .unwrap()
        .0;
    let disabled = world
        .accounts
        .api_keys()
        .set_own_key_enabled(&account, &first, false);
    assert!(disabled.unwrap());
    let page = world.get("/dashboard/setup/codex", &cookie).await;
    assert!(page.body.contains("This key is disabled"));
    let settings = KeySettings::default();
    let accounts = &world.accounts;
    let second = accounts
        .api_keys()
        .create_key_with(&account, "desk", &settings, now_ms());
    let page = world.get("/dashboard/setup/codex", &cookie).await;
    assert!(!page.body.contains("This key is disabled"));
    let chosen = format!("<option value=\"{}\" selected>", second.unwrap().key_id);
    assert!(page.body.contains(&chosen));
}

#[tokio::test]
async fn the_page_of_a_new_key_has_the_files_of_the_chosen_client_with_the_key() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let form = world.get("/dashboard/keys?client=codex", &cookie).await;
    assert!(form.body.contains("<option value=\"codex\" selected>"));
    let csrf = form.csrf();
    let create = |client: &str| {
        let body = format!("name=n&client={client}&model:beta-5.5=on&csrf={csrf}");
        let (world, cookie) = (&world, &cookie);
        async move { world.create_key(cookie, &body).await }
    };
    let created = create("codex").await;
    let (key, text) = (created.inside("new-key").to_owned(), shown(&created));
    assert!(text.contains("~/.codex/config.toml"));
    assert!(text.contains(&format!("export GATEWAY_KEY=\"{key}\"")));
    let pasted = text.split_once("id=\"setup-title\"").unwrap().1;
    let pasted = pasted.split_once("Create a key").unwrap().0;
    assert!(pasted.contains("model = \"beta-5.5\""));
    assert!(!pasted.contains("alpha-opus-4-7"), "the key cannot use it");

    let created = create("claude-code").await;
    let key = created.inside("new-key").to_owned();
    assert!(shown(&created).contains(&format!("\"ANTHROPIC_AUTH_TOKEN\": \"{key}\"")));
    let created = create("no-such-client").await;
    assert!(shown(&created).contains("Set up curl"));
}

#[tokio::test]
async fn the_list_keeps_the_key_that_it_was_opened_for() {
    let world = world(&[]).await;
    let (cookie, own) = account_with_key(&world, "a@example.com", &[]).await;
    let (_, other) = account_with_key(&world, "b@example.com", &[]).await;
    let list = world
        .get(&format!("/dashboard/setup?key={own}"), &cookie)
        .await;
    let link = format!("href=\"/dashboard/setup/codex?key={own}\"");
    assert!(list.body.contains(&link));
    for unknown in [other.as_str(), "%22%3E%3Cb%3E"] {
        let path = format!("/dashboard/setup?key={unknown}");
        let list = world.get(&path, &cookie).await;
        assert_eq!(list.status, 200);
        assert!(list.body.contains("href=\"/dashboard/setup/codex\""));
    }
}

#[tokio::test]
async fn the_public_pages_keep_the_menu_of_a_session() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let path = "/docs/clients/codex";
    let link = "href=\"/dashboard/setup\"";
    let page = world.get(path, &cookie).await;
    assert!(page.body.contains(link) && page.headers["vary"] == "cookie");
    assert_eq!(page.headers["cache-control"], "no-store");
    let page = world.get(path, "").await;
    assert!(!page.body.contains(link) && page.headers["vary"] == "cookie");
    assert_eq!(page.headers["cache-control"], "no-cache");
}

#[tokio::test]
async fn the_page_of_claude_code_offers_a_login_where_there_is_one() {
    let on = [("signup:", "sign_in: {device: true}\nsignup:")];
    for (config, is_offered) in [(&on[..], true), (&[][..], false)] {
        let world = world(config).await;
        for path in ["/docs/clients/claude-code", "/docs/clients/codex"] {
            let page = world.get(path, "").await;
            let is_offered = is_offered && path.ends_with("claude-code");
            for says in [
                "\"forceLoginGatewayUrl\": \"http://127.0.0.1:8080\"",
                "model-gateway login --server ",
            ] {
                assert_eq!(shown(&page).contains(says), is_offered, "{path}: {says}");
            }
        }
    }
}
