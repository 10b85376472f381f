//! The endpoints that the gateway answers without a vendor: health, the root, the model list.

use crate::client::{self, Answer, Request};
use crate::surface::Chat;
use crate::world::World;
use serde_json::{Value, json};

const INVALID: &str = "invalid_request_error";

#[test]
fn health_needs_no_key_and_every_answer_has_an_id() {
    let world = World::new();
    for path in ["/healthz", "/health"] {
        let answer = world.ask(&Request::get(path));
        assert_eq!(answer.status, 200);
        answer.request_id();
    }
    for path in ["/healthz", "/api/hello"] {
        let mut connection = world.connect();
        connection.send(&Request::new("HEAD", path).head());
        let head = connection.head().unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
    }
    let root = world.ask(&Request::get("/"));
    assert!(matches!(root.status, 200 | 301..=308), "{}", root.status);
    world.ask(&Request::get("/docs")).request_id();
    for page in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(client::ask(world.admin, &Request::get(page)).status, 200);
    }
}

#[test]
fn the_model_list_has_the_shape_of_its_surface() {
    let (world, account) = World::with_account();
    let ids = |answer: &Answer| -> Vec<String> {
        let data = answer.json()["data"].as_array().unwrap().clone();
        data.iter()
            .map(|model| model["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let chat = world.ask(&Request::get("/v1/models").bearer(&account.key));
    assert_eq!(chat.json()["object"], "list");
    let five = [
        "alpha-opus-4-7",
        "alpha-sonnet-4-6",
        "alpha-haiku-4-5-20251001",
        "beta-5.2",
        "beta-5.5",
    ];
    assert_eq!(ids(&chat), five);
    let versioned = |path: &str| {
        Request::get(path)
            .bearer(&account.key)
            .header("anthropic-version", "2023-06-01")
    };
    let messages = world.ask(&versioned("/v1/models?limit=2&after_id=alpha-opus-4-7"));
    assert_eq!(ids(&messages), five[1..3]);
    assert_eq!(messages.json()["has_more"], true);
    for id in five {
        let path = format!("/v1/models/{id}");
        assert_eq!(
            world.ask(&Request::get(&path).bearer(&account.key)).json()["object"],
            "model"
        );
        let described: Value = world.ask(&versioned(&path)).json();
        assert_eq!(
            (&described["type"], &described["id"]),
            (&json!("model"), &json!(id))
        );
    }
    let missing = world.ask(&Request::get("/v1/models/none").bearer(&account.key));
    Chat.failure(&missing, 404, INVALID, Some("model_not_found"));
    world.expect(401, &Request::get("/v1/models"));
    assert_eq!(world.vendor.calls(), 0);
}
