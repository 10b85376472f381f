//! Compares the OpenAPI document with the routes, both ways, and with the responses of the API.

use super::*;
use std::collections::BTreeSet;

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// Methods and paths of the calls of `.route(` in `admin.rs`.
fn served() -> BTreeSet<(String, String)> {
    let source = include_str!("../../admin.rs");
    let (_, routes) = source.split_once("let routes = Router::new()").unwrap();
    let (routes, _) = routes.split_once(".fallback(").unwrap();
    let mut served = BTreeSet::new();
    for call in routes.split(".route(").skip(1) {
        let path = call.split('"').nth(1).unwrap();
        let methods = METHODS.iter().filter(|method| {
            let first = call.contains(&format!(" {method}("));
            first || call.contains(&format!(".{method}("))
        });
        let before = served.len();
        served.extend(methods.map(|method| ((*method).to_owned(), path.to_owned())));
        assert!(served.len() > before, "{call}");
    }
    served
}

fn described(document: &Value) -> BTreeSet<(String, String)> {
    let mut described = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            assert!(METHODS.contains(&method.as_str()), "{path} {method}");
            described.insert((method.clone(), path.clone()));
        }
    }
    described
}

fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let Some(reference) = schema["$ref"].as_str() else {
        return schema;
    };
    let target = document.pointer(reference.strip_prefix('#').unwrap());
    resolve(document, target.unwrap_or_else(|| panic!("{reference}")))
}

/// What in `value` does not conform to `schema`. A member that the schema lacks is a fault too.
fn faults(document: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let schema = resolve(document, schema);
    if let Some(choices) = schema["anyOf"].as_array() {
        let fits = |choice| faults(document, choice, value, at).is_empty();
        return if choices.iter().any(fits) {
            Vec::new()
        } else {
            vec![format!("{at}: {value} fits no choice")]
        };
    }
    let is_listed = |name: &str| {
        schema[name]
            .as_array()
            .is_none_or(|all| all.contains(value))
    };
    let is_constant = schema.get("const").is_none_or(|constant| constant == value);
    let types = match &schema["type"] {
        Value::Array(types) => types.clone(),
        Value::Null => Vec::new(),
        one => vec![one.clone()],
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if !is_listed("enum") || !is_constant || !(types.is_empty() || types.contains(&json!(kind))) {
        return vec![format!("{at}: {value} is not {schema}")];
    }
    let mut found = Vec::new();
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        found.extend(faults(
            document,
            &schema["items"],
            item,
            &format!("{at}[{index}]"),
        ));
    }
    let members = value.as_object();
    for name in schema["required"].as_array().into_iter().flatten() {
        let name = name.as_str().unwrap();
        if members.is_none_or(|members| !members.contains_key(name)) {
            found.push(format!("{at}.{name} is missing"));
        }
    }
    let properties = schema["properties"].as_object();
    for (name, member) in members.into_iter().flatten() {
        match properties.and_then(|properties| properties.get(name)) {
            Some(schema) => {
                found.extend(faults(document, schema, member, &format!("{at}.{name}")));
            }
            None if properties.is_some() => found.push(format!("{at}.{name} is not described")),
            None => {}
        }
    }
    found
}

/// Turns every part of the gateway on.
pub(super) fn turn_all_on(world: &World) {
    let text = format!(
        "{}payments: {{provider: stripe, secret_key: sk_test_abc, webhook_secret: whsec_abc, \
         currency: usd, credit_price: \"0.01\", codes: true}}\norganisations: true\n",
        include_str!("../../../conf/local.yaml")
    );
    let settings = config::parse(&text, &|_| None).unwrap();
    world.settings.store(Arc::new(settings));
}

#[tokio::test]
async fn the_document_leaves_out_what_is_off() {
    let world = world().await;
    let document = world.ask("GET", "/openapi.json", "").await.json();
    let text = document.to_string();
    for word in [
        "ayment",
        "stripe",
        "/codes",
        "CodeBatch",
        "NewCodes",
        "/organisations",
        "SetMember",
    ] {
        assert!(!text.contains(word), "{word}");
    }
    let paths = document["paths"].as_object().unwrap().len();
    turn_all_on(&world);
    let document = world.ask("GET", "/openapi.json", "").await.json();
    let all = document["paths"].as_object().unwrap();
    assert_eq!(
        all.len(),
        paths + 15,
        "four of payments, three of codes, eight of organisations"
    );
}

#[tokio::test]
async fn the_document_describes_every_route_and_no_other() {
    let world = world().await;
    turn_all_on(&world);
    let served_document = world.ask("GET", "/openapi.json", "").await;
    assert_eq!(served_document.status, 200);
    let document = served_document.json();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(served(), described(&document));
    // Every reference resolves, and every schema is used.
    let text = document.to_string();
    for part in text.split("\"$ref\":\"#").skip(1) {
        let (pointer, _) = part.split_once('"').unwrap();
        assert!(document.pointer(pointer).is_some(), "{pointer}");
    }
    for name in document["components"]["schemas"]
        .as_object()
        .unwrap()
        .keys()
    {
        assert!(text.contains(&format!("/schemas/{name}\"")), "{name}");
    }
    let no_key = world.send("GET", "/openapi.json", "", "").await;
    assert_eq!(no_key.status, 401, "it is for administrators, as the API");
}

#[tokio::test]
async fn responses_conform_to_the_document() {
    let world = world().await;
    turn_all_on(&world);
    let document = world.ask("GET", "/openapi.json", "").await.json();
    let new_organisation = r#"{"name":"Acme","owner":"root@example.com"}"#;
    let made = world.ask("POST", "/organisations", new_organisation).await;
    let made = made.json()["account_id"].as_str().unwrap().to_owned();
    let organisation = format!("/organisations/{made}");
    world.enter_response("req_1");
    world.refuse("req_refused");
    world.note("req_free");
    let key = format!("/keys/{}", world.key_id);
    let amount = r#"{"credits":"5","ref":"r"}"#;
    let adjustment = r#"{"credits":"-1","ref":"r","reason":"a test"}"#;
    let account = "/accounts/a@example.com";
    let new_key = r#"{"name":"ci","spend_limit":"1/day","expires_in_seconds":60}"#;
    let cases = [
        ("get", "/accounts", "/accounts".to_owned(), ""),
        (
            "post",
            "/accounts",
            "/accounts".to_owned(),
            r#"{"email":"n@example.com"}"#,
        ),
        ("get", "/accounts/{account}", account.to_owned(), ""),
        (
            "get",
            "/accounts/{account}",
            "/accounts/n@example.com".to_owned(),
            "",
        ),
        (
            "post",
            "/accounts/{account}/grants",
            format!("{account}/grants"),
            amount,
        ),
        (
            "post",
            "/accounts/{account}/grants",
            format!("{account}/grants"),
            amount,
        ),
        (
            "post",
            "/accounts/{account}/topups",
            format!("{account}/topups"),
            amount,
        ),
        (
            "post",
            "/accounts/{account}/adjustments",
            format!("{account}/adjustments"),
            adjustment,
        ),
        (
            "get",
            "/accounts/{account}/usage",
            format!("{account}/usage"),
            "",
        ),
        (
            "post",
            "/accounts/{account}/links",
            format!("{account}/links"),
            r#"{"purpose":"reset"}"#,
        ),
        (
            "post",
            "/accounts/{account}/keys",
            format!("{account}/keys"),
            new_key,
        ),
        (
            "get",
            "/accounts/{account}/keys",
            format!("{account}/keys"),
            "",
        ),
        ("get", "/keys/{key_id}", key.clone(), ""),
        (
            "patch",
            "/keys/{key_id}",
            key.clone(),
            r#"{"scope":"inference"}"#,
        ),
        (
            "post",
            "/keys/{key_id}/disable",
            format!("{key}/disable"),
            "",
        ),
        ("post", "/keys/{key_id}/enable", format!("{key}/enable"), ""),
        ("post", "/keys/{key_id}/rotate", format!("{key}/rotate"), ""),
        (
            "post",
            "/keys/{key_id}/move",
            format!("{key}/move"),
            r#"{"to":"nobody@example.com"}"#,
        ),
        ("post", "/keys/{key_id}/revoke", format!("{key}/revoke"), ""),
        ("post", "/keys/{key_id}/revoke", format!("{key}/revoke"), ""),
        (
            "post",
            "/accounts/{account}/suspend",
            format!("{account}/suspend"),
            "",
        ),
        (
            "post",
            "/accounts/{account}/resume",
            format!("{account}/resume"),
            "",
        ),
        (
            "post",
            "/requests/{request_id}/refunds",
            "/requests/req_1/refunds".to_owned(),
            "{}",
        ),
        (
            "get",
            "/requests/{request_id}",
            "/requests/req_1".to_owned(),
            "",
        ),
        (
            "get",
            "/requests/{request_id}",
            "/requests/req_none".to_owned(),
            "",
        ),
        (
            "get",
            "/requests/{request_id}",
            "/requests/req_refused".to_owned(),
            "",
        ),
        (
            "get",
            "/requests/{request_id}",
            "/requests/chatcmpl-1".to_owned(),
            "",
        ),
        (
            "get",
            "/accounts/{account}/receipts",
            format!("{account}/receipts"),
            "",
        ),
        (
            "post",
            "/accounts/{account}/role",
            format!("{account}/role"),
            r#"{"role":"viewer"}"#,
        ),
        (
            "post",
            "/accounts/{account}/role",
            format!("{account}/role"),
            r#"{"role":"administrator"}"#,
        ),
        (
            "post",
            "/accounts/{account}/delete",
            format!("{account}/delete"),
            r#"{"confirmation":"b@example.com"}"#,
        ),
        (
            "post",
            "/accounts/{account}/merge",
            format!("{account}/merge"),
            r#"{"into":"nobody@example.com"}"#,
        ),
        (
            "post",
            "/accounts/{account}/delete",
            format!("{account}/delete"),
            r#"{"confirmation":"a@example.com"}"#,
        ),
        (
            "post",
            "/organisations",
            "/organisations".to_owned(),
            new_organisation,
        ),
        ("get", "/organisations", "/organisations".to_owned(), ""),
        (
            "post",
            "/organisations/{account}/members",
            format!("{organisation}/members"),
            r#"{"person":"n@example.com"}"#,
        ),
        (
            "patch",
            "/organisations/{account}/members/{person}",
            format!("{organisation}/members/n@example.com"),
            r#"{"budget":"5/day"}"#,
        ),
        ("get", "/organisations/{account}", organisation.clone(), ""),
        (
            "get",
            "/accounts/{account}/usage",
            format!("/accounts/{made}/usage?group_by=member"),
            "",
        ),
        (
            "post",
            "/organisations/{account}/members/{person}/remove",
            format!("{organisation}/members/n@example.com/remove"),
            "",
        ),
        (
            "post",
            "/organisations/{account}/invites/{invite_id}/revoke",
            format!("{organisation}/invites/none/revoke"),
            "",
        ),
        (
            "post",
            "/organisations/{account}/domains",
            format!("{organisation}/domains"),
            r#"{"domain":"example.com"}"#,
        ),
        (
            "post",
            "/organisations/{account}/domains/{domain}/remove",
            format!("{organisation}/domains/example.com/remove"),
            "",
        ),
        ("get", "/payments", "/payments".to_owned(), ""),
        ("get", "/codes", "/codes".to_owned(), ""),
    ];
    for (method, route, path, body) in cases {
        let response = world.ask(&method.to_uppercase(), &path, body).await;
        let responses = &document["paths"][route][method]["responses"];
        let described = match &responses[response.status.to_string()] {
            Value::Null => resolve(&document, &responses["default"]),
            described => described,
        };
        let is_failure = responses.get(response.status.to_string()).is_none();
        assert_eq!(is_failure, response.status >= 400, "{method} {path}");
        let schema = &described["content"]["application/json"]["schema"];
        let found = faults(&document, schema, &response.json(), route);
        assert!(found.is_empty(), "{method} {path}: {found:?}");
    }
}
