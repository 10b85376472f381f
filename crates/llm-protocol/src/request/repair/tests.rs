//! Tests what the gateway changes for each kind of model of its own protocol, and that it changes
//! nothing else.

use crate::Protocol;
use crate::capabilities::repair_rules::{KnownCapabilities, RepairRules};
use crate::capabilities::{
    ChatModel, MessagesModel, ModelCapabilities, ParallelToolCalls, ReasoningReplay,
    ResponsesModel, SamplingSupport, ThinkingType, ToolCallIds, ToolsWithReasoning,
};
use crate::ir::Effort;
use crate::profile::VendorProfile;
use crate::request::{self, PassthroughContext, RequestCleanup, RequestEdits};
use crate::usage::PerTool;
use bytes::Bytes;
use proptest::prelude::*;
use serde_json::Value as Any;

impl<'a> RepairRules<'a> {
    pub(crate) fn in_test(accepts: &'a ModelCapabilities, known: KnownCapabilities) -> Self {
        let max_output_tokens = 64_000;
        Self {
            accepts,
            known,
            max_output_tokens,
            output_limit: None,
            thinking_budget: None,
            is_interleaved: false,
        }
    }
}

fn stripped(body: &Bytes, rules: &RepairRules<'_>) -> RequestCleanup {
    let protocol = rules.accepts.protocol();
    let summary = request::read_summary(protocol, body).unwrap();
    if protocol != Protocol::Responses {
        return request::clean_request(
            protocol,
            VendorProfile::compatible(),
            body,
            &summary,
            Some(rules),
        );
    }
    let sender = PassthroughContext {
        account_id: "a",
        profile: VendorProfile::official(Protocol::Responses),
        sold: PerTool {
            web_search: false,
            web_fetch: false,
            code_execution: false,
            tool_search: false,
            mcp: false,
        },
        without_reasoning: false,
        model: "m",
        repair: *rules,
    };
    request::clean_responses_request(body, &summary, &sender)
        .unwrap()
        .0
}

/// Returns the body as sent, and the warnings.
fn repaired(body: &str, rules: &RepairRules<'_>) -> (String, Vec<String>) {
    let body = Bytes::copy_from_slice(body.as_bytes());
    let summary = request::read_summary(rules.accepts.protocol(), &body).unwrap();
    let edits = RequestEdits {
        model: "m",
        output_limit: rules.output_limit,
        output_limit_field: "max_tokens",
        thinking_budget: rules.thinking_budget,
        include_usage: false,
    };
    let stripped = stripped(&body, rules);
    let warnings = stripped.warnings.clone();
    let sent = request::rewrite_cleaned(&body, &summary, &edits, stripped);
    (String::from_utf8(sent.to_vec()).unwrap(), warnings)
}

/// Parses JSON, for comparison without regard to spelling.
fn json(text: &str) -> Any {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn check(accepts: &ModelCapabilities, members: &str, expected: &str, warnings: &[&str]) {
    let rules = RepairRules::in_test(accepts, KnownCapabilities::ALL);
    check_by(&rules, members, expected, warnings);
}

/// Compares byte for byte, and a second time: a repaired body needs no repair, and without known
/// capabilities nothing changes.
fn check_by(rules: &RepairRules<'_>, members: &str, expected: &str, warnings: &[&str]) {
    let whole = |members: &str| match rules.accepts.protocol() {
        Protocol::Chat | Protocol::Messages => format!(r#"{{"model":"m",{members}}}"#),
        Protocol::Responses => {
            format!(r#"{{"model":"m","store":false,"safety_identifier":"s",{members}}}"#)
        }
    };
    let plain = |sent: String| match rules.accepts.protocol() {
        Protocol::Chat | Protocol::Messages => sent,
        Protocol::Responses => {
            let (before, rest) = sent.split_once(r#""safety_identifier":""#).unwrap();
            let (_, behind) = rest.split_once('"').unwrap();
            format!(r#"{before}"safety_identifier":"s"{behind}"#)
        }
    };
    let (body, expected) = (whole(members), whole(expected));
    let (found, reported) = repaired(&body, rules);
    assert_eq!(plain(found), expected, "{body}");
    assert_eq!(reported, warnings, "{body}");
    json(&expected);
    let summary = request::read_summary(rules.accepts.protocol(), expected.as_bytes()).unwrap();
    assert!(
        !summary.needs_repair(rules)
            || !stripped(&Bytes::from(expected.clone()), rules).is_repaired,
        "{expected}"
    );
    let unknown = RepairRules {
        known: KnownCapabilities::NONE,
        ..*rules
    };
    assert_eq!(plain(repaired(&body, &unknown).0), body);
}

fn reasoning() -> ChatModel {
    ChatModel {
        reasoning: true,
        effort_values: vec![Effort::None, Effort::Low, Effort::High],
        sampling: false,
        stop: false,
        system_role: "developer",
        ..ChatModel::default()
    }
}

fn plain() -> ChatModel {
    ChatModel {
        output_limit_field: "max_tokens",
        ..ChatModel::default()
    }
}

fn adaptive() -> MessagesModel {
    MessagesModel {
        thinking_types: vec![ThinkingType::Adaptive, ThinkingType::Disabled],
        effort_levels: vec![Effort::Low, Effort::Medium, Effort::High],
        ..MessagesModel::default()
    }
}

fn manual() -> MessagesModel {
    MessagesModel {
        sampling: SamplingSupport::OneOf,
        thinking_types: vec![ThinkingType::Enabled, ThinkingType::Disabled],
        prefill: true,
        ..MessagesModel::default()
    }
}

#[test]
fn a_chat_limit_gets_the_name_that_the_vendor_knows() {
    let (newer, older) = (
        ModelCapabilities::Chat(reasoning()),
        ModelCapabilities::Chat(plain()),
    );
    check(
        &newer,
        r#" "max_tokens" : 5 "#,
        r#" "max_completion_tokens" : 5 "#,
        &["renamed:max_tokens"],
    );
    check(
        &older,
        r#""max_completion_tokens":5"#,
        r#""max_tokens":5"#,
        &["renamed:max_completion_tokens"],
    );
    let both = r#""max_completion_tokens":5,"max_tokens":9"#;
    check(
        &newer,
        both,
        r#""max_completion_tokens":5"#,
        &["dropped:max_tokens"],
    );
    check(
        &older,
        both,
        r#""max_tokens":9"#,
        &["dropped:max_completion_tokens"],
    );
    let null = r#""max_completion_tokens":null,"max_tokens":9,"n":1"#;
    check(
        &newer,
        null,
        r#""max_completion_tokens":9,"n":1"#,
        &["renamed:max_tokens"],
    );
    for kept in [r#""max_completion_tokens":5"#, r#""max_tokens":null"#] {
        check(&newer, kept, kept, &[]);
    }
    let rules = RepairRules {
        output_limit: Some(3),
        ..RepairRules::in_test(&newer, KnownCapabilities::ALL)
    };
    let (lowered, _) = repaired(r#"{"model":"m","max_tokens":5}"#, &rules);
    assert_eq!(lowered, r#"{"model":"m","max_completion_tokens":3}"#);
}

#[test]
fn a_reasoning_chat_model_is_sent_no_sampling_and_no_stop() {
    let accepts = ModelCapabilities::Chat(ChatModel {
        verbosity: false,
        ..reasoning()
    });
    check(
        &accepts,
        r#""temperature":0,"messages":[], "top_p":0.5,"frequency_penalty":1,"stop":["x"],"verbosity":"low","top_k":4"#,
        r#""messages":[]"#,
        &[
            "dropped:frequency_penalty",
            "dropped:stop",
            "dropped:temperature",
            "dropped:top_k",
            "dropped:top_p",
            "dropped:verbosity",
        ],
    );
    check(
        &accepts,
        r#""stop":[],"logit_bias":{},"n":1"#,
        r#""n":1"#,
        &[],
    );
    for kept in [
        r#""temperature":1.0,"top_p":1,"presence_penalty":0,"stop":null"#,
        r#""temperature":null"#,
    ] {
        check(&accepts, kept, kept, &[]);
    }
    let sampled = r#""temperature":0,"stop":"x""#;
    check(&ModelCapabilities::Chat(plain()), sampled, sampled, &[]);
}

#[test]
fn an_effort_is_one_that_the_chat_model_knows() {
    let accepts = ModelCapabilities::Chat(reasoning());
    for (input, sent) in [("xhigh", "high"), ("medium", "low"), ("minimal", "none")] {
        let of = |effort: &str| format!(r#""reasoning_effort":"{effort}","n":1"#);
        check(
            &accepts,
            &of(input),
            &of(sent),
            &["downgraded:reasoning_effort"],
        );
    }
    for kept in [
        r#""reasoning_effort":"high""#,
        r#""reasoning_effort":"new""#,
        r#""reasoning_effort":null"#,
    ] {
        check(&accepts, kept, kept, &[]);
    }
    let plain = ModelCapabilities::Chat(plain());
    check(
        &plain,
        r#""reasoning_effort":"low","n":1"#,
        r#""n":1"#,
        &["dropped:reasoning_effort"],
    );
    check(
        &plain,
        r#""n":1,"reasoning_effort":"none""#,
        r#""n":1"#,
        &[],
    );
}

#[test]
fn tools_switch_reasoning_off_where_both_are_refused() {
    let accepts = ModelCapabilities::Chat(ChatModel {
        tools_with_reasoning: ToolsWithReasoning::EffortNone,
        ..reasoning()
    });
    let rules = RepairRules::in_test(&accepts, KnownCapabilities::ALL);
    let (sent, reported) = repaired(
        r#"{"model":"m","tools":[{}],"reasoning_effort":"high"}"#,
        &rules,
    );
    assert_eq!(
        sent,
        r#"{"model":"m","tools":[{}],"reasoning_effort":"none"}"#
    );
    assert_eq!(reported, ["downgraded:reasoning_effort"]);
    let (sent, reported) = repaired(r#"{"model":"m","tools":[{}]}"#, &rules);
    assert_eq!(
        sent,
        r#"{"reasoning_effort":"none","model":"m","tools":[{}]}"#
    );
    assert_eq!(reported, ["inserted:reasoning_effort"]);
    for kept in [
        r#""reasoning_effort":"high""#,
        r#""tools":[],"reasoning_effort":"high""#,
    ] {
        check(&accepts, kept, kept, &[]);
    }
}

#[test]
fn a_forced_tool_switches_reasoning_off_where_the_vendor_refuses_both() {
    let switch = |kind: &str| vec![("thinking".to_owned(), format!(r#"{{"type":"{kind}"}}"#))];
    let accepts = ModelCapabilities::Chat(ChatModel {
        tools_with_reasoning: ToolsWithReasoning::Unforced,
        effort_values: vec![Effort::None, Effort::High],
        reasoning_off: switch("disabled"),
        ..reasoning()
    });
    let off = r#""thinking":{"type":"disabled"},"#;
    let rules = RepairRules::in_test(&accepts, KnownCapabilities::ALL);
    for choice in [
        r#""required""#,
        r#"{"type":"function","function":{"name":"f"}}"#,
        r#"{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[]}}"#,
    ] {
        let forced = format!(r#""model":"m","tools":[{{}}],"tool_choice":{choice}"#);
        let (sent, reported) = repaired(&format!("{{{forced}}}"), &rules);
        assert_eq!(sent, format!("{{{off}{forced}}}"));
        assert_eq!(reported, ["inserted:thinking"]);
        let (sent, reported) = repaired(
            &format!(r#"{{"reasoning_effort":"high",{forced}}}"#),
            &rules,
        );
        assert_eq!(sent, format!("{{{off}{forced}}}"));
        let expected = ["downgraded:reasoning_effort", "inserted:thinking"];
        assert_eq!(reported, expected);
    }
    for kept in [
        r#""tools":[{}]"#,
        r#""tools":[{}],"tool_choice":"auto","reasoning_effort":"high""#,
        r#""tools":[{}],"tool_choice":null"#,
        r#""tools":[{}],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[]}}"#,
        r#""tools":[],"tool_choice":"required""#,
    ] {
        check(&accepts, kept, kept, &[]);
    }
    // The nearest effort below one that the model lacks may be none.
    let (sent, reported) = repaired(r#"{"model":"m","reasoning_effort":"minimal"}"#, &rules);
    assert_eq!(sent, format!(r#"{{{off}"model":"m"}}"#));
    let mut reported = reported;
    reported.sort();
    assert_eq!(
        reported,
        ["downgraded:reasoning_effort", "inserted:thinking"]
    );
}

#[test]
fn only_a_model_without_the_newer_role_has_it_renamed() {
    let turns = |role: &str| {
        format!(r#""messages":[{{"role":"{role}","content":"x"}},{{"content":"y","role":"user"}}]"#)
    };
    check(
        &ModelCapabilities::Chat(plain()),
        &turns("developer"),
        &turns("system"),
        &["renamed:messages[0].role"],
    );
    check(
        &ModelCapabilities::Chat(plain()),
        &turns("system"),
        &turns("system"),
        &[],
    );
    // Models that prefer the newer role accept the older one too.
    check(
        &ModelCapabilities::Chat(reasoning()),
        &turns("system"),
        &turns("system"),
        &[],
    );
}

#[test]
fn reasoning_comes_back_only_within_the_turn_that_calls_tools() {
    let accepts = ModelCapabilities::Chat(ChatModel {
        reasoning_replay: ReasoningReplay::ReasoningContentInTurn,
        ..ChatModel::default()
    });
    let thought = r#","reasoning_content":"hm""#;
    let body = |first: &str, second: &str, calls: &str| {
        format!(
            r#""messages":[{{"role":"user","content":"a"}},{{"role":"assistant","content":"b"{first}}},{{"role":"user","content":"c"}},{{"role":"assistant","content":"d"{second}{calls}}}]"#
        )
    };
    let calls = r#","tool_calls":[{"id":"1"}]"#;
    let first = "dropped:messages[1].reasoning_content";
    check(
        &accepts,
        &body(thought, thought, calls),
        &body("", thought, calls),
        &[first],
    );
    check(
        &accepts,
        &body(thought, thought, ""),
        &body("", "", ""),
        &[first, "dropped:messages[3].reasoning_content"],
    );
    check(
        &accepts,
        &body("", thought, calls),
        &body("", thought, calls),
        &[],
    );
}

#[test]
fn ids_of_calls_have_nine_letters_where_nothing_else_is_taken() {
    let accepts = ModelCapabilities::Chat(ChatModel {
        tool_call_ids: ToolCallIds::Nine,
        ..ChatModel::default()
    });
    let body = |id: &str| {
        format!(
            r#""messages":[{{"role":"assistant","tool_calls":[{{"id":"{id}"}},{{"id":"abcDEF123"}}]}},{{"role":"tool","tool_call_id":"{id}"}},{{"role":"tool","tool_call_id":"abcDEF123"}}]"#
        )
    };
    let rules = RepairRules::in_test(&accepts, KnownCapabilities::ALL);
    let (sent, _) = repaired(&format!(r#"{{"model":"m",{}}}"#, body("call_1")), &rules);
    let nine = json(&sent)["messages"][1]["tool_call_id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        (
            nine.len(),
            nine.bytes().all(|byte| byte.is_ascii_alphanumeric())
        ),
        (9, true),
        "{nine}"
    );
    check(&accepts, &body("call_1"), &body(&nine), &[]);
    // The first nine bytes of the SHA-256 of `a/b:0` are 84 51 30 c7 dd a5 d9 92 47. Each modulo 62
    // is the index of a base62 character.
    check(&accepts, &body("a\\/b"), &body("8JmDZfVM9"), &[]);
}

#[test]
fn parallel_calls_are_not_forbidden_beside_a_choice_that_excludes_it() {
    let accepts = ModelCapabilities::Chat(ChatModel {
        parallel_tool_calls: ParallelToolCalls::WithAutoChoice,
        ..ChatModel::default()
    });
    let chosen = r#""tool_choice":"required""#;
    let reported = &["dropped:parallel_tool_calls"][..];
    check(
        &accepts,
        &format!(r#""parallel_tool_calls":false,{chosen}"#),
        chosen,
        reported,
    );
    check(
        &accepts,
        &format!(r#"{chosen},"parallel_tool_calls":true"#),
        chosen,
        &[],
    );
    let auto = r#""parallel_tool_calls":false,"tool_choice":"auto""#;
    check(&accepts, auto, auto, &[]);
}

#[test]
fn a_messages_model_of_fixed_sampling_gets_none_and_one_of_one_gets_one() {
    let both = r#""temperature":0,"max_tokens":9,"top_p":0.9"#;
    check(
        &ModelCapabilities::Messages(adaptive()),
        both,
        r#""max_tokens":9"#,
        &["dropped:temperature", "dropped:top_p"],
    );
    check(
        &ModelCapabilities::Messages(manual()),
        both,
        r#""temperature":0,"max_tokens":9"#,
        &["dropped:top_p"],
    );
    check(
        &ModelCapabilities::Messages(adaptive()),
        r#""temperature":1,"max_tokens":9"#,
        r#""max_tokens":9"#,
        &[],
    );
    let one = r#""top_p":0.9,"top_k":3"#;
    check(&ModelCapabilities::Messages(manual()), one, one, &[]);
}

/// Checks bodies in which the first member is inserted by the repair.
fn front(
    accepts: &ModelCapabilities,
    members: &str,
    made: &str,
    expected: &str,
    warnings: &[&str],
) {
    let rules = RepairRules::in_test(accepts, KnownCapabilities::ALL);
    let (sent, reported) = repaired(&format!(r#"{{"model":"m",{members}}}"#), &rules);
    assert_eq!(sent, format!(r#"{{{made},"model":"m",{expected}}}"#));
    assert_eq!(reported, warnings);
    assert_eq!(repaired(&sent, &rules), (sent.clone(), Vec::new()), "again");
}

#[test]
fn a_model_that_thinks_as_it_likes_gets_an_effort_for_a_budget() {
    let free = ModelCapabilities::Messages(adaptive());
    let reported = &["rewritten:thinking"][..];
    front(
        &free,
        r#""max_tokens":9000,"thinking":{"type":"enabled","budget_tokens":5000}"#,
        r#""output_config":{"effort":"medium"}"#,
        r#""max_tokens":9000,"thinking":{"type":"adaptive","display":"summarized"}"#,
        reported,
    );
    let input = |thinking: &str, config: &str| {
        format!(r#""thinking":{thinking},"output_config":{config},"max_tokens":9"#)
    };
    let enabled = r#"{"type":"enabled","budget_tokens":50000,"display":"omitted"}"#;
    let thinks = r#"{"type":"adaptive","display":"omitted"}"#;
    for (config, sent) in [
        (r#"{"effort":"low"}"#, r#"{"effort":"low"}"#),
        ("{}", r#"{"effort":"high"}"#),
        (r#"{"a":1}"#, r#"{"effort":"high","a":1}"#),
    ] {
        check(
            &free,
            &input(enabled, config),
            &input(thinks, sent),
            reported,
        );
    }
    for kept in [
        input(thinks, "{}"),
        input(r#"{"type":"disabled"}"#, "{}"),
        input(r#"{"type":"new"}"#, "{}"),
    ] {
        check(&free, &kept, &kept, &[]);
    }
    let none = ModelCapabilities::Messages(MessagesModel::default());
    let clears =
        r#""context_management":{"edits":[{"type":"clear_thinking_20251015"}]},"max_tokens":9"#;
    check(
        &none,
        &format!(r#""thinking":{enabled},{clears}"#),
        r#""max_tokens":9"#,
        &["dropped:context_management", "dropped:thinking"],
    );
    check(
        &none,
        r#""max_tokens":9,"thinking":{"type":"disabled"}"#,
        r#""max_tokens":9"#,
        &[],
    );
}

#[test]
fn a_model_that_thinks_by_a_budget_gets_one_that_fits() {
    let budget = ModelCapabilities::Messages(manual());
    let of = |max: u64, thinking: &str| {
        format!(r#""max_tokens":{max},"thinking":{thinking},"messages":[]"#)
    };
    let (free, reported) = (r#"{"type":"adaptive"}"#, &["rewritten:thinking"][..]);
    for (max, tokens) in [(64_000, 24_576), (10_000, 8_976), (2_048, 1_024)] {
        let made = format!(r#"{{"type":"enabled","budget_tokens":{tokens}}}"#);
        check(&budget, &of(max, free), &of(max, &made), reported);
    }
    let left = |max: u64| format!(r#""max_tokens":{max},"messages":[]"#);
    check(
        &budget,
        &of(2_000, free),
        &left(2_000),
        &["dropped:thinking"],
    );
    check(
        &budget,
        &format!(r#"{},"output_config":{{"effort":"low"}}"#, of(64_000, free)),
        &of(64_000, r#"{"type":"enabled","budget_tokens":4096}"#),
        &["dropped:output_config.effort", "rewritten:thinking"],
    );
    let forced = r#","tool_choice":{"type":"any"}"#;
    check(
        &budget,
        &format!("{}{forced}", of(64_000, free)),
        &format!("{}{forced}", left(64_000)),
        &["dropped:thinking"],
    );
    let enabled = |tokens: u64| format!(r#"{{"type":"enabled","budget_tokens":{tokens}}}"#);
    let clamped = &["clamped:thinking.budget_tokens"][..];
    check(
        &budget,
        &of(9_000, &enabled(9_000)),
        &of(9_000, &enabled(7_976)),
        clamped,
    );
    check(
        &budget,
        &of(1_500, &enabled(9_000)),
        &of(1_500, &enabled(1_024)),
        clamped,
    );
    check(
        &budget,
        &of(1_000, &enabled(9_000)),
        &left(1_000),
        &["dropped:thinking"],
    );
    check(
        &budget,
        &of(9_001, &enabled(9_000)),
        &of(9_001, &enabled(9_000)),
        &[],
    );
    let rules = RepairRules {
        is_interleaved: true,
        ..RepairRules::in_test(&budget, KnownCapabilities::ALL)
    };
    check_by(
        &rules,
        &of(9_000, &enabled(9_000)),
        &of(9_000, &enabled(9_000)),
        &[],
    );
    let rules = RepairRules {
        output_limit: Some(3_000),
        ..RepairRules::in_test(&budget, KnownCapabilities::ALL)
    };
    let (sent, _) = repaired(&format!(r#"{{"model":"m",{}}}"#, of(9_000, free)), &rules);
    assert_eq!(
        sent,
        format!(r#"{{"model":"m",{}}}"#, of(3_000, &enabled(1_976)))
    );
}

#[test]
fn what_answers_calls_that_were_not_thought_about_is_not_thought_about() {
    let turns = |first: &str| {
        format!(
            r#""max_tokens":64000,"messages":[{{"role":"assistant","content":[{first}{{"type":"tool_use","id":"t","name":"f","input":{{}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"t"}}]}}]"#
        )
    };
    let free = r#","thinking":{"type":"adaptive"}"#;
    let budget = ModelCapabilities::Messages(manual());
    check(
        &budget,
        &format!("{}{free}", turns("")),
        &turns(""),
        &["dropped:thinking"],
    );
    let signed = turns(r#"{"type":"thinking","thinking":"","signature":"Eq"},"#);
    let made = r#","thinking":{"type":"enabled","budget_tokens":24576}"#;
    check(
        &budget,
        &format!("{signed}{free}"),
        &format!("{signed}{made}"),
        &["rewritten:thinking"],
    );
    // The caller knows the model, but another vendor's answer may be among the turns.
    check(
        &budget,
        &format!("{signed}{made}"),
        &format!("{signed}{made}"),
        &[],
    );
    check(
        &budget,
        &format!("{}{made}", turns("")),
        &turns(""),
        &["dropped:thinking"],
    );
    let either = ModelCapabilities::Messages(MessagesModel {
        thinking_types: vec![ThinkingType::Enabled, ThinkingType::Adaptive],
        ..adaptive()
    });
    let thinks = r#","thinking":{"type":"adaptive","display":"summarized"}"#;
    let config = r#""output_config":{"effort":"high"}"#;
    front(
        &either,
        &format!("{}{made}", turns("")),
        config,
        &format!("{}{thinks}", turns("")),
        &["rewritten:thinking"],
    );
}

#[test]
fn calls_without_thinking_turn_off_what_is_on_by_default() {
    let turns = |first: &str| {
        format!(
            r#""max_tokens":64000,"messages":[{{"role":"assistant","content":[{first}{{"type":"tool_use","id":"t","name":"f","input":{{}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"t"}}]}},{{"role":"assistant","content":"a"}},{{"role":"user","content":"b"}}]"#
        )
    };
    let off = r#""thinking":{"type":"disabled"}"#;
    let lacking = turns("");
    let thinks = ModelCapabilities::Messages(MessagesModel {
        thinks_by_default: true,
        ..manual()
    });
    front(&thinks, &lacking, off, &lacking, &[]);
    front(
        &thinks,
        &format!(r#""thinking":null,{lacking}"#),
        off,
        &lacking,
        &[],
    );
    for asked in [
        r#""thinking":{"type":"adaptive","display":"omitted"}"#,
        r#""thinking":{"type":"enabled","budget_tokens":2000}"#,
    ] {
        let (body, sent) = (format!("{asked},{lacking}"), format!("{off},{lacking}"));
        check(&thinks, &body, &sent, &["dropped:thinking"]);
    }
    // Its own calls: unsigned thinking counts, another vendor's does not.
    let own = turns(r#"{"type":"thinking","thinking":"a"},"#);
    let enabled = format!(r#""thinking":{{"type":"enabled","budget_tokens":2000}},{own}"#);
    check(&thinks, &own, &own, &[]);
    check(&thinks, &enabled, &enabled, &[]);
    // This model thinks only on request, and this one cannot stop.
    check(
        &ModelCapabilities::Messages(manual()),
        &lacking,
        &lacking,
        &[],
    );
    let always = ModelCapabilities::Messages(MessagesModel {
        thinks_by_default: true,
        thinking_types: Vec::new(),
        ..manual()
    });
    check(&always, &lacking, &lacking, &[]);
}

#[test]
fn instructions_inside_the_conversation_become_reminders_and_those_before_it_go_to_the_top() {
    let accepts = ModelCapabilities::Messages(adaptive());
    let user = r#"{"role":"user","content":"a"}"#;
    let reminder = |text: &str, more: &str| {
        format!(
            r#"{{"role":"user","content":[{{"type":"text","text":"<system-reminder>\n{text}\n</system-reminder>"{more}}}]}}"#
        )
    };
    check(
        &accepts,
        &format!(
            r#""messages":[{user}, {{"role":"system","content":"b\u0041\n","clear_at":1}},{user}]"#
        ),
        &format!(
            r#""messages":[{user}, {},{user}]"#,
            reminder(r"b\u0041\n", "")
        ),
        &["rewritten:messages[1]"],
    );
    let marked = r#"{"role":"system","content":[{"type":"text","text":"b","cache_control":{"type":"ephemeral"}},{"type":"text","text":"c"}]}"#;
    check(
        &accepts,
        &format!(r#""messages":[{user},{marked}]"#),
        &format!(
            r#""messages":[{user},{}]"#,
            reminder("bc", r#","cache_control":{"type":"ephemeral"}"#)
        ),
        &["rewritten:messages[1]"],
    );
    let first = r#"{"role":"system","content":"b"}"#;
    let reported = &["rewritten:messages[0]"][..];
    front(
        &accepts,
        &format!(r#""messages":[{first},{user}]"#),
        r#""system":"b""#,
        &format!(r#""messages":[{user}]"#),
        reported,
    );
    let with = |system: &str, turns: &str| format!(r#""system":{system},"messages":[{turns}]"#);
    let both = format!("{first} , {user}");
    let block = |text: &str| format!(r#"{{"type":"text","text":"{text}"}}"#);
    let joined = with(&format!("[{},{}]", block("s"), block("b")), user);
    check(&accepts, &with("\"s\"", &both), &joined, reported);
    check(
        &accepts,
        &with(&format!("[{}]", block("s")), &both),
        &joined,
        reported,
    );
    check(
        &accepts,
        &with("null", &both),
        &with(&format!("[{}]", block("b")), user),
        reported,
    );
    check(
        &accepts,
        &with("\"s\"", first),
        &with("\"s\"", r#"{"role":"user","content":"b"}"#),
        reported,
    );
    let (call, result) = (
        r#"{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]}"#,
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"t"}]}"#,
    );
    check(
        &accepts,
        &format!(r#""messages":[{user},{call},{first},{result}]"#),
        &format!(
            r#""messages":[{user},{call},{result},{}]"#,
            reminder("b", "")
        ),
        &["rewritten:messages[2]"],
    );
    // Several instructions, and results in several messages.
    check(
        &accepts,
        &format!(r#""messages":[{user},{call},{first},{result},{first},{result},{user}]"#),
        &format!(
            r#""messages":[{user},{call},{result},{result},{},{},{user}]"#,
            reminder("b", ""),
            reminder("b", "")
        ),
        &["rewritten:messages[2]", "rewritten:messages[4]"],
    );
}

#[test]
fn a_model_without_prefill_is_asked_to_go_on() {
    let accepts = ModelCapabilities::Messages(adaptive());
    let last = r#""messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}"#;
    check(
        &accepts,
        &format!("{last}]"),
        &format!(r#"{last},{{"role":"user","content":"Continue."}}]"#),
        &["inserted:messages[2]"],
    );
    check(
        &ModelCapabilities::Messages(manual()),
        &format!("{last}]"),
        &format!("{last}]"),
        &[],
    );
    let paused = r#""messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"server_tool_use"}]}]"#;
    check(&accepts, paused, paused, &[]);
}

#[test]
fn a_responses_model_gets_what_it_knows() {
    let model = ResponsesModel {
        reasoning: true,
        effort_values: vec![Effort::Low],
        sampling: false,
        summaries: false,
        ..ResponsesModel::default()
    };
    check(
        &ModelCapabilities::Responses(model.clone()),
        r#""temperature":1,"top_p":0.5,"reasoning":{"summary":"auto","effort":"high"},"text":{"verbosity":"low","format":{}},"input":"x""#,
        r#""reasoning":{"effort":"low"},"text":{"format":{}},"input":"x""#,
        &[
            "downgraded:reasoning.effort",
            "dropped:reasoning.summary",
            "dropped:text.verbosity",
            "dropped:top_p",
        ],
    );
    let plain = ModelCapabilities::Responses(ResponsesModel {
        sampling: true,
        ..ResponsesModel::default()
    });
    let sent = r#""input":"x","temperature":0"#;
    let body_with = |reasoning: &str| {
        format!(r#"{sent},"reasoning":{reasoning},"include":["reasoning.encrypted_content","a"]"#)
    };
    let left = format!(r#"{sent},"include":["a"]"#);
    check(
        &plain,
        &body_with(r#"{"effort":"low"}"#),
        &left,
        &["dropped:reasoning"],
    );
    check(&plain, &body_with(r#"{"effort":"none"}"#), &left, &[]);
    let fits = r#""reasoning":{"effort":"low"},"input":"x""#;
    check(
        &ModelCapabilities::Responses(ResponsesModel {
            summaries: true,
            ..model
        }),
        fits,
        fits,
        &[],
    );
}

/// Generates members that some of the models may refuse, and some that none does.
fn members() -> impl Strategy<Value = Vec<&'static str>> {
    let all = vec![
        r#""max_tokens":4000"#,
        r#""max_completion_tokens":3000"#,
        r#""temperature":0"#,
        r#""temperature":1"#,
        r#""top_p":0.5"#,
        r#""top_k":4"#,
        r#""stop":["x"]"#,
        r#""verbosity":"low""#,
        r#""reasoning_effort":"medium""#,
        r#""parallel_tool_calls":false"#,
        r#""tool_choice":"required""#,
        r#""tools":[{"type":"function","function":{"name":"f"}}]"#,
        r#""thinking":{"type":"enabled","budget_tokens":9000}"#,
        r#""thinking":{"type":"adaptive"}"#,
        r#""output_config":{"effort":"max"}"#,
        r#""output_config":{"format":{"type":"json_schema"},"effort":"high"}"#,
        r#""system":"s""#,
        r#""messages":[{"role":"system","content":"a"},{"role":"user","content":"b"},{"role":"assistant","content":"c"}]"#,
        r#""messages":[{"role":"user","content":"b"},{"role":"developer","content":"c"},{"role":"system","content":[{"type":"text","text":"d"}]}]"#,
        r#""metadata":{"a" : [1, 2]}"#,
    ];
    proptest::sample::subsequence(all, 0..=12).prop_shuffle()
}

fn models() -> impl Strategy<Value = ModelCapabilities> {
    let chat = |model| ModelCapabilities::Chat(model);
    proptest::sample::select(vec![
        chat(plain()),
        chat(reasoning()),
        chat(ChatModel {
            tools_with_reasoning: ToolsWithReasoning::EffortNone,
            parallel_tool_calls: ParallelToolCalls::WithAutoChoice,
            system_role: "system",
            ..reasoning()
        }),
        ModelCapabilities::Messages(adaptive()),
        ModelCapabilities::Messages(manual()),
        ModelCapabilities::Messages(MessagesModel::default()),
    ])
}

proptest! {
    #[test]
    fn what_was_repaired_is_json_and_is_left_alone_and_nothing_goes_without_a_word(
        accepts in models(),
        members in members(),
    ) {
        let name = |member: &str| member.split('"').nth(1).unwrap().to_owned();
        let mut input: Vec<&str> = Vec::new();
        for member in members {
            if !input.iter().any(|other| name(other) == name(member)) {
                input.push(member);
            }
        }
        input.insert(input.len() / 2, r#""model":"m""#);
        let body = format!("{{ {} }}", input.join(" , "));
        let rules = RepairRules::in_test(&accepts, KnownCapabilities::ALL);
        let (sent, warnings) = repaired(&body, &rules);
        let found: Any = serde_json::from_str(&sent).map_err(|error| TestCaseError::fail(format!("{error}: {sent}")))?;
        let bytes = Bytes::from(sent.clone());
        prop_assert!(!stripped(&bytes, &rules).is_repaired, "{} from {}", sent, body);
        for (member, value) in json(&body).as_object().unwrap() {
            let is_named = warnings.iter().any(|warning| warning.contains(member.as_str()));
            let asks_nothing = member == "temperature" && *value == 1;
            let is_joined = member == "system" && warnings.iter().any(|warning| warning == "rewritten:messages[0]");
            let is_inside = member == "output_config" && warnings.iter().any(|warning| warning == "rewritten:thinking");
            let is_same = found.get(member) == Some(value);
            prop_assert!(is_same || is_named || asks_nothing || is_joined || is_inside, "{}: {} from {}", member, sent, body);
        }
    }
}
