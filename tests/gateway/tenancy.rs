//! Tests objects that are stored in the operator's account at a vendor: no account can read, change
//! or list the objects of another, because the gateway forwards no reference to them and no path to
//! them.
//!
//! Unit tests (`request/vendor_state.rs`) list which members count as references. This file tests
//! what reaches the vendor, and the error that each surface's client gets.

use crate::client::{Answer, Request};
use crate::surface::{BOTH, Chat, Messages};
use crate::world::{Plan, Simulator, World};
use serde_json::{Value, json};

/// A file that the first account uploaded. The vendor serves it to every request with the
/// operator's key.
const FILE: &str = "file_011CNha8iCJcU1wXNR6q4V8w";

/// Path, the members that replace the plain conversation in the body, and the member that the error
/// names.
fn references() -> Vec<(&'static str, Value, &'static str)> {
    let said = |part: Value| json!([{"role": "user", "content": [{"type": "text", "text": "read it"}, part]}]);
    let asked = |part: Value| json!([{"role": "user", "content": [{"type": "input_text", "text": "read it"}, part]}]);
    let by_id = json!({"type": "file", "file_id": FILE});
    let image = json!({"type": "image", "source": by_id});
    let result = json!({"type": "tool_result", "tool_use_id": "toolu_1", "content": [image]});
    let interpreter =
        json!({"type": "code_interpreter", "container": {"type": "auto", "file_ids": [FILE]}});
    let (chat, messages, responses) = ("/v1/chat/completions", "/v1/messages", "/v1/responses");
    vec![
        (
            chat,
            json!({"messages": said(json!({"type": "file", "file": {"file_id": FILE}}))}),
            "messages[0].content[1].file.file_id",
        ),
        (chat, json!({"assistant_id": "asst_abc"}), "assistant_id"),
        (
            chat,
            json!({"cached_content": "cachedContents/abc"}),
            "cached_content",
        ),
        (
            chat,
            json!({"extra_body": {"google": {"cached_content": "cachedContents/abc"}}}),
            "extra_body.google.cached_content",
        ),
        (chat, json!({"preset": "cheap"}), "preset"),
        (chat, json!({"deferred": true}), "deferred"),
        (
            messages,
            json!({"messages": said(json!({"type": "document", "source": by_id}))}),
            "messages[0].content[1].source.file_id",
        ),
        (
            messages,
            json!({"messages": said(result)}),
            "messages[0].content[1].content[0].source.file_id",
        ),
        (
            messages,
            json!({"messages": said(json!({"type": "container_upload", "file_id": FILE}))}),
            "messages[0].content[1].file_id",
        ),
        (
            messages,
            json!({"container": "container_011CPR5CNjB747bTd36fQLFk"}),
            "container",
        ),
        (
            responses,
            json!({"input": asked(json!({"type": "input_file", "file_id": FILE}))}),
            "input[0].content[1].file_id",
        ),
        (
            responses,
            json!({"input": asked(json!({"type": "input_image", "file_id": FILE}))}),
            "input[0].content[1].file_id",
        ),
        (
            responses,
            json!({"tools": [interpreter]}),
            "tools[0].container.file_ids",
        ),
        (
            responses,
            json!({"tools": [{"type": "file_search", "vector_store_ids": ["vs_abc"]}]}),
            "tools[0].vector_store_ids",
        ),
        (
            responses,
            json!({"previous_response_id": "resp_abc"}),
            "previous_response_id",
        ),
        (
            responses,
            json!({"conversation": "conv_abc"}),
            "conversation",
        ),
        (responses, json!({"prompt": {"id": "pmpt_abc"}}), "prompt"),
        (
            responses,
            json!({"instructions": [{"type": "item_reference", "id": "msg_abc"}]}),
            "instructions",
        ),
    ]
}

fn body(path: &str, model: &str, members: &Value) -> Value {
    let mut body = match path {
        "/v1/responses" => json!({"input": "hello", "max_output_tokens": 100}),
        _ => json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 100}),
    };
    body["model"] = model.into();
    body.as_object_mut()
        .unwrap()
        .extend(members.as_object().unwrap().clone());
    body
}

/// Checks that the error has the format of the surface at `path`.
#[track_caller]
fn check_refusal(path: &str, answer: &Answer, member: &str) {
    assert_eq!(answer.status, 400, "{path} {member}: {}", answer.text());
    let answer = answer.json();
    let error = &answer["error"];
    assert_eq!(
        error["type"], "invalid_request_error",
        "{path} {member}: {answer}"
    );
    if path == "/v1/messages" {
        let dotted = member.replace('[', ".").replace(']', "");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.starts_with(&format!("{dotted}: ")),
            "{member}: {message}"
        );
        assert_eq!(answer["type"], "error");
    } else {
        assert_eq!(error["param"], member, "{path}: {answer}");
    }
}

fn world() -> (Simulator, World) {
    let vendor = Simulator::start(None);
    let world = Plan::default().endpoints(&[vendor.port]).start();
    (vendor, world)
}

#[test]
fn a_second_account_reaches_no_file_container_or_response_of_the_first() {
    let (vendor, world) = world();
    let owner = world.account();
    let other = world.account_with("other@example.test", &[]);
    world.grant(&other, "300", "other");
    let before = [&owner, &other].map(|account| world.standing(account).balance);
    for (path, members, member) in references() {
        // Models of both vendors: the body is passed through to one and translated for the other.
        for model in BOTH.map(|surface| surface.model()) {
            for account in [&owner, &other] {
                for stream in [false, true] {
                    let mut body = body(path, model, &members);
                    body["stream"] = stream.into();
                    let answer =
                        world.ask(&Request::post(path, body.to_string()).bearer(&account.key));
                    check_refusal(path, &answer, member);
                }
            }
        }
    }
    assert_eq!(vendor.calls(), 0, "{}", vendor.requests());
    // A text and a tool that mention the same words are accepted, and the refusals were not billed.
    let tool = json!({"type": "function", "function": {"name": "read", "parameters":
        {"type": "object", "properties": {"file_id": {"type": "string"}}, "required": ["file_id"]}}});
    let text = format!("[[sim input=1 output=1]] {{\"file_id\": \"{FILE}\"}}");
    let plain = json!({"tools": [tool], "messages": [{"role": "user", "content": text}]});
    let plain = body("/v1/chat/completions", Chat.model(), &plain);
    world.expect(200, &Chat.request(&other.key, &plain));
    assert_eq!(vendor.calls(), 1);
    let after = [&owner, &other].map(|account| world.standing(account).balance);
    assert_eq!(after, [before[0], before[1] - Chat.cost(1, 1)]);
    world.close();
}

/// The gateway refuses a thread with the code that makes the vendor's own SDK send the whole
/// conversation.
#[test]
fn a_message_thread_is_refused_so_that_its_client_sends_the_whole_conversation() {
    let (vendor, world) = world();
    let account = world.account();
    for thread in [
        json!({"type": "create"}),
        json!({"type": "continue", "previous_message_id": "msg_1"}),
    ] {
        let mut body = Messages.body("input=1 output=1", false, 100);
        body["thread"] = thread;
        let answer = world.ask(&Messages.request(&account.key, &body));
        let error = Messages.failure(
            &answer,
            400,
            "invalid_request_error",
            Some("thread_unsupported_request"),
        );
        assert_eq!(error["details"]["unsupported"], json!(["model"]));
    }
    assert_eq!(vendor.calls(), 0);
    world.close();
}

#[test]
fn no_path_to_what_is_stored_at_a_vendor_leaves_the_gateway() {
    let (vendor, world) = world();
    let account = world.account();
    let paths = [
        "/v1/files",
        "/v1/files/file_abc",
        "/v1/files/file_abc/content",
        "/v1/uploads",
        "/v1/batches",
        "/v1/batches/batch_abc",
        "/v1/messages/batches",
        "/v1/messages/batches/msgbatch_abc/results",
        "/v1/messages/msg_abc",
        "/v1/responses/resp_abc",
        "/v1/responses/resp_abc/cancel",
        "/v1/responses/resp_abc/input_items",
        "/v1/responses/compact",
        "/v1/chat/completions/chatcmpl_abc",
        "/v1/chat/completions/chatcmpl_abc/messages",
        "/v1/conversations",
        "/v1/conversations/conv_abc/items",
        "/v1/threads",
        "/v1/threads/thread_abc/runs",
        "/v1/assistants",
        "/v1/vector_stores",
        "/v1/vector_stores/vs_abc/files",
        "/v1/containers",
        "/v1/containers/cntr_abc/files/cfile_abc/content",
        "/v1/skills",
        "/v1/skills/skill_abc",
        "/v1/fine_tuning/jobs",
        "/v1/organizations/me",
    ];
    // Paths that two parsers could understand differently are refused.
    let evasive = [
        "/v1/responses/../files",
        "/v1/chat/completions/../../files",
        "/v1/messages%2Fbatches",
    ];
    for path in paths.into_iter().chain(evasive) {
        for method in ["GET", "POST", "DELETE"] {
            let mut request = Request::new(method, path).bearer(&account.key);
            if method == "POST" {
                request = Request::post(path, "{}").bearer(&account.key);
            }
            let answer = world.ask(&request);
            let expected: &[u16] = if evasive.contains(&path) {
                &[400, 404]
            } else {
                &[404]
            };
            assert!(
                expected.contains(&answer.status),
                "{method} {path}: {}",
                answer.text()
            );
            assert!(
                answer.json()["error"]["message"].is_string(),
                "{method} {path}: {}",
                answer.text()
            );
        }
    }
    // Stored objects cannot be listed at the surfaces' own paths either.
    for path in ["/v1/responses", "/v1/chat/completions", "/v1/messages"] {
        for method in ["GET", "DELETE"] {
            let answer = world.ask(&Request::new(method, path).bearer(&account.key));
            assert_eq!(answer.status, 405, "{method} {path}: {}", answer.text());
        }
    }
    assert_eq!(vendor.calls(), 0, "{}", vendor.requests());
    assert!(world.endings(&account).is_empty());
    world.close();
}
