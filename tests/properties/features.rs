//! Features of a request: the gateway finds them where they count, and nowhere else.

use llm_protocol::Protocol;
use llm_protocol::request::{ContentSize, Features, read_summary};
use llm_protocol::usage::ServerTool;

fn features(protocol: Protocol, members: &str) -> Features {
    let body = format!(r#"{{"model":"m",{members}}}"#);
    let mut features = read_summary(protocol, body.as_bytes())
        .expect(members)
        .features;
    // These counters only describe the turn in progress. They have no price.
    (features.leftovers.thoughts, features.leftovers.tool_results) = (0, 0);
    features.leftovers.other_than_nine = false;
    features.content = ContentSize::default();
    features
}

fn user(part: &str) -> String {
    format!(r#""messages":[{{"role":"user","content":[{part}]}}]"#)
}

fn check(protocol: Protocol, members: &str, expected: Features) {
    assert_eq!(features(protocol, members), expected, "{members}");
}

#[test]
#[allow(clippy::too_many_lines)] // A table.
fn what_costs_more_than_its_bytes_is_found() {
    use Protocol::{Chat, Messages};
    let none = Features::default;
    let image = || Features {
        images: 1,
        ..none()
    };
    let far_image = || Features {
        url_sources: true,
        ..image()
    };
    let file = || Features {
        documents_or_files: true,
        ..none()
    };
    let heard = || Features {
        audio_input: true,
        ..none()
    };
    let spoken = || Features {
        audio_output: true,
        ..none()
    };
    let parts = [
        (
            Messages,
            r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}"#,
            image(),
        ),
        (
            Messages,
            r#"{"source":{"type":"url","url":"https://x"},"type":"image"}"#,
            far_image(),
        ),
        (
            Messages,
            r#"{"type":"image","source":{"type":"file","file_id":null}}"#,
            Features {
                images: 1,
                ..file()
            },
        ),
        (
            Messages,
            r#"{"type":"document","source":{"type":"base64","data":"JVBE"}}"#,
            file(),
        ),
        (
            Messages,
            r#"{"type":"document","source":{"type":"text","data":"plain"}}"#,
            none(),
        ),
        (
            Messages,
            r#"{"type":"document","source":{"type":"content","content":[{"type":"image"}]}}"#,
            image(),
        ),
        (
            Messages,
            r#"{"type":"tool_result","content":[{"type":"image","source":{}},{"type":"image","source":{}}]}"#,
            Features {
                images: 2,
                tools: true,
                ..none()
            },
        ),
        (
            Messages,
            r#"{"type":"container_upload","file_id":null}"#,
            file(),
        ),
        (
            Messages,
            r#"{"type":"tool_use","input":{"type":"image","file":{}}}"#,
            Features {
                tools: true,
                ..none()
            },
        ),
        (
            Messages,
            r#"{"type":"text","text":"{\"type\":\"image\"}"}"#,
            none(),
        ),
        (
            Chat,
            r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}"#,
            image(),
        ),
        (
            Chat,
            r#"{"type":"image_url","image_url":{"url":"https://x/y.png"}}"#,
            far_image(),
        ),
        (Chat, r#"{"image_url":"https://x/y.png"}"#, far_image()),
        (
            Chat,
            r#"{"type":"input_audio","input_audio":{"data":"AA","format":"wav"}}"#,
            heard(),
        ),
        (
            Chat,
            r#"{"type":"file","file":{"file_data":"data:application/pdf;base64,AA"}}"#,
            file(),
        ),
        (
            Chat,
            r#"{"type":"video_url","video_url":{"url":"data:video/mp4,"}}"#,
            file(),
        ),
    ];
    for (protocol, part, expected) in parts {
        check(protocol, &user(part), expected);
    }
    check(
        Chat,
        r#""messages":[{"role":"assistant","audio":{"data":"AA"}}]"#,
        heard(),
    );
    check(
        Chat,
        r#""messages":[{"role":"assistant","audio":null,"content":null}]"#,
        none(),
    );
    check(Chat, r#""modalities":["text","audio"]"#, spoken());
    check(Chat, r#""modalities":["text"],"audio":null"#, none());
    check(
        Chat,
        r#""response_format":{"json_schema":{"schema":{"properties":{"image_url":{"type":"image"}}}}}"#,
        none(),
    );
}

#[test]
fn tools_that_run_at_the_vendor_are_found() {
    let tool = |protocol, kind: &str| {
        features(
            protocol,
            &format!(
                r#""tools":[{{"name":"f","input_schema":{{"type":"image"}}}},{{"type":"{kind}"}}]"#
            ),
        )
        .server_tools
    };
    for kind in [
        "web_search_2025",
        "web_fetch",
        "code_execution",
        "advisor_20260301",
        "bash_2025",
        "memory_20250818x",
    ] {
        assert!(tool(Protocol::Messages, kind), "{kind}");
    }
    let offered = |protocol, members: &str| {
        let offers = features(protocol, members).tool_offers;
        ServerTool::ALL
            .into_iter()
            .filter(|tool| offers.get(*tool).is_some())
            .collect::<Vec<_>>()
    };
    for (kind, wanted) in [
        ("web_search_20250305", ServerTool::WebSearch),
        ("web_fetch_20250910", ServerTool::WebFetch),
        ("code_execution_20250825", ServerTool::CodeExecution),
        ("code_interpreter", ServerTool::CodeExecution),
        ("tool_search_tool_regex", ServerTool::ToolSearch),
        ("tool_search_tool_bm25_20251119", ServerTool::ToolSearch),
        ("mcp_toolset", ServerTool::Mcp),
        ("mcp", ServerTool::Mcp),
    ] {
        assert!(!tool(Protocol::Messages, kind), "{kind}");
        let inside = format!(r#""tools":[{{"type":"namespace","tools":[{{"type":"{kind}"}}]}}]"#);
        assert_eq!(
            offered(
                Protocol::Messages,
                &format!(r#""tools":[{{"type":"{kind}"}}]"#)
            ),
            [wanted]
        );
        assert_eq!(offered(Protocol::Responses, &inside), [wanted]);
    }
    for kind in [
        "custom",
        "function",
        "bash_20250124",
        "text_editor_20250728",
        "computer_20251124",
        "computer_toolset_20260801",
        "browser_toolset_20260801",
        "memory_20250818",
    ] {
        assert!(!tool(Protocol::Messages, kind), "{kind}");
    }
    assert!(!tool(Protocol::Chat, "function"));
    assert!(
        features(Protocol::Chat, r#""tools":[{"type":"web_search"}]"#)
            .tool_offers
            .web_search
            .is_some()
    );
    assert!(features(Protocol::Chat, r#""web_search_options":{}"#).server_tools);
    assert!(!features(Protocol::Chat, r#""web_search_options":null"#).server_tools);
    assert_eq!(
        offered(Protocol::Messages, r#""mcp_servers":[{}]"#),
        [ServerTool::Mcp]
    );
    assert_eq!(offered(Protocol::Messages, r#""mcp_servers":[]"#), []);
    assert_eq!(
        offered(Protocol::Messages, r#""container":{"skills":[]}"#),
        [ServerTool::CodeExecution]
    );
    assert_eq!(offered(Protocol::Messages, r#""container":null"#), []);
}

#[test]
fn the_searches_that_a_vendor_may_run_are_added_up() {
    let searches = |tools: &str| {
        let features = features(Protocol::Messages, &format!(r#""tools":[{tools}]"#));
        assert!(!features.server_tools);
        features
            .tool_offers
            .web_search
            .map(|search| search.max_uses)
    };
    let tool =
        |members: &str| format!(r#"{{"type":"web_search_20250305","name":"web_search"{members}}}"#);
    assert_eq!(searches(r#"{"name":"web_search","max_uses":3}"#), None);
    assert_eq!(searches(&tool("")), Some(None));
    assert_eq!(searches(&tool(r#","max_uses":null"#)), Some(None));
    assert_eq!(searches(&tool(r#","max_uses":5"#)), Some(Some(5)));
    assert_eq!(
        searches(r#"{"max_uses":5,"type":"web_search_20260209"}"#),
        Some(Some(5))
    );
    assert_eq!(
        searches(&tool(r#","max_uses":5,"max_uses":2"#)),
        Some(Some(5))
    );
    assert_eq!(
        searches(&tool(r#","max_uses":2,"max_uses":5"#)),
        Some(Some(5))
    );
    let (five, two, open) = (tool(r#","max_uses":5"#), tool(r#","max_uses":2"#), tool(""));
    assert_eq!(searches(&format!("{five},{two}")), Some(Some(7)));
    for tools in [format!("{five},{open}"), format!("{open},{five}")] {
        assert_eq!(searches(&tools), Some(None));
    }
}

#[test]
fn tiers_speeds_regions_and_fallbacks_are_found() {
    let tier = |protocol, tier: &str| {
        let features = features(protocol, &format!(r#""service_tier":{tier}"#));
        (
            features.service_tier.map(|tier| tier.to_string()),
            features.usual_tier,
        )
    };
    for any in ["null", "\"auto\""] {
        assert_eq!(tier(Protocol::Chat, any), (None, false));
        assert_eq!(tier(Protocol::Messages, any), (None, false));
    }
    assert_eq!(tier(Protocol::Chat, "\"default\""), (None, true));
    assert_eq!(
        tier(Protocol::Chat, "\"flex\""),
        (Some("flex".into()), false)
    );
    assert_eq!(tier(Protocol::Messages, "\"standard_only\""), (None, true));
    assert_eq!(
        tier(Protocol::Messages, "\"priority\""),
        (Some("priority".into()), false)
    );
    let messages = |members: &str| features(Protocol::Messages, members);
    let speed = |speed: &str| {
        messages(&format!(r#""speed":{speed}"#))
            .speed
            .map(|speed| speed.to_string())
    };
    assert_eq!(
        (speed(r#""fast""#), speed("{}")),
        (Some("fast".into()), Some("?".into()))
    );
    assert_eq!((speed(r#""standard""#), speed("null")), (None, None));
    let geo = |geo: &str| {
        let features = messages(&format!(r#""inference_geo":{geo}"#));
        (
            features.inference_geo.map(|geo| geo.to_string()),
            features.usual_geo,
        )
    };
    assert_eq!(
        (geo(r#""us""#), geo("7")),
        ((Some("us".into()), false), (Some("?".into()), false))
    );
    assert_eq!(
        (geo(r#""global""#), geo("null")),
        ((None, true), (None, false))
    );
    let twice = messages(r#""inference_geo":"us","inference_geo":"global""#);
    assert!(
        twice.inference_geo.is_some(),
        "the dearer of two is held for"
    );
    let twice = r#"{"type":"document","source":{"type":"text","type":"base64","data":""}}"#;
    check(
        Protocol::Messages,
        &user(twice),
        Features {
            documents_or_files: true,
            ..Features::default()
        },
    );
    assert!(messages(r#""fallbacks":[{"model":"x"}]"#).fallback_models);
    assert!(!messages(r#""fallbacks":[]"#).fallback_models);
    assert!(messages(r#""context_management":{"edits":[{"type":"compact_20260112"}]}"#).compaction);
    assert!(
        !messages(r#""context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]}"#)
            .compaction
    );
}

#[test]
fn cache_markers_are_found_where_they_count() {
    let marks = |members: &str| {
        let features = features(Protocol::Messages, members);
        (features.cache_markers, features.cache_markers_1h)
    };
    let hour = r#"{"type":"text","text":"","cache_control":{"type":"ephemeral","ttl":"1h"}}"#;
    assert_eq!(marks(&user(hour)), (true, true));
    assert_eq!(marks(&format!(r#""system":[{hour}]"#)), (true, true));
    assert_eq!(
        marks(r#""cache_control":{"type":"ephemeral","ttl":"5m"}"#),
        (true, false)
    );
    assert_eq!(marks(r#""cache_control":null"#), (false, false));
    assert_eq!(
        marks(r#""tools":[{"name":"f","cache_control":{"type":"ephemeral"}}]"#),
        (true, false)
    );
    assert_eq!(
        marks(r#""tools":[{"input_schema":{"properties":{"cache_control":{"ttl":"1h"}}}}]"#),
        (false, false)
    );
}
