//! Model aliases: clients may use their own names for a model. Everything that the gateway stores
//! has the model's id.

use crate::client::{Answer, Request};
use crate::surface::{Chat, Messages};
use crate::world::{Plan, World};
use serde_json::json;

/// A world whose shipped models have aliases.
fn world() -> World {
    let plan = Plan::default()
        .edit(
            "  - id: alpha-opus-4-7\n",
            "  - id: alpha-opus-4-7\n    aliases: [claude-opus-4-7, \"claude-*\"]\n",
        )
        .edit(
            "  - id: alpha-haiku-4-5-20251001\n",
            "  - id: alpha-haiku-4-5-20251001\n    aliases: [\"claude-haiku-*\"]\n",
        )
        .edit(
            "  - id: beta-5.2\n",
            "  - id: beta-5.2\n    aliases: [gpt-5.2, \"gpt-*-mini\", claude-haiku-mine]\n",
        );
    plan.start()
}

fn ids(answer: &Answer) -> Vec<String> {
    let data = answer.json()["data"].as_array().unwrap().clone();
    data.iter()
        .map(|model| model["id"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn an_alias_leads_to_its_model_and_everything_that_is_kept_has_the_id() {
    let world = world();
    let account = world.account();
    for (name, id) in [
        ("gpt-5.2", "beta-5.2"),
        ("gpt-5-mini", "beta-5.2"),
        ("beta-5.2", "beta-5.2"),
        ("claude-haiku-4-5", "alpha-haiku-4-5-20251001"),
        ("claude-haiku-mine", "beta-5.2"),
        ("claude-anything", "alpha-opus-4-7"),
    ] {
        for surface in [Chat, Messages] {
            let mut body = surface.body("input=10 output=10", false, 1_000);
            body["model"] = name.into();
            let answer = world.ask(&surface.request(&account.key, &body));
            assert_eq!(answer.status, 200, "{name}: {}", answer.text());
            let answered = answer.json()["model"].as_str().unwrap().to_owned();
            let receipt = world.receipt(&account, &answer.request_id());
            assert_eq!(receipt["model"], id, "{name}");
            let by_id = Request::get(&format!("/v1/models/{name}")).bearer(&account.key);
            assert_eq!(world.ask(&by_id).json()["id"], id, "{name}");
            body["model"] = id.into();
            let plain = world.ask(&surface.request(&account.key, &body));
            assert_eq!(
                plain.json()["model"],
                answered.as_str(),
                "the answer names the model as it does for its id"
            );
        }
    }
    world.has_metric("gateway_requests_total", &["model=\"gpt-5.2\""], 0.0);
    assert!(world.metric("gateway_requests_total", &["model=\"beta-5.2\""]) >= 6.0);
    for name in ["gpt-5.3", "gpt-mini", "Claude-opus-4-7", "claude"] {
        let mut body = Chat.body("", false, 1_000);
        body["model"] = name.into();
        let answer = world.ask(&Chat.request(&account.key, &body));
        Chat.failure(
            &answer,
            404,
            "invalid_request_error",
            Some("model_not_found"),
        );
    }
}

#[test]
fn a_key_that_is_bound_to_a_model_is_bound_under_each_of_its_names() {
    let world = world();
    let account = world.account();
    let bind = |models: &str| world.command(&["key", "set", &account.key_id, "--models", models]);
    let refused = bind("gpt-5.2");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("use the model id \"beta-5.2\""),
        "{said}"
    );
    assert!(bind("beta-5.2").status.success());
    let ask = |name: &str| {
        let mut body = Chat.body("input=5 output=5", false, 1_000);
        body["model"] = name.into();
        world.ask(&Chat.request(&account.key, &body))
    };
    assert_eq!(
        (
            ask("gpt-5.2").status,
            ask("gpt-9-mini").status,
            ask("beta-5.2").status
        ),
        (200, 200, 200)
    );
    for name in ["claude-opus-4-7", "alpha-opus-4-7", "claude-haiku-4-5"] {
        assert_eq!(ask(name).status, 403, "{name}");
        let described =
            world.ask(&Request::get(&format!("/v1/models/{name}")).bearer(&account.key));
        assert_eq!(described.status, 403, "{name}");
    }
    let listed = world.ask(&Request::get("/v1/models?aliases=true").bearer(&account.key));
    assert_eq!(ids(&listed), ["beta-5.2", "gpt-5.2", "claude-haiku-mine"]);
}

#[test]
fn the_list_has_ids_alone_unless_aliases_are_asked_for_and_says_what_clients_read() {
    let world = world();
    let account = world.account();
    let get = |path: &str| world.ask(&Request::get(path).bearer(&account.key));
    let versioned = |path: &str| {
        Request::get(path)
            .bearer(&account.key)
            .header("anthropic-version", "2023-06-01")
    };
    let five = [
        "alpha-opus-4-7",
        "alpha-sonnet-4-6",
        "alpha-haiku-4-5-20251001",
        "beta-5.2",
        "beta-5.5",
    ];
    assert_eq!(ids(&get("/v1/models")), five);
    assert_eq!(ids(&get("/v1/models?aliases=false")), five);
    let all = [
        five[0],
        "claude-opus-4-7",
        five[1],
        five[2],
        five[3],
        "gpt-5.2",
        "claude-haiku-mine",
        five[4],
    ];
    let listed = get("/v1/models?aliases=true");
    assert_eq!(ids(&listed), all, "exact ones alone");
    assert_eq!(listed.json()["data"][1]["alias_of"], five[0]);
    assert!(listed.json()["data"][0].get("alias_of").is_none());
    let page = world.ask(&versioned(
        "/v1/models?aliases=true&limit=2&after_id=alpha-opus-4-7",
    ));
    assert_eq!(ids(&page), all[1..3]);
    Chat.failure(
        &get("/v1/models?aliases=2"),
        400,
        "invalid_request_error",
        None,
    );

    let chat = get("/v1/models/gpt-5.2").json();
    let limits = [
        "context_length",
        "context_window",
        "max_input_tokens",
        "max_output_tokens",
    ];
    assert_eq!(
        limits.map(|name| chat[name].as_u64().unwrap()),
        [400_000, 400_000, 400_000, 128_000]
    );
    assert_eq!(chat["capabilities"]["reasoning"], true);
    assert_eq!(chat["capabilities"]["temperature"], false);
    let messages = world.ask(&versioned("/v1/models/alpha-sonnet-4-6")).json();
    assert_eq!(
        limits.map(|name| messages[name].as_u64().unwrap()),
        [200_000, 200_000, 200_000, 64_000]
    );
    assert_eq!(
        messages["capabilities"]["thinking"]["types"]["enabled"],
        json!({"supported": true})
    );
    assert_eq!(
        messages["capabilities"]["effort"]["max"],
        json!({"supported": true})
    );

    let document = world.ask(&Request::get("/docs/models.json")).json();
    assert_eq!(
        document["models"][3]["aliases"],
        json!(["gpt-5.2", "gpt-*-mini", "claude-haiku-mine"])
    );
    let docs = world.ask(&Request::get("/docs/models")).text();
    assert!(
        docs.contains("<code>gpt-*-mini</code>"),
        "the catalog page shows aliases"
    );
}
