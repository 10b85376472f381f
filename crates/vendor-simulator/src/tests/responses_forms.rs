//! Tests the items and events of the responses vendor, which translators must handle.

use serde_json::{Value, json};

use super::Simulator;
use super::wire::Answer;
use crate::SimulatorOptions;

const BLOCKS: &str = r#"blocks=[{"thinking":"hm\n\nso"},{"text":"Ünd.","citations":[{"url":"https://x.test/"}]},{"tool":"get","args":{"city":"Oslo"}},{"tool":"patch","args":"*** raw"}]"#;

fn names(answer: &Answer) -> Vec<String> {
    answer
        .events()
        .iter()
        .map(|event| {
            event["type"]
                .as_str()
                .unwrap()
                .trim_start_matches("response.")
                .to_owned()
        })
        .collect()
}

/// The response in the last event.
fn response(answer: &Answer) -> Value {
    answer.events().last().unwrap()["response"].clone()
}

#[tokio::test]
async fn a_stream_begins_tells_and_ends_each_item_and_lists_them_all_at_its_end() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let answer = simulator
        .responses(true, &format!("[[sim {BLOCKS} events=1]]"))
        .await;
    let mut actual = names(&answer);
    actual.dedup();
    let summary = [
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
    ];
    let mut expected = vec!["created", "in_progress", "output_item.added"];
    for _ in 0..2 {
        expected.extend(summary);
        expected.push("reasoning_summary_part.done");
    }
    expected.extend([
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
    ]);
    expected.extend([
        "output_text.annotation.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]);
    expected.extend([
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
    ]);
    expected.extend([
        "output_item.done",
        "output_item.added",
        "custom_tool_call_input.delta",
    ]);
    expected.extend([
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]);
    assert_eq!(actual, expected);
    let events = answer.events();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    let done: Vec<_> = events
        .iter()
        .filter(|event| event["type"] == "response.output_item.done")
        .collect();
    let done: Vec<_> = done.iter().map(|event| event["item"].clone()).collect();
    assert_eq!(response(&answer)["output"], json!(done));
    assert_eq!(
        done[0]["summary"],
        json!([{"type": "summary_text", "text": "hm"}, {"type": "summary_text", "text": "so"}])
    );
    assert!(
        done[0]["encrypted_content"]
            .as_str()
            .unwrap()
            .starts_with("gAAAA")
    );
    assert_eq!(
        (&done[1]["phase"], &done[1]["content"][0]["text"]),
        (&json!("commentary"), &json!("Ünd."))
    );
    assert_eq!(
        (&done[2]["type"], &done[2]["arguments"]),
        (&json!("function_call"), &json!(r#"{"city":"Oslo"}"#))
    );
    assert_eq!(
        (&done[3]["type"], &done[3]["input"]),
        (&json!("custom_tool_call"), &json!("*** raw"))
    );
}

#[tokio::test]
async fn a_whole_answer_is_the_end_of_its_stream() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let marker = format!("[[sim {BLOCKS} input=5 cache_read=6 write_5m=7 output=9 reasoning=3]]");
    let body = simulator.responses(false, &marker).await.json();
    let kinds: Vec<_> = body["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["type"].clone())
        .collect();
    assert_eq!(
        kinds,
        ["reasoning", "message", "function_call", "custom_tool_call"]
    );
    assert_eq!(
        (&body["status"], &body["object"]),
        (&json!("completed"), &json!("response"))
    );
    assert_eq!(
        body["usage"],
        json!({
            "input_tokens": 18, "input_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 7},
            "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 27
        })
    );
    let cut = simulator
        .responses(false, "[[sim finish=content_filter]]")
        .await
        .json();
    assert_eq!(
        (&cut["status"], &cut["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("content_filter"))
    );
}

#[tokio::test]
async fn items_stand_where_they_are_wanted() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let actual = async |form: &str| {
        let answer = simulator
            .responses(true, &format!("[[sim {BLOCKS} items={form}]]"))
            .await;
        let deltas = names(&answer)
            .iter()
            .filter(|name| name.ends_with(".delta"))
            .count();
        let begun = names(&answer)
            .iter()
            .filter(|name| *name == "output_item.added")
            .count();
        let ended = names(&answer)
            .iter()
            .filter(|name| *name == "output_item.done")
            .count();
        (
            begun,
            deltas > 0,
            ended,
            response(&answer)["output"].as_array().unwrap().len(),
        )
    };
    assert_eq!(actual("usual").await, (4, true, 4, 4));
    assert_eq!(actual("whole").await, (4, false, 4, 4));
    assert_eq!(actual("done").await, (0, false, 4, 4));
    assert_eq!(actual("last").await, (0, false, 0, 4));
    assert_eq!(actual("unlisted").await, (4, true, 4, 0));
    let answer = simulator
        .responses(
            true,
            r#"[[sim tool=get tools=2 args={"a":"bcdef"} calls=interleaved]]"#,
        )
        .await;
    let begun = names(&answer)
        .iter()
        .position(|name| name.ends_with("arguments.delta"))
        .unwrap();
    assert_eq!(
        names(&answer)[begun - 2..begun],
        ["output_item.added", "output_item.added"]
    );
}

#[tokio::test]
async fn a_stream_fails_in_every_form() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let failed = async |form: &str| {
        let marker =
            format!("[[sim error_event=2 error_form={form} error_code=server_is_overloaded]]");
        simulator.responses(true, &marker).await
    };
    let flat = failed("flat").await;
    assert_eq!(names(&flat), ["created", "in_progress", "error"]);
    assert_eq!(flat.events()[2]["code"], "server_is_overloaded");
    assert_eq!(
        failed("nested").await.events()[2]["error"]["code"],
        "server_is_overloaded"
    );
    assert_eq!(
        response(&failed("failed").await)["error"]["code"],
        "server_is_overloaded"
    );
    assert_eq!(names(&failed("both").await)[2..], ["error", "failed"]);
    let ended = simulator.responses(true, "[[sim finish=failed]]").await;
    assert_eq!(
        (
            names(&ended).last().unwrap().as_str(),
            &response(&ended)["status"]
        ),
        ("failed", &json!("failed"))
    );
    assert_eq!(
        names(&simulator.responses(true, "[[sim nodone=1]]").await)
            .last()
            .unwrap(),
        "output_item.done"
    );
    let alive = simulator
        .responses(true, "[[sim keepalive=ping events=1]]")
        .await;
    let numbers: Vec<_> = alive
        .events()
        .iter()
        .map(|event| event["sequence_number"].as_u64().unwrap())
        .collect();
    assert!(
        numbers
            .iter()
            .enumerate()
            .all(|(index, number)| index as u64 == *number),
        "{numbers:?}"
    );
    assert_eq!(alive.events()[0]["type"], "keepalive");
}
