use crate::Protocol::{self, Chat, Responses};
use crate::capabilities::{MessagesModel, ModelCapabilities};
use crate::translate::{self, TranslationRequest};
use serde_json::{Value, json};
use std::collections::HashSet;

const MIN_TOKENS: u64 = 1_024;

/// The body that a vendor gets whose model caches prompts from `min_cache_tokens` on.
fn sent_to(surface: Protocol, request: &Value, min_cache_tokens: Option<u64>) -> Value {
    let accepts = ModelCapabilities::Messages(MessagesModel {
        min_cache_tokens,
        ..MessagesModel::default()
    });
    let mut request = request.clone();
    request["model"] = json!("public-model");
    let body = request.to_string();
    let input = TranslationRequest::in_test(surface, body.as_bytes(), 64_000, &accepts);
    let translated = translate::translate_request(&input, false).unwrap();
    serde_json::from_slice(&translated.body).unwrap()
}

fn sent(surface: Protocol, request: &Value) -> Value {
    sent_to(surface, request, Some(MIN_TOKENS))
}

/// A text of this many tokens in the simulated vendors' count.
fn text(tokens: usize, about: impl std::fmt::Display) -> String {
    let mut text = format!("{about} ");
    text.extend(std::iter::repeat_n('x', 4 * tokens));
    text
}

fn user(content: impl Into<Value>) -> Value {
    json!({"role": "user", "content": content.into()})
}

fn assistant(content: &str) -> Value {
    json!({"role": "assistant", "content": content})
}

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "description": text(300, name)}})
}

/// The blocks in the order in which the vendor reads them, each with its path.
fn blocks(body: &Value) -> Vec<(String, &Value)> {
    let mut blocks = Vec::new();
    for list in ["tools", "system"] {
        let members = body[list].as_array().into_iter().flatten().enumerate();
        blocks.extend(members.map(|(index, block)| (format!("{list}[{index}]"), block)));
    }
    for (turn, message) in body["messages"].as_array().unwrap().iter().enumerate() {
        let content = message["content"].as_array().unwrap().iter().enumerate();
        blocks.extend(
            content.map(|(index, block)| (format!("messages[{turn}].content[{index}]"), block)),
        );
    }
    blocks
}

fn marked(body: &Value) -> Vec<String> {
    assert_eq!(body.get("cache_control"), None, "a vendor need not know it");
    blocks(body)
        .into_iter()
        .filter(|(_, block)| block.get("cache_control").is_some())
        .map(|(path, block)| {
            assert_eq!(block["cache_control"], json!({"type": "ephemeral"}));
            path
        })
        .collect()
}

/// Tokens of a request by how the vendor bills them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Billed {
    read: u64,
    written: u64,
    fresh: u64,
}

impl Billed {
    /// Cost in hundredths of the price of an input token.
    fn cost(self) -> u64 {
        10 * self.read + 125 * self.written + 100 * self.fresh
    }
}

/// A vendor's cache, as its guide describes it: an entry for each marked prefix; a marker finds the
/// longest entry that ends at it or at most 20 blocks before.
#[derive(Default)]
struct PromptCache(HashSet<String>);

impl PromptCache {
    fn serve(&mut self, body: &Value) -> Billed {
        const LOOKBACK: usize = 20;
        let (mut prefix, mut prefixes) = (String::new(), Vec::new());
        for (_, block) in blocks(body) {
            let mut block = block.clone();
            let is_marked = block
                .as_object_mut()
                .and_then(|members| members.remove("cache_control"))
                .is_some();
            prefix += &block.to_string();
            prefixes.push((prefix.clone(), is_marked));
        }
        let tokens = |prefix: &str| u64::try_from(prefix.len() / 4).unwrap();
        let markers = (0..prefixes.len()).filter(|index| prefixes[*index].1);
        let markers: Vec<_> = markers
            .filter(|index| tokens(&prefixes[*index].0) >= MIN_TOKENS)
            .collect();
        let find = |marker: &usize| {
            let reach = marker.saturating_sub(LOOKBACK)..=*marker;
            reach
                .rev()
                .find(|index| self.0.contains(&prefixes[*index].0))
        };
        let read = markers.iter().filter_map(find).max();
        let read = read.map_or(0, |index| tokens(&prefixes[index].0));
        let last = markers
            .last()
            .map_or(0, |index| tokens(&prefixes[*index].0));
        let entries = markers.iter().map(|index| prefixes[*index].0.clone());
        self.0.extend(entries);
        Billed {
            read,
            written: last - read,
            fresh: tokens(&prefix) - last,
        }
    }
}

/// Each request of a conversation in which the client sends `steps`, and gets an answer after each.
fn conversation(base: &Value, steps: &[Vec<Value>], answers: &[Value]) -> Vec<Value> {
    let mut messages = base["messages"].as_array().unwrap().clone();
    let mut requests = Vec::new();
    for (step, answer) in steps.iter().zip(answers) {
        messages.extend(step.iter().cloned());
        let mut request = base.clone();
        request["messages"] = json!(messages);
        requests.push(request);
        messages.push(answer.clone());
    }
    requests
}

#[test]
fn a_conversation_is_marked_where_the_next_request_will_read() {
    let system = json!({"role": "system", "content": text(900, "system")});
    let history = [user("one"), assistant("two"), user("three")];
    let with_history = |messages: &[Value]| {
        let messages = [std::slice::from_ref(&system), messages].concat();
        json!({"messages": messages})
    };
    let plain = with_history(&history);
    let mut with_tools = with_history(&history[..1]);
    with_tools["tools"] = json!([tool("a"), tool("b")]);
    let loops = json!([
        {"id": "1", "type": "function", "function": {"name": "a", "arguments": "{}"}},
        {"id": "2", "type": "function", "function": {"name": "b", "arguments": "{}"}},
    ]);
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "r"});
    let mut in_loop = with_history(&[
        user("one"),
        json!({"role": "assistant", "content": null, "tool_calls": loops}),
        result("1"),
        result("2"),
    ]);
    in_loop["tools"] = with_tools["tools"].clone();
    let prefill = with_history(&[
        user("one"),
        assistant("two"),
        user("three"),
        assistant("So"),
    ]);
    let reminded = with_history(&[
        user("one"),
        assistant("two"),
        user("three"),
        json!({"role": "system", "content": "now"}),
    ]);
    for (request, expected) in [
        (
            &plain,
            vec![
                "system[0]",
                "messages[0].content[0]",
                "messages[2].content[0]",
            ],
        ),
        (
            &with_tools,
            vec!["tools[1]", "system[0]", "messages[0].content[0]"],
        ),
        (
            &in_loop,
            vec![
                "tools[1]",
                "system[0]",
                "messages[0].content[0]",
                "messages[2].content[1]",
            ],
        ),
        // The gateway's own words behind a prefill are not there in the next request.
        (
            &prefill,
            vec![
                "system[0]",
                "messages[0].content[0]",
                "messages[2].content[0]",
            ],
        ),
        (
            &reminded,
            vec![
                "system[0]",
                "messages[0].content[0]",
                "messages[2].content[0]",
            ],
        ),
    ] {
        assert_eq!(marked(&sent(Chat, request)), expected, "{request}");
    }
}

#[test]
fn what_may_be_the_only_request_is_not_marked() {
    let long = text(5_000, "a document");
    let single = json!({"messages": [user(long.as_str())]});
    let with = |name: &str, value: Value| {
        let mut request = single.clone();
        request[name] = value;
        request
    };
    let forced = |choice: Value| {
        let mut request = with("tools", json!([tool("a")]));
        request["tool_choice"] = choice;
        request
    };
    let named = json!({"type": "function", "function": {"name": "a"}});
    for request in [
        single.clone(),
        with("prompt_cache_key", json!("")),
        forced(json!("none")),
        forced(json!("required")),
        forced(named),
    ] {
        assert_eq!(marked(&sent(Chat, &request)), [""; 0]);
    }
    for request in [
        with("prompt_cache_key", json!("k")),
        with("tools", json!([tool("a")])),
        forced(json!("auto")),
    ] {
        let marked = marked(&sent(Chat, &request));
        assert_eq!(marked.last().unwrap(), "messages[0].content[0]");
    }
    let keyed = json!({"input": long, "prompt_cache_key": "k"});
    assert_eq!(marked(&sent(Responses, &keyed)), ["messages[0].content[0]"]);
}

#[test]
fn a_caller_that_marks_is_left_alone() {
    let marker = json!({"type": "ephemeral"});
    let base = json!({
        "prompt_cache_key": "k", "tools": [tool("a")],
        "messages": [user(json!([{"type": "text", "text": text(5_000, "a")}])), assistant("b"), user("c")],
    });
    let own = |change: &dyn Fn(&mut Value)| {
        let mut request = base.clone();
        change(&mut request);
        request
    };
    let explicit = own(&|request| request["prompt_cache_options"] = json!({"mode": "explicit"}));
    let on_block =
        own(&|request| request["messages"][0]["content"][0]["cache_control"] = marker.clone());
    let on_message = own(&|request| request["messages"][1]["cache_control"] = marker.clone());
    let on_tool = own(&|request| request["tools"][0]["cache_control"] = marker.clone());
    let on_function =
        own(&|request| request["tools"][0]["function"]["cache_control"] = marker.clone());
    let at_breakpoint = own(&|request| {
        request["messages"][0]["content"][0]["prompt_cache_breakpoint"] =
            json!({"mode": "explicit"});
    });
    // It is removed, with its marker.
    let on_blank = own(&|request| {
        request["messages"][1] = json!({"role": "assistant", "content": [{"type": "text", "text": " ", "cache_control": marker}]});
    });
    for (request, expected) in [
        (explicit, vec![]),
        (on_block, vec!["messages[0].content[0]"]),
        (on_message, vec!["messages[1].content[0]"]),
        (on_tool, vec!["tools[0]"]),
        (on_function, vec!["tools[0]"]),
        (at_breakpoint, vec!["messages[0].content[0]"]),
        (on_blank, vec![]),
    ] {
        assert_eq!(marked(&sent(Chat, &request)), expected, "{request}");
    }
    let at_top = own(&|request| request["cache_control"] = marker.clone());
    let body = sent(Chat, &at_top);
    assert_eq!(body["cache_control"], marker);
    assert!(
        blocks(&body)
            .iter()
            .all(|(_, block)| block.get("cache_control").is_none())
    );
}

#[test]
fn a_prompt_below_the_minimum_and_a_model_that_caches_nothing_get_no_markers() {
    let turns = |tokens| json!({"messages": [user(text(tokens, "a")), assistant("b"), user("c")]});
    assert_eq!(marked(&sent(Chat, &turns(800))), [""; 0]);
    assert_eq!(marked(&sent(Chat, &turns(1_100))).len(), 2);
    assert_eq!(marked(&sent_to(Chat, &turns(9_000), None)), [""; 0]);
}

#[test]
fn each_request_of_a_conversation_reads_all_that_the_one_before_wrote() {
    let call = |step: usize, index: usize| format!("{step}-{index}");
    // Steps with one call and its result, with more than the vendor looks back, and plain turns.
    let sizes = [1, 30, 2, 0, 1, 0, 25];
    let mut steps = vec![vec![user(text(700, "question"))]];
    let mut answers = Vec::new();
    for (step, calls) in sizes.into_iter().enumerate() {
        if calls == 0 {
            answers.push(assistant(&text(50, step)));
            steps.push(vec![user(text(100, step))]);
            continue;
        }
        let made = (0..calls).map(|index| {
            json!({"id": call(step, index), "type": "function", "function": {"name": "a", "arguments": "{}"}})
        });
        answers.push(
            json!({"role": "assistant", "content": "So:", "tool_calls": made.collect::<Vec<_>>()}),
        );
        let results = (0..calls).map(|index| {
            json!({"role": "tool", "tool_call_id": call(step, index), "content": text(100, index)})
        });
        steps.push(results.collect());
    }
    answers.push(assistant("Done."));
    let base = json!({
        "tools": [tool("a")],
        "messages": [{"role": "system", "content": text(900, "system")}],
    });
    let (mut cache, mut before) = (PromptCache::default(), Billed::default());
    let (mut cost, mut unmarked) = (0, 0);
    for (step, request) in conversation(&base, &steps, &answers).iter().enumerate() {
        let body = sent(Chat, request);
        assert!(marked(&body).len() <= 4);
        let billed = cache.serve(&body);
        assert_eq!(billed.read, before.read + before.written, "step {step}");
        assert_eq!(billed.fresh, 0, "step {step}");
        before = billed;
        cost += billed.cost();
        unmarked += PromptCache::default()
            .serve(&sent_to(Chat, request, None))
            .cost();
    }
    assert!(cost * 2 < unmarked, "{cost} instead of {unmarked}");
}

#[test]
fn a_conversation_without_tools_costs_less_from_its_third_turn_on() {
    let base = json!({"messages": [{"role": "system", "content": text(2_000, "system")}]});
    let steps: Vec<_> = (0..4).map(|step| vec![user(text(100, step))]).collect();
    let answers: Vec<_> = (0..4).map(|step| assistant(&text(100, step))).collect();
    let mut cache = PromptCache::default();
    let mut balance = Vec::new();
    let mut saved = 0;
    for request in conversation(&base, &steps, &answers) {
        let cost = |billed: Billed| i64::try_from(billed.cost()).unwrap();
        let unmarked = PromptCache::default().serve(&sent_to(Chat, &request, None));
        saved += cost(unmarked) - cost(cache.serve(&sent(Chat, &request)));
        balance.push(saved);
    }
    assert_eq!(balance[0], 0, "a first turn costs what it always did");
    assert!(
        balance[1] < 0 && balance[2] > 0 && balance[3] > balance[2],
        "{balance:?}"
    );
}

/// A client that changes its last message afterwards, as editors do with what is open at the time.
#[test]
fn a_changed_last_message_costs_only_itself() {
    let base = json!({"tools": [tool("a")], "messages": [{"role": "system", "content": text(2_000, "s")}]});
    let mut cache = PromptCache::default();
    for step in 0..5 {
        let mut messages = base["messages"].as_array().unwrap().clone();
        for earlier in 0..step {
            messages.push(user(text(100, earlier)));
            messages.push(assistant(&text(100, earlier)));
        }
        messages.push(user(format!("{} open: a file", text(100, step))));
        let mut request = base.clone();
        request["messages"] = json!(messages);
        let billed = cache.serve(&sent(Chat, &request));
        assert!(step == 0 || billed.written < 450, "step {step}: {billed:?}");
    }
}
