//! Determines the capabilities of a model: keys from the config file take precedence over the
//! defaults of the shipped catalog.
//!
//! The defaults describe five catalog ids as of November 2026. A model with any other id starts
//! from the common subset of its protocol. This file must not depend on the use of the values in
//! translation.

use super::raw::{
    Capabilities, CompletionsKey, EffortKey, OnOff, OutputLimitField, ParallelToolCallsKey,
    Profile, ReasoningReplayKey, Roles, SamplingKey, SystemPlace, SystemRole, ThinkingTypeKey,
    ToolCallIdsKey, ToolsWithReasoningKey,
};
use llm_protocol::Protocol;
use llm_protocol::capabilities::repair_rules::KnownCapabilities;
use llm_protocol::capabilities::{
    ChatModel, CompletionsApi, MessagesModel, ModelCapabilities, ParallelToolCalls,
    ReasoningReplay, ResponsesModel, SamplingSupport, ThinkingType, ToolCallIds,
    ToolsWithReasoning,
};
use llm_protocol::ir::Effort;
use std::collections::BTreeMap;

/// Returns the capabilities of the model with this catalog id, at a vendor with this profile.
pub fn resolve(
    id: &str,
    protocol: Protocol,
    written: &Capabilities,
    profile: &Profile,
) -> ModelCapabilities {
    let roles = profile.roles;
    let takes_anywhere = roles.system.map(|place| place == SystemPlace::Anywhere);
    match protocol {
        Protocol::Messages => {
            let mut base = shipped_messages_model(id);
            base.mid_system = takes_anywhere.unwrap_or(base.mid_system);
            ModelCapabilities::Messages(messages_model(base, written))
        }
        Protocol::Chat => {
            let mut base = shipped_chat_model(id);
            base.mid_system = takes_anywhere.unwrap_or(false);
            base.user_after_tool = roles.user_after_tool.unwrap_or(base.user_after_tool);
            base.prefix = roles.prefix.or(base.prefix);
            base.reasoning_on = members(profile.thinking.on.as_ref());
            base.reasoning_off = members(profile.thinking.off.as_ref());
            base.takes_effort = profile.takes_effort();
            let state = profile.state_paths();
            let mut replays = state.iter().filter_map(|(_, path)| replay_in(path));
            base.reasoning_replay = replays.next().unwrap_or(base.reasoning_replay);
            if roles.developer == Some(false) {
                base.system_role = "system";
            }
            ModelCapabilities::Chat(chat_model(base, written))
        }
        Protocol::Responses => {
            ModelCapabilities::Responses(responses_model(shipped_chat_model(id), written))
        }
    }
}

/// Returns the form in which reasoning returns in a member with this name.
fn replay_in(member: &str) -> Option<ReasoningReplay> {
    let forms = [
        ReasoningReplay::ReasoningContent,
        ReasoningReplay::ReasoningDetails,
        ReasoningReplay::Reasoning,
    ];
    forms.into_iter().find(|form| form.member() == Some(member))
}

/// Ids of the shipped catalog whose capabilities are all known, by the protocol of the values.
const SHIPPED_MESSAGES: [&str; 3] = [
    "alpha-opus-4-7",
    "alpha-sonnet-4-6",
    "alpha-haiku-4-5-20251001",
];
const SHIPPED_CHAT: [&str; 2] = ["beta-5.2", "beta-5.5"];

/// Returns the capabilities that the config file, the preset or the shipped catalog states
/// explicitly. The repair of requests that need no translation uses only these.
pub fn known_capabilities(
    id: &str,
    protocol: Protocol,
    written: &Capabilities,
    roles: Roles,
) -> KnownCapabilities {
    let is_shipped = match protocol {
        Protocol::Messages => SHIPPED_MESSAGES.contains(&id),
        Protocol::Chat | Protocol::Responses => SHIPPED_CHAT.contains(&id),
    };
    if is_shipped {
        return KnownCapabilities::ALL;
    }
    let efforts = if protocol == Protocol::Messages {
        &written.effort_levels
    } else {
        &written.effort_values
    };
    KnownCapabilities {
        sampling: written.sampling.is_some(),
        thinking_types: written.thinking_types.is_some(),
        efforts: efforts.is_some(),
        prefill: written.prefill.is_some(),
        mid_system: written.mid_system.is_some() || roles.system == Some(SystemPlace::First),
        turn_order: roles.user_after_tool == Some(false),
        output_limit_field: written.output_limit_field.is_some(),
        reasoning: written.reasoning.is_some(),
        tools_with_reasoning: written.tools_with_reasoning.is_some(),
        stop: written.stop.is_some(),
        verbosity: written.verbosity.is_some(),
        system_role: written.system_role.is_some() || roles.developer == Some(false),
        reasoning_replay: written.reasoning_replay.is_some(),
        top_k: written.top_k.is_some(),
        summaries: written.summaries.is_some(),
        parallel_tool_calls: written.parallel_tool_calls.is_some(),
        tool_call_ids: written.tool_call_ids.is_some(),
    }
}

/// The keys that have an effect with these protocols only, apart from `sampling`.
macro_rules! keys_by_protocol {
    ($written:expr, $($key:ident: [$($protocol:ident),*],)*) => {
        [$((stringify!($key), $written.$key.is_some(), &[$(Protocol::$protocol),*][..]),)*]
    };
}

/// Returns the keys that have no effect on a model with these upstream protocols.
pub fn misplaced_keys(
    protocols: [Option<Protocol>; 2],
    written: &Capabilities,
) -> Vec<&'static str> {
    let is_supported = |by: &[Protocol]| {
        protocols
            .iter()
            .flatten()
            .any(|protocol| by.contains(protocol))
    };
    let keys = keys_by_protocol! {
        written,
        thinking_types: [Messages],
        thinking_default: [Messages],
        effort_levels: [Messages],
        prefill: [Messages],
        mid_system: [Messages, Chat],
        structured: [Messages],
        server_tools: [Messages],
        min_cache_tokens: [Messages],
        output_limit_field: [Chat],
        reasoning: [Chat, Responses],
        effort_values: [Chat, Responses],
        tools_with_reasoning: [Chat],
        stop: [Chat],
        cache_breakpoints: [Chat, Responses],
        verbosity: [Chat, Responses],
        system_role: [Chat],
        reasoning_replay: [Chat],
        top_k: [Chat],
        custom_tools: [Chat],
        parallel_tool_calls: [Chat],
        tool_call_ids: [Chat],
        completions: [Chat],
        summaries: [Responses],
        functions_only: [Responses],
    };
    let sampling_by: &[Protocol] = match written.sampling {
        Some(SamplingKey::Accepted(_)) => &[Protocol::Chat, Protocol::Responses],
        _ => &[Protocol::Messages],
    };
    keys.into_iter()
        .chain([("sampling", written.sampling.is_some(), sampling_by)])
        .filter(|(_, is_set, by)| *is_set && !is_supported(by))
        .map(|(name, ..)| name)
        .collect()
}

/// Returns the capabilities of the model over its vendor's responses API.
fn responses_model(base: ChatModel, written: &Capabilities) -> ResponsesModel {
    let model = chat_model(base, written);
    ResponsesModel {
        summaries: written.summaries.unwrap_or(model.reasoning),
        reasoning: model.reasoning,
        effort_values: model.effort_values,
        sampling: model.sampling,
        cache_breakpoints: model.cache_breakpoints,
        verbosity: model.verbosity,
        functions_only: written.functions_only.unwrap_or(false),
    }
}

fn messages_model(base: MessagesModel, written: &Capabilities) -> MessagesModel {
    let sampling = match written.sampling {
        Some(SamplingKey::Free) => SamplingSupport::Free,
        Some(SamplingKey::OneOf) => SamplingSupport::OneOf,
        Some(SamplingKey::Fixed) => SamplingSupport::Fixed,
        Some(SamplingKey::Accepted(_)) | None => base.sampling,
    };
    let types = |keys: &Vec<ThinkingTypeKey>| keys.iter().map(|key| thinking_type(*key)).collect();
    MessagesModel {
        sampling,
        thinking_types: written
            .thinking_types
            .as_ref()
            .map_or(base.thinking_types, types),
        thinks_by_default: written
            .thinking_default
            .map_or(base.thinks_by_default, |default| default == OnOff::On),
        effort_levels: written
            .effort_levels
            .as_ref()
            .map_or(base.effort_levels, |keys| efforts(keys)),
        prefill: written.prefill.unwrap_or(base.prefill),
        mid_system: written.mid_system.unwrap_or(base.mid_system),
        structured: written.structured.unwrap_or(base.structured),
        server_tools: written.server_tools.clone().unwrap_or(base.server_tools),
        min_cache_tokens: written.min_cache_tokens.or(base.min_cache_tokens),
    }
}

fn chat_model(base: ChatModel, written: &Capabilities) -> ChatModel {
    ChatModel {
        reasoning: written.reasoning.unwrap_or(base.reasoning),
        effort_values: written
            .effort_values
            .as_ref()
            .map_or(base.effort_values, |keys| efforts(keys)),
        reasoning_on: base.reasoning_on,
        reasoning_off: base.reasoning_off,
        takes_effort: base.takes_effort,
        tools_with_reasoning: match written.tools_with_reasoning {
            Some(ToolsWithReasoningKey::Any) => ToolsWithReasoning::Any,
            Some(ToolsWithReasoningKey::Unforced) => ToolsWithReasoning::Unforced,
            Some(ToolsWithReasoningKey::EffortNone) => ToolsWithReasoning::EffortNone,
            Some(ToolsWithReasoningKey::ResponsesOnly) => ToolsWithReasoning::ResponsesOnly,
            None => base.tools_with_reasoning,
        },
        sampling: match written.sampling {
            Some(SamplingKey::Accepted(accepted)) => accepted,
            _ => base.sampling,
        },
        stop: written.stop.unwrap_or(base.stop),
        mid_system: written.mid_system.unwrap_or(base.mid_system),
        user_after_tool: base.user_after_tool,
        prefix: base.prefix,
        cache_breakpoints: written.cache_breakpoints.unwrap_or(base.cache_breakpoints),
        verbosity: written.verbosity.unwrap_or(base.verbosity),
        system_role: match written.system_role {
            Some(SystemRole::Developer) => "developer",
            Some(SystemRole::System) => "system",
            None => base.system_role,
        },
        reasoning_replay: match written.reasoning_replay {
            Some(ReasoningReplayKey::None) => ReasoningReplay::None,
            Some(ReasoningReplayKey::Reasoning) => ReasoningReplay::Reasoning,
            Some(ReasoningReplayKey::ReasoningContent) => ReasoningReplay::ReasoningContent,
            Some(ReasoningReplayKey::ReasoningContentInTurn) => {
                ReasoningReplay::ReasoningContentInTurn
            }
            Some(ReasoningReplayKey::ReasoningDetails) => ReasoningReplay::ReasoningDetails,
            None => base.reasoning_replay,
        },
        output_limit_field: match written.output_limit_field {
            Some(OutputLimitField::MaxTokens) => "max_tokens",
            Some(OutputLimitField::MaxCompletionTokens) => "max_completion_tokens",
            None => base.output_limit_field,
        },
        top_k: written.top_k.unwrap_or(base.top_k),
        custom_tools: written.custom_tools.unwrap_or(base.custom_tools),
        parallel_tool_calls: match written.parallel_tool_calls {
            Some(ParallelToolCallsKey::Accepted) => ParallelToolCalls::Accepted,
            Some(ParallelToolCallsKey::WithAutoChoice) => ParallelToolCalls::WithAutoChoice,
            Some(ParallelToolCallsKey::Refused) => ParallelToolCalls::Refused,
            None => base.parallel_tool_calls,
        },
        tool_call_ids: match written.tool_call_ids {
            Some(ToolCallIdsKey::Any) => ToolCallIds::Any,
            Some(ToolCallIdsKey::Nine) => ToolCallIds::Nine,
            None => base.tool_call_ids,
        },
        completions: written.completions.map(CompletionsApi::from),
    }
}

/// Returns the members of an object, each with its value as JSON.
fn members(object: Option<&BTreeMap<String, serde_json::Value>>) -> Vec<(String, String)> {
    let members = object.into_iter().flatten();
    members
        .map(|(name, value)| (name.clone(), value.to_string()))
        .collect()
}

/// Returns the efforts, sorted and without duplicates.
fn efforts(keys: &[EffortKey]) -> Vec<Effort> {
    let mut efforts: Vec<_> = keys
        .iter()
        .map(|key| match key {
            EffortKey::None => Effort::None,
            EffortKey::Minimal => Effort::Minimal,
            EffortKey::Low => Effort::Low,
            EffortKey::Medium => Effort::Medium,
            EffortKey::High => Effort::High,
            EffortKey::Xhigh => Effort::Xhigh,
            EffortKey::Max => Effort::Max,
        })
        .collect();
    efforts.sort();
    efforts.dedup();
    efforts
}

impl From<CompletionsKey> for CompletionsApi {
    fn from(key: CompletionsKey) -> Self {
        match key {
            CompletionsKey::Text => Self::Text,
            CompletionsKey::Fim => Self::Fim,
        }
    }
}

fn thinking_type(key: ThinkingTypeKey) -> ThinkingType {
    match key {
        ThinkingTypeKey::Enabled => ThinkingType::Enabled,
        ThinkingTypeKey::Adaptive => ThinkingType::Adaptive,
        ThinkingTypeKey::BetweenTools => ThinkingType::BetweenTools,
        ThinkingTypeKey::Disabled => ThinkingType::Disabled,
    }
}

/// Minimum number of tokens in a prompt that a messages vendor caches, for a model without a known
/// minimum. It is the largest minimum of all models. Marking a shorter prompt would only raise the
/// reservation.
const DEFAULT_MIN_CACHE_TOKENS: u64 = 4_096;

/// Returns the capabilities of the shipped messages models. Manual thinking works up to the 4.6
/// generation; effort and adaptive thinking work from it on. From 4.6 on the vendor refuses a final
/// assistant turn, and from 4.7 on sampling parameters.
fn shipped_messages_model(id: &str) -> MessagesModel {
    use Effort::{High, Low, Max, Medium, Xhigh};
    use ThinkingType::{Adaptive, Disabled, Enabled};
    let unknown = MessagesModel {
        min_cache_tokens: Some(DEFAULT_MIN_CACHE_TOKENS),
        ..MessagesModel::default()
    };
    let base = MessagesModel {
        structured: true,
        ..unknown.clone()
    };
    match id {
        "alpha-opus-4-7" => MessagesModel {
            min_cache_tokens: Some(2_048),
            sampling: SamplingSupport::Fixed,
            thinking_types: vec![Adaptive, Disabled],
            effort_levels: vec![Low, Medium, High, Xhigh, Max],
            ..base
        },
        "alpha-sonnet-4-6" => MessagesModel {
            min_cache_tokens: Some(1_024),
            sampling: SamplingSupport::OneOf,
            thinking_types: vec![Enabled, Adaptive, Disabled],
            effort_levels: vec![Low, Medium, High, Max],
            ..base
        },
        "alpha-haiku-4-5-20251001" => MessagesModel {
            sampling: SamplingSupport::OneOf,
            thinking_types: vec![Enabled, Disabled],
            prefill: true,
            ..base
        },
        _ => unknown,
    }
}

/// Returns the capabilities of the shipped chat models. Both reason, and accept neither sampling
/// parameters nor stop sequences. In this protocol the newer one refuses function tools while it
/// reasons.
fn shipped_chat_model(id: &str) -> ChatModel {
    use Effort::{High, Low, Medium, None, Xhigh};
    let base = ChatModel {
        reasoning: true,
        effort_values: vec![None, Low, Medium, High, Xhigh],
        sampling: false,
        stop: false,
        verbosity: true,
        system_role: "developer",
        ..ChatModel::default()
    };
    match id {
        "beta-5.2" => base,
        "beta-5.5" => ChatModel {
            tools_with_reasoning: ToolsWithReasoning::EffortNone,
            ..base
        },
        _ => ChatModel::default(),
    }
}

#[cfg(test)]
mod tests {
    use llm_protocol::Protocol;
    use llm_protocol::capabilities::repair_rules::KnownCapabilities;
    use llm_protocol::capabilities::{ModelCapabilities, SamplingSupport, ThinkingType};
    use llm_protocol::ir::Effort;

    fn parse(text: &str) -> Result<crate::Settings, Vec<crate::ConfigFault>> {
        let value = |name: &str| match name {
            name if name.ends_with("URL") => Some("http://a".to_owned()),
            name if name.ends_with("KEY") => Some("key".to_owned()),
            _ => None,
        };
        crate::parse(text, &value)
    }

    #[test]
    fn what_the_shipped_file_says_of_its_models_is_what_holds_without_it() {
        let written = parse(include_str!("../../../conf/gateway.yaml")).unwrap();
        let left_out = parse(include_str!("../../../conf/local.yaml")).unwrap();
        assert_eq!(written.catalog.models().len(), 5);
        for model in written.catalog.models() {
            assert_eq!(
                model.accepts,
                left_out.catalog.find(&model.id).unwrap().accepts,
                "{}",
                model.id
            );
        }
    }

    #[test]
    fn a_key_overrides_and_a_model_of_another_id_starts_from_what_all_bear() {
        let local = include_str!("../../../conf/local.yaml");
        let text = local.replace("id: alpha-opus-4-7", "id: mine").replacen(
            "    max_output_tokens: 64000\n",
            "    max_output_tokens: 64000\n    capabilities: {sampling: free, effort_levels: [max, low], thinking_types: [enabled]}\n",
            1,
        );
        let settings = parse(&text).unwrap();
        let ModelCapabilities::Messages(model) = &settings.catalog.find("mine").unwrap().accepts
        else {
            panic!("its vendor's protocol")
        };
        assert_eq!(model.sampling, SamplingSupport::Free);
        assert_eq!(model.effort_levels, [Effort::Low, Effort::Max]);
        assert_eq!(model.thinking_types, [ThinkingType::Enabled]);
        assert!(!model.structured && !model.prefill);
    }

    #[test]
    fn a_model_is_marked_for_its_cache_where_the_vendor_takes_marks_and_the_operator_wants_them() {
        let local = include_str!("../../../conf/local.yaml");
        let alpha = "    official: true\n    endpoints";
        let model = "    upstream_model: claude-opus-4-7\n";
        for (from, to, least) in [
            ("none", "none", Some(2_048)),
            ("id: alpha-opus-4-7", "id: mine", Some(4_096)),
            (
                model,
                "    upstream_model: m\n    capabilities: {min_cache_tokens: 512}\n",
                Some(512),
            ),
            (
                model,
                "    upstream_model: m\n    cache_marks: auto\n",
                Some(2_048),
            ),
            (model, "    upstream_model: m\n    cache_marks: off\n", None),
            (
                model,
                "    upstream_model: m\n    cache_marks: \"off\"\n",
                None,
            ),
            (alpha, "    endpoints", None),
            (
                alpha,
                "    profile: {request: [cache_control]}\n    endpoints",
                Some(2_048),
            ),
        ] {
            let settings = parse(&local.replacen(from, to, 1)).unwrap();
            let ModelCapabilities::Messages(model) = &settings.catalog.models()[0].accepts else {
                panic!("its vendor's protocol")
            };
            assert_eq!(model.min_cache_tokens, least, "{to}");
        }
    }

    #[test]
    fn a_model_may_be_served_by_a_second_protocol_of_its_vendor() {
        let local = include_str!("../../../conf/local.yaml");
        let with = |model: &str, keys: &str| {
            let line = format!("    upstream_model: {model}\n");
            parse(&local.replacen(&line, &format!("{line}    {keys}\n"), 1))
        };
        let both = with("gpt-5.5", "upstream_protocol: responses").unwrap();
        let model = both.catalog.find("beta-5.5").unwrap();
        assert_eq!(model.protocol(), Protocol::Chat);
        let other = model.by_responses.as_ref().unwrap();
        assert_eq!(
            (other.protocol(), &other.id),
            (Protocol::Responses, &model.id)
        );
        let ModelCapabilities::Responses(accepts) = &other.accepts else {
            panic!("its second protocol")
        };
        assert!(accepts.reasoning && accepts.summaries && !accepts.sampling);
        let without = with(
            "gpt-5.5",
            "upstream_protocol: responses\n    capabilities: {summaries: false}",
        )
        .unwrap();
        let ModelCapabilities::Responses(accepts) = &without
            .catalog
            .find("beta-5.5")
            .unwrap()
            .by_responses
            .as_ref()
            .unwrap()
            .accepts
        else {
            panic!("its second protocol")
        };
        assert!(!accepts.summaries && !accepts.functions_only);
        let few = with(
            "gpt-5.5",
            "upstream_protocol: responses\n    capabilities: {functions_only: true}",
        )
        .unwrap();
        let passes = |settings: &crate::Settings| {
            settings
                .catalog
                .find("beta-5.5")
                .unwrap()
                .by_responses
                .as_ref()
                .unwrap()
                .passes_through(Protocol::Responses)
        };
        assert_eq!((passes(&both), passes(&few)), (true, false));
        let alone = parse(&local.replace("protocol: chat", "protocol: responses")).unwrap();
        assert_eq!(
            alone.catalog.find("beta-5.2").unwrap().protocol(),
            Protocol::Responses
        );
        for (model, keys, key) in [
            (
                "claude-opus-4-7",
                "upstream_protocol: responses",
                "models[0].upstream_protocol",
            ),
            (
                "gpt-5.2",
                "upstream_protocol: chat",
                "models[3].upstream_protocol",
            ),
            (
                "gpt-5.2",
                "capabilities: {summaries: true}",
                "models[3].capabilities.summaries",
            ),
        ] {
            let faults = with(model, keys).map(drop).unwrap_err();
            assert_eq!(
                faults
                    .iter()
                    .map(|fault| fault.key.as_str())
                    .collect::<Vec<_>>(),
                [key],
                "{keys}"
            );
        }
    }

    #[test]
    fn only_what_somebody_said_of_a_model_repairs_its_requests() {
        let local = include_str!("../../../conf/local.yaml");
        let repairs = |edits: &[(&str, &str)], id: &str| {
            let text = edits.iter().fold(local.to_owned(), |text, (from, to)| {
                text.replacen(from, to, 1)
            });
            parse(&text).unwrap().catalog.find(id).unwrap().repairs
        };
        assert_eq!(repairs(&[], "beta-5.2"), KnownCapabilities::ALL);
        assert_eq!(repairs(&[], "alpha-opus-4-7"), KnownCapabilities::ALL);
        let renamed = ("id: beta-5.2", "id: mine");
        assert_eq!(repairs(&[renamed], "mine"), KnownCapabilities::NONE);
        let line = "    upstream_model: gpt-5.2\n";
        let written = format!(
            "{line}    capabilities: {{stop: true, sampling: false, effort_values: [low]}}\n"
        );
        let wanted = KnownCapabilities {
            stop: true,
            sampling: true,
            efforts: true,
            ..KnownCapabilities::NONE
        };
        assert_eq!(repairs(&[renamed, (line, &written)], "mine"), wanted);
        let off = format!("{written}    repair: false\n");
        for id in ["mine", "beta-5.2"] {
            let name = if id == "mine" {
                renamed
            } else {
                ("none", "none")
            };
            assert_eq!(repairs(&[name, (line, &off)], id), KnownCapabilities::NONE);
        }
        // The same id behind a vendor of another protocol is a different model.
        let moved = (
            "    vendor: alpha\n    upstream_model: claude-opus-4-7",
            "    vendor: beta\n    upstream_model: x",
        );
        let price = ("cache_write_5m: \"625\", cache_write_1h: \"1000\", ", "");
        assert_eq!(
            repairs(&[moved, price], "alpha-opus-4-7"),
            KnownCapabilities::NONE
        );
    }

    #[test]
    fn a_key_of_the_other_protocol_and_an_unknown_value_are_faults() {
        let local = include_str!("../../../conf/local.yaml");
        let with = |keys: &str| {
            let line = format!("    max_output_tokens: 64000\n    capabilities: {keys}\n");
            parse(&local.replacen("    max_output_tokens: 64000\n", &line, 1))
        };
        for (keys, key) in [
            ("{stop: true}", "models[0].capabilities.stop"),
            ("{sampling: true}", "models[0].capabilities.sampling"),
            ("{sampling: some}", "models[0].capabilities.sampling"),
            (
                "{thinking_types: [sometimes]}",
                "models[0].capabilities.thinking_types[0]",
            ),
            ("{samplings: free}", "models[0].capabilities.samplings"),
        ] {
            let faults = with(keys).map(drop).unwrap_err();
            assert_eq!(
                faults
                    .iter()
                    .map(|fault| fault.key.as_str())
                    .collect::<Vec<_>>(),
                [key],
                "{keys}"
            );
        }
    }
}
