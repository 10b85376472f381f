//! Lists the parameters that a model does not support, by surface. For a translated surface the
//! list comes from the translation tables, so the page cannot promise anything that translation
//! does not do. For the vendor's own protocol, the list contains the members that the model is
//! known to refuse.

use llm_protocol::Protocol;
use llm_protocol::capabilities::repair_rules::KnownCapabilities;
use llm_protocol::capabilities::{
    ChatModel, FieldMapping, MessagesModel, ModelCapabilities, ResponsesModel, SamplingSupport,
    ThinkingType, ToolsWithReasoning,
};
use llm_protocol::translate;
use serde::Serialize;

/// Request members that share a limitation.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Limitation {
    pub members: Vec<&'static str>,
    pub what: &'static str,
}

/// Returns the limitations of requests of this surface that are translated for a model with these
/// capabilities.
pub fn translation_limitations(surface: Protocol, accepts: &ModelCapabilities) -> Vec<Limitation> {
    // The tables list the `taken` member for every model, but this model accepts it.
    let (own, taken) = match accepts {
        ModelCapabilities::Messages(model) => {
            let may_search = model.server_tools.iter().any(|tool| tool == "web_search");
            (
                messages_model_limitations(model, surface),
                may_search.then_some("web_search_options"),
            )
        }
        ModelCapabilities::Chat(model) => (
            chat_model_limitations(model, surface),
            model.top_k.then_some("top_k"),
        ),
        ModelCapabilities::Responses(model) => (
            responses_model_limitations(model, surface),
            model.verbosity.then_some("verbosity"),
        ),
    };
    let listed: Vec<_> = own
        .iter()
        .flat_map(|loss| loss.members.clone())
        .chain(taken)
        .collect();
    let of = |outcome: FieldMapping| {
        let rows = translate::field_mappings(surface).iter();
        // Only top-level members are listed, because nested ones would fill the page.
        let top = rows.filter(|(path, of)| *of == outcome && !path.contains(['.', '[']));
        top.map(|(path, _)| *path)
            .filter(|path| !listed.contains(path))
            .collect::<Vec<_>>()
    };
    let general = [
        Limitation {
            members: of(FieldMapping::Warn),
            what: "removed, with a warning",
        },
        Limitation {
            members: of(FieldMapping::Refuse),
            what: "refused with 400",
        },
    ];
    own.into_iter()
        .chain(general)
        .filter(|loss| !loss.members.is_empty())
        .collect()
}

/// Returns the limitations of requests in the model's own protocol: members that the model is known
/// to refuse, and that the gateway removes or rewrites.
pub fn repair_limitations(
    accepts: &ModelCapabilities,
    known: &KnownCapabilities,
) -> Vec<Limitation> {
    const SAMPLING: &str =
        "removed unless they have the default value: the model does not support other values";
    let (sampling, stop, thinking) = match accepts {
        ModelCapabilities::Chat(model) => {
            let sampling = vec![
                "temperature",
                "top_p",
                "presence_penalty",
                "frequency_penalty",
                "logit_bias",
            ];
            let kept = known.tools_with_reasoning;
            let thinking = match model.reasoning {
                false if known.reasoning => Some("removed: the model does not reason"),
                true if kept => kept_from_reasoning(model.tools_with_reasoning),
                _ => None,
            };
            let thinking = thinking.map(|what| Limitation {
                members: vec!["reasoning_effort"],
                what,
            });
            (
                (!model.sampling).then_some(sampling),
                known.stop && !model.stop,
                thinking,
            )
        }
        ModelCapabilities::Messages(model) => {
            let sampling = match model.sampling {
                SamplingSupport::Fixed => Some(vec!["temperature", "top_p", "top_k"]),
                SamplingSupport::OneOf | SamplingSupport::Free => None,
            };
            let takes_both = model.accepts_thinking_type(ThinkingType::Enabled)
                && model.accepts_thinking_type(ThinkingType::Adaptive);
            let what = "converted to the form that the model supports, or removed";
            let thinking = (known.thinking_types && !takes_both).then(|| Limitation {
                members: vec!["thinking"],
                what,
            });
            (sampling, false, thinking)
        }
        ModelCapabilities::Responses(model) => {
            let what = "removed: the model does not reason";
            let thinking = (known.reasoning && !model.reasoning).then(|| Limitation {
                members: vec!["reasoning"],
                what,
            });
            (
                (!model.sampling).then(|| vec!["temperature", "top_p"]),
                false,
                thinking,
            )
        }
    };
    let sampling = sampling
        .filter(|_| known.sampling)
        .map(|members| Limitation {
            members,
            what: SAMPLING,
        });
    let stop = stop.then(|| Limitation {
        members: vec!["stop"],
        what: "removed: the model does not support it",
    });
    [sampling, stop, thinking].into_iter().flatten().collect()
}

fn responses_model_limitations(model: &ResponsesModel, surface: Protocol) -> Vec<Limitation> {
    let what = "removed, with a warning: the vendor does not support them";
    let members = match surface {
        Protocol::Chat => {
            vec![
                "stop",
                "seed",
                "logit_bias",
                "presence_penalty",
                "frequency_penalty",
                "logprobs",
                "prediction",
            ]
        }
        Protocol::Messages => vec!["stop_sequences", "top_k"],
        // This is the model's own surface, of which its server supports only a part.
        Protocol::Responses => Vec::new(),
    };
    let mut losses = vec![Limitation { members, what }];
    if !model.reasoning {
        let members = vec![if surface == Protocol::Messages {
            "thinking"
        } else {
            "reasoning"
        }];
        losses.push(Limitation {
            members,
            what: "removed: the model does not reason",
        });
    }
    if !model.sampling {
        let what =
            "removed unless they have the default value: the model does not support other values";
        losses.push(Limitation {
            members: vec!["temperature", "top_p"],
            what,
        });
    }
    losses
}

fn messages_model_limitations(model: &MessagesModel, surface: Protocol) -> Vec<Limitation> {
    let sampling = match model.sampling {
        SamplingSupport::Fixed => Limitation {
            members: vec!["temperature", "top_p", "top_k"],
            what: "removed unless they have the default value: the model does not support other values",
        },
        SamplingSupport::OneOf => Limitation {
            members: vec!["temperature", "top_p"],
            what: "only one is sent, temperature if present; it is lowered to at most 1",
        },
        SamplingSupport::Free => Limitation {
            members: vec!["temperature"],
            what: "lowered to at most 1",
        },
    };
    let schema = Limitation {
        members: vec![if surface == Protocol::Responses {
            "text"
        } else {
            "response_format"
        }],
        what: "the schema becomes part of the instructions: the vendor does not enforce it",
    };
    [Some(sampling), (!model.structured).then_some(schema)]
        .into_iter()
        .flatten()
        .collect()
}

fn chat_model_limitations(model: &ChatModel, surface: Protocol) -> Vec<Limitation> {
    let loss =
        |lost: bool, members: Vec<&'static str>, what| lost.then_some(Limitation { members, what });
    // Only the Messages surface has these members.
    let is_messages = surface == Protocol::Messages;
    let thinking = || vec![if is_messages { "thinking" } else { "reasoning" }];
    [
        loss(
            !model.sampling,
            vec!["temperature", "top_p"],
            "removed unless they are 1: the model does not support other values",
        ),
        loss(
            is_messages && !model.stop,
            vec!["stop_sequences"],
            "removed: the model does not support it",
        ),
        loss(
            is_messages && model.stop,
            vec!["stop_sequences"],
            "only the first four are sent",
        ),
        loss(
            !model.reasoning,
            thinking(),
            "removed: the model does not reason",
        ),
        loss(
            model.reasoning && kept_from_reasoning(model.tools_with_reasoning).is_some(),
            thinking(),
            kept_from_reasoning(model.tools_with_reasoning).unwrap_or_default(),
        ),
        loss(
            is_messages && !model.cache_breakpoints,
            vec!["cache_control"],
            "has no effect: the vendor decides by itself what to cache, and reports what it cached",
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns when tools keep a model from reasoning.
fn kept_from_reasoning(tools: ToolsWithReasoning) -> Option<&'static str> {
    match tools {
        ToolsWithReasoning::EffortNone => {
            Some("switched off if the request has tools: the vendor refuses the combination")
        }
        ToolsWithReasoning::Unforced => {
            Some("switched off if the request forces a tool: the vendor refuses the combination")
        }
        ToolsWithReasoning::Any | ToolsWithReasoning::ResponsesOnly => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect<'a>(losses: &'a [Limitation], member: &str) -> Option<&'a str> {
        let effects: Vec<_> = losses
            .iter()
            .filter(|loss| loss.members.contains(&member))
            .map(|loss| loss.what)
            .collect();
        assert!(effects.len() <= 1, "{member}: {effects:?}");
        effects.first().copied()
    }

    #[test]
    fn of_its_own_protocol_a_model_is_said_to_refuse_only_what_is_known() {
        let model = ModelCapabilities::Messages(MessagesModel::default());
        assert_eq!(repair_limitations(&model, &KnownCapabilities::NONE), []);
        let losses = repair_limitations(&model, &KnownCapabilities::ALL);
        assert!(effect(&losses, "top_k").is_some() && effect(&losses, "thinking").is_some());
        let chat = ModelCapabilities::Chat(ChatModel {
            stop: false,
            ..ChatModel::default()
        });
        let losses = repair_limitations(&chat, &KnownCapabilities::ALL);
        assert!(effect(&losses, "temperature").is_none() && effect(&losses, "stop").is_some());
        assert_eq!(
            effect(&losses, "reasoning_effort"),
            Some("removed: the model does not reason")
        );
    }

    #[test]
    fn what_a_model_refuses_is_told_once_and_what_it_takes_is_not() {
        let strict = translation_limitations(
            Protocol::Chat,
            &ModelCapabilities::Messages(MessagesModel::default()),
        );
        assert!(
            effect(&strict, "temperature")
                .unwrap()
                .starts_with("removed")
        );
        assert_eq!(effect(&strict, "seed"), Some("removed, with a warning"));
        assert_eq!(effect(&strict, "n"), Some("refused with 400"));
        assert_eq!(
            effect(&strict, "web_search_options"),
            Some("refused with 400")
        );
        assert!(effect(&strict, "response_format").is_some() && effect(&strict, "tools").is_none());

        let able = MessagesModel {
            sampling: SamplingSupport::Free,
            structured: true,
            server_tools: vec!["web_search".into()],
            ..MessagesModel::default()
        };
        let able = translation_limitations(Protocol::Chat, &ModelCapabilities::Messages(able));
        assert_eq!(effect(&able, "temperature"), Some("lowered to at most 1"));
        assert!(
            effect(&able, "web_search_options").is_none()
                && effect(&able, "response_format").is_none()
        );

        let plain = translation_limitations(
            Protocol::Messages,
            &ModelCapabilities::Chat(ChatModel::default()),
        );
        assert!(effect(&plain, "temperature").is_none());
        assert_eq!(
            effect(&plain, "stop_sequences"),
            Some("only the first four are sent")
        );
        assert_eq!(effect(&plain, "top_k"), Some("removed, with a warning"));
        assert_eq!(effect(&plain, "thread"), Some("refused with 400"));
        let lists = translation_limitations(
            Protocol::Messages,
            &ModelCapabilities::Chat(ChatModel {
                top_k: true,
                ..ChatModel::default()
            }),
        );
        assert!(
            effect(&lists, "top_k").is_none(),
            "a compatible server that takes it"
        );
    }

    #[test]
    fn each_surface_is_told_of_its_own_members() {
        let reasons = ChatModel {
            reasoning: true,
            tools_with_reasoning: ToolsWithReasoning::EffortNone,
            ..ChatModel::default()
        };
        for accepts in [
            ModelCapabilities::Messages(MessagesModel::default()),
            ModelCapabilities::Chat(ChatModel::default()),
            ModelCapabilities::Chat(reasons),
            ModelCapabilities::Responses(ResponsesModel::default()),
        ] {
            let own = match &accepts {
                ModelCapabilities::Messages(_) => Some(Protocol::Messages),
                ModelCapabilities::Chat(_) => Some(Protocol::Chat),
                // Translated, if its server supports only part of the protocol.
                ModelCapabilities::Responses(_) => None,
            };
            let all = [Protocol::Chat, Protocol::Messages, Protocol::Responses];
            for surface in all.into_iter().filter(|surface| Some(*surface) != own) {
                let known: Vec<_> = translate::field_mappings(surface)
                    .iter()
                    .map(|(path, _)| *path)
                    .collect();
                for member in translation_limitations(surface, &accepts)
                    .iter()
                    .flat_map(|loss| &loss.members)
                {
                    assert!(known.contains(member), "{surface} {accepts:?}: {member}");
                }
            }
        }
        let messages = translation_limitations(
            Protocol::Responses,
            &ModelCapabilities::Messages(MessagesModel::default()),
        );
        assert_eq!(
            effect(&messages, "previous_response_id"),
            Some("refused with 400")
        );
        assert_eq!(
            effect(&messages, "truncation"),
            Some("removed, with a warning")
        );
        let plain = ResponsesModel {
            reasoning: false,
            verbosity: true,
            ..ResponsesModel::default()
        };
        let plain = [Protocol::Chat, Protocol::Messages].map(|surface| {
            translation_limitations(surface, &ModelCapabilities::Responses(plain.clone()))
        });
        assert!(
            effect(&plain[0], "verbosity").is_none() && effect(&plain[0], "reasoning").is_some()
        );
        assert!(effect(&plain[1], "thinking").is_some());
        let chat = translation_limitations(
            Protocol::Responses,
            &ModelCapabilities::Chat(ChatModel::default()),
        );
        assert!(effect(&chat, "temperature").is_none() && effect(&chat, "reasoning").is_some());
    }
}
