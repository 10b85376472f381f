//! A chat vendor's server that refuses members which it does not know. The gateway repeats the
//! request once without the member, remembers that, and says so.

use crate::client::Request;
use crate::fallback::mutual;
use crate::scripted::{self, Scripted};
use crate::surface::{Chat, Messages};
use crate::world::{Plan, World};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A server that answers 422 to a body with one of these members, in the format of FastAPI.
struct StrictServer {
    port: u16,
    bodies: Arc<Mutex<Vec<Value>>>,
}

impl StrictServer {
    fn start(refused: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let bodies: Arc<Mutex<Vec<Value>>> = Arc::default();
        let seen = Arc::clone(&bodies);
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let seen = Arc::clone(&seen);
                std::thread::spawn(move || serve(client, refused, &seen));
            }
        });
        Self { port, bodies }
    }

    fn take_bodies(&self) -> Vec<Value> {
        std::mem::take(&mut *self.bodies.lock().unwrap())
    }
}

fn serve(mut client: TcpStream, refused: &[&str], seen: &Mutex<Vec<Value>>) {
    while let Some(body) = read_body(&mut client) {
        let answer = match refused.iter().find(|member| body.get(**member).is_some()) {
            Some(member) => (
                "422 Unprocessable Entity",
                json!({"detail": [{"type": "extra_forbidden", "loc": ["body", member], "msg": "Extra inputs are not permitted"}]}),
            ),
            None => (
                "200 OK",
                json!({"id": "c", "object": "chat.completion", "created": 1, "model": "m",
                    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}}),
            ),
        };
        seen.lock().unwrap().push(body);
        let text = answer.1.to_string();
        let head = format!(
            "HTTP/1.1 {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            answer.0,
            text.len()
        );
        if client.write_all((head + &text).as_bytes()).is_err() {
            return;
        }
    }
}

/// The JSON body of the next request; `None` if the client has disconnected.
fn read_body(client: &mut TcpStream) -> Option<Value> {
    let (mut got, mut piece) = (Vec::new(), [0; 65_536]);
    loop {
        let body = got.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(value) = body.and_then(|at| serde_json::from_slice(&got[at + 4..]).ok()) {
            return Some(value);
        }
        match client.read(&mut piece) {
            Ok(count) if count > 0 => got.extend_from_slice(&piece[..count]),
            _ => return None,
        }
    }
}

fn world_of(server: &StrictServer) -> World {
    Plan::default().endpoints(&[server.port]).start()
}

#[test]
fn a_member_that_the_server_does_not_know_is_left_out_and_then_no_longer_sent() {
    let server = StrictServer::start(&["safety_identifier", "seed"]);
    let world = world_of(&server);
    let account = world.account();
    // The gateway adds this member itself in translation.
    let mut body = Messages.body("hello", false, 100);
    body["model"] = Chat.model().into();
    let request = Messages.request(&account.key, &body);
    let first = world.expect(200, &request);
    let sent = server.take_bodies();
    assert_eq!(sent.len(), 2, "one repeat");
    assert!(sent[0].get("safety_identifier").is_some());
    let mut without = sent[0].clone();
    without.as_object_mut().unwrap().remove("safety_identifier");
    assert_eq!(sent[1], without, "and nothing else has changed");
    let second = world.expect(200, &request);
    assert_eq!(server.take_bodies(), [without]);
    for answer in [&first, &second] {
        let warnings = answer.header("x-gateway-warnings").unwrap_or_default();
        assert!(warnings.contains("dropped:safety_identifier"), "{warnings}");
    }
    // The caller sent this one, in the vendor's own protocol.
    let mut body = Chat.body("hello", false, 100);
    body["seed"] = 1.into();
    world.expect(200, &Chat.request(&account.key, &body));
    assert_eq!(server.take_bodies().len(), 2);
    let learned = |member: &str| {
        let member = format!("member=\"{member}\"");
        world.metric("gateway_learned_total", &["vendor=\"beta\"", &member])
    };
    assert_eq!((learned("safety_identifier"), learned("seed")), (1.0, 1.0));
    let log = world.log();
    assert_eq!(log.matches("vendors.beta.profile.drop").count(), 2, "{log}");
}

#[test]
fn what_changes_the_bill_is_not_left_out_nor_anything_in_strict_mode_nor_two_members() {
    let server = StrictServer::start(&["reasoning_effort", "seed", "user"]);
    let world = world_of(&server);
    let account = world.account();
    for (members, strict) in [
        (json!({"reasoning_effort": "low"}), false),
        (json!({"seed": 1}), true),
        (json!({"seed": 1, "user": "u"}), false),
    ] {
        let mut body = Chat.body("hello", false, 100);
        for (name, value) in members.as_object().unwrap() {
            body[name] = value.clone();
        }
        let mut request = Chat.request(&account.key, &body);
        if strict {
            request = request.header("x-gateway-strict", "true");
        }
        let answer = world.ask(&request);
        assert_eq!(answer.status, 422, "{members} {}", answer.text());
        assert!(answer.text().contains("Extra inputs"), "{}", answer.text());
        let calls = server.take_bodies().len();
        assert_eq!(calls, 1 + usize::from(members.get("user").is_some()));
    }
}

#[test]
fn what_a_server_refuses_is_left_out_for_it_as_a_fallback_too() {
    let server = StrictServer::start(&["safety_identifier"]);
    let bad = Scripted::start(scripted::json(500, "{}"));
    let (world, account) =
        mutual(Plan::default().endpoints_of(&[bad.port], &[server.port])).with_account();
    let mut body = Messages.body("hello", false, 100);
    body["model"] = Chat.model().into();
    world.expect(200, &Messages.request(&account.key, &body));
    assert_eq!(server.take_bodies().len(), 2, "the refusal is known now");
    let answer = world.expect(200, &Messages.whole(&account.key, "hello"));
    let warnings = answer.header("x-gateway-warnings").unwrap_or_default();
    assert!(
        warnings.contains("dropped:safety_identifier") && warnings.contains("fallback:"),
        "{warnings}"
    );
    let sent = server.take_bodies();
    assert_eq!(
        (sent.len(), sent[0].get("safety_identifier")),
        (1, None),
        "{sent:?}"
    );
}

#[test]
fn consecutive_messages_of_one_role_are_joined_for_a_server_that_wants_the_roles_to_alternate() {
    let server = StrictServer::start(&[]);
    let vendor = "  beta:\n    protocol: chat\n    official: true\n";
    let alternates = format!("{vendor}    profile: {{roles: {{alternate: true}}}}\n");
    for (config, expected) in [
        (&*alternates, json!(["one\n\ntwo", "ok", "three\n\nfour"])),
        (vendor, json!(["one", "two", "ok", "three", "four"])),
    ] {
        let world = Plan::default()
            .endpoints(&[server.port])
            .edit(vendor, config)
            .start();
        let account = world.account();
        let say = |role: &str, text: &str| json!({"role": role, "content": text});
        let turns = [
            say("user", "one"),
            say("user", "two"),
            say("assistant", "ok"),
            say("user", "three"),
            say("user", "four"),
        ];
        for (path, member) in [
            ("/v1/chat/completions", "messages"),
            ("/v1/messages", "messages"),
            ("/v1/responses", "input"),
        ] {
            let mut body = json!({"model": Chat.model(), member: turns});
            if path == "/v1/messages" {
                body["max_tokens"] = 100.into();
            }
            let request = |strict: &str| {
                Request::post(path, body.to_string())
                    .bearer(&account.key)
                    .header("x-gateway-strict", strict)
            };
            let answer = world.expect(200, &request("false"));
            let sent = server.take_bodies().pop().unwrap();
            let contents = sent["messages"].as_array().unwrap().iter();
            let contents = contents.map(|message| message["content"].clone());
            let is_joined = answer
                .header("x-gateway-warnings")
                .is_some_and(|told| told.contains(&format!("merged:{member}")));
            let is_whole = path == "/v1/messages" && config == vendor;
            if !is_whole {
                assert_eq!(Value::from_iter(contents), expected, "{path}");
            }
            assert_eq!(is_joined, config != vendor, "{path}");
            let strict = world.ask(&request("true"));
            assert_eq!(strict.status, if is_joined { 400 } else { 200 }, "{path}");
            server.take_bodies();
        }
    }
}

#[test]
fn a_strict_messages_server_gets_only_what_its_profile_names() {
    let vendor = "  alpha:\n    protocol: messages\n    official: true\n";
    let strict =
        "  alpha:\n    protocol: messages\n    profile: {strict: true, drop: [cache_control]}\n";
    let world = Plan::default().edit(vendor, strict).start();
    let account = world.account();
    let mark = json!({"type": "ephemeral"});
    let text = json!([{"type": "text", "text": "input=1 output=1", "cache_control": mark}]);
    let messages = json!({
        "max_tokens": 100, "metadata": {"user_id": "u"}, "context_management": {"edits": []},
        "thinking": {"type": "adaptive"}, "output_config": {"effort": "low"},
        "system": text, "messages": [{"role": "user", "content": text}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}, "cache_control": mark}],
    });
    let chat = json!({"messages": [{"role": "user", "content": "input=1 output=1"}], "user": "u"});
    let responses = json!({"input": "input=1 output=1", "safety_identifier": "u"});
    for (path, mut body, lost) in [
        (
            "/v1/messages",
            messages,
            Some(
                "dropped:anthropic-beta, dropped:context_management, \
                 dropped:messages[0].content[0].cache_control, dropped:metadata, \
                 dropped:output_config.effort, dropped:system[0].cache_control, \
                 dropped:thinking, dropped:tools[0].cache_control",
            ),
        ),
        ("/v1/chat/completions", chat, None),
        ("/v1/responses", responses, None),
    ] {
        body["model"] = Messages.model().into();
        let request = |strict: &str| {
            Request::post(path, body.to_string())
                .bearer(&account.key)
                .header("anthropic-beta", "one-2025")
                .header("x-gateway-strict", strict)
        };
        let answer = world.expect(200, &request("false"));
        let told = answer.header("x-gateway-warnings").unwrap_or_default();
        let mut told: Vec<_> = told
            .split(", ")
            .filter(|it| it.starts_with("dropped"))
            .collect();
        told.sort_unstable();
        assert_eq!(told.join(", "), lost.unwrap_or_default(), "{path}");
        let call = world.vendor.last();
        let sent = &call["body"];
        for member in [
            "metadata",
            "context_management",
            "thinking",
            "output_config",
        ] {
            assert_eq!(sent[member], Value::Null, "{path}: {sent}");
        }
        assert!(
            !call.to_string().contains("cache_control"),
            "{path}: {sent}"
        );
        assert!(!call["headers"].to_string().contains("anthropic-beta"));
        let status = if lost.is_some() { 400 } else { 200 };
        assert_eq!(world.ask(&request("true")).status, status, "{path}");
    }
}

#[test]
fn a_profile_decides_on_strict_schemas_usage_final_answers_and_lost_state() {
    let server = StrictServer::start(&[]);
    let vendor = "  beta:\n    protocol: chat\n    official: true\n";
    let profile = "  beta:\n    protocol: chat\n    profile: {drop: [strict], usage: [meta.billed], \
                   roles: {prefix: false}, state: [message.pondering], state_placeholder: \"\"}\n";
    let world = Plan::default()
        .endpoints(&[server.port])
        .edit(vendor, profile)
        .start();
    let account = world.account();
    let schema =
        json!({"type": "object", "properties": {}, "required": [], "additionalProperties": false});
    let named = json!({"name": "n", "strict": true, "schema": schema});
    let mut flat = named.clone();
    flat["type"] = "json_schema".into();
    let say = |role: &str, text: &str| json!({"role": role, "content": text});
    let call =
        json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let turns = |more: Value| {
        let call = json!({"role": "assistant", "content": null, "tool_calls": call});
        let mut turns = vec![say("user", "a"), call];
        turns[1]
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        turns.push(json!({"role": "tool", "tool_call_id": "1", "content": "r"}));
        turns
    };
    let without = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    for (path, body, at, expected, told) in [
        (
            "/v1/chat/completions",
            json!({"messages": [say("user", "a")], "response_format": {"type": "json_schema", "json_schema": named}}),
            "/response_format",
            without.clone(),
            "dropped:response_format.json_schema.strict",
        ),
        (
            "/v1/responses",
            json!({"input": "a", "text": {"format": flat}}),
            "/response_format",
            without,
            "dropped:response_format.strict",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [say("user", "a")], "stream": true}),
            "/stream_options",
            Value::Null,
            "",
        ),
        (
            "/v1/messages",
            json!({"max_tokens": 9, "messages": [say("user", "a"), say("assistant", "b")]}),
            "/messages",
            json!([say("user", "a")]),
            "dropped:messages[1]",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": turns(json!({}))}),
            "/messages/1/pondering",
            "".into(),
            "inserted:messages.pondering",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": turns(json!({"pondering": "p"}))}),
            "/messages/1/pondering",
            "p".into(),
            "",
        ),
    ] {
        let mut body = body;
        body["model"] = Chat.model().into();
        let answer = world.ask(&Request::post(path, body.to_string()).bearer(&account.key));
        let sent = server.take_bodies().pop().unwrap();
        let found = sent.pointer(at).cloned().unwrap_or_default();
        assert_eq!(found, expected, "{sent}");
        let warnings = answer.header("x-gateway-warnings").unwrap_or_default();
        assert!(warnings.contains(told), "{at}: {warnings}");
        assert!(
            !told.is_empty() || !warnings.contains("messages"),
            "{at}: {warnings}"
        );
    }
}
