//! Guides for terminal agents.
//!
//! An agent uses a model through the surface of the model's vendor if it can, so that prompt
//! caching and reasoning need no translation. Must not contain a setting that the agent was not
//! seen to read.

use super::claude_code;
use super::format::{OrderedValue, object, quoted, shell_word};
use super::{
    ClientGuide, ClientKind, ClientSetup, FileFormat, SetupContext, best_surface, is_native,
    prompt_tokens,
};
use crate::catalog::CatalogModel;
use llm_protocol::Protocol;

const CHAT_AND_MESSAGES: &[Protocol] = &[Protocol::Chat, Protocol::Messages];

pub const GUIDES: &[ClientGuide] = &[
    ClientGuide {
        id: "claude-code",
        name: "Claude Code",
        kind: ClientKind::TerminalAgent,
        surfaces: &[Protocol::Messages],
        build: claude_code::build,
    },
    ClientGuide {
        id: "codex",
        name: "Codex",
        kind: ClientKind::TerminalAgent,
        surfaces: &[Protocol::Responses],
        build: codex,
    },
    ClientGuide {
        id: "codex-chat",
        name: "Codex, up to 0.80",
        kind: ClientKind::TerminalAgent,
        surfaces: &[Protocol::Chat],
        build: codex_chat,
    },
    ClientGuide {
        id: "opencode",
        name: "opencode",
        kind: ClientKind::TerminalAgent,
        surfaces: CHAT_AND_MESSAGES,
        build: opencode,
    },
    ClientGuide {
        id: "aider",
        name: "aider",
        kind: ClientKind::TerminalAgent,
        surfaces: CHAT_AND_MESSAGES,
        build: aider,
    },
    ClientGuide {
        id: "cline",
        name: "Cline",
        kind: ClientKind::TerminalAgent,
        surfaces: &[Protocol::Chat],
        build: cline,
    },
    ClientGuide {
        id: "continue",
        name: "Continue",
        kind: ClientKind::TerminalAgent,
        surfaces: CHAT_AND_MESSAGES,
        build: continue_dev,
    },
    ClientGuide {
        id: "copilot-cli",
        name: "Copilot CLI",
        kind: ClientKind::TerminalAgent,
        surfaces: &[Protocol::Chat, Protocol::Messages, Protocol::Responses],
        build: copilot_cli,
    },
    ClientGuide {
        id: "qwen-code",
        name: "Qwen Code",
        kind: ClientKind::TerminalAgent,
        surfaces: CHAT_AND_MESSAGES,
        build: qwen_code,
    },
    ClientGuide {
        id: "pi",
        name: "pi",
        kind: ClientKind::TerminalAgent,
        surfaces: CHAT_AND_MESSAGES,
        build: pi,
    },
    ClientGuide {
        id: "gptme",
        name: "gptme",
        kind: ClientKind::TerminalAgent,
        surfaces: &[Protocol::Chat],
        build: gptme,
    },
];

fn codex_config(context: &SetupContext<'_>, wire_api: &str) -> String {
    let model = context.model();
    let limits = |model: &CatalogModel| {
        format!(
            "model = {}\nmodel_context_window = {}\nmodel_auto_compact_token_limit = {}\n",
            quoted(&model.id),
            model.context_tokens,
            model.context_tokens / 10 * 9,
        )
    };
    let mut text = limits(model);
    let others = context.models().iter().filter(|other| other.id != model.id);
    for other in others {
        text.push_str("\n# Or:\n");
        for line in limits(other).lines() {
            text.push_str(&format!("# {line}\n"));
        }
    }
    text.push_str(&format!(
        "\nmodel_provider = \"gateway\"\n\n[model_providers.gateway]\nname = \"Model gateway\"\n\
         base_url = {}\nenv_key = {}\nwire_api = {}",
        quoted(&context.v1()),
        quoted(&context.key.variable),
        quoted(wire_api),
    ));
    text
}

fn codex(context: &SetupContext<'_>) -> ClientSetup {
    ClientSetup::default()
        .with_file(
            "~/.codex/config.toml",
            FileFormat::Toml,
            codex_config(context, "responses"),
        )
        .with_run("codex")
        .with_note(
            "Put the lines before [model_providers.gateway] above every section of the file.",
        )
        .with_note("Codex has no setting for the output limit: it lets the model use its maximum.")
}

fn codex_chat(context: &SetupContext<'_>) -> ClientSetup {
    ClientSetup::default()
        .with_file(
            "~/.codex/config.toml",
            FileFormat::Toml,
            codex_config(context, "chat"),
        )
        .with_run("codex")
        .with_note("Later versions refuse wire_api = \"chat\": see Codex.")
}

/// Groups the models by the surface that the client uses with them; leaves out empty groups.
fn by_surface<'c>(
    context: &'c SetupContext<'_>,
    offered: &[Protocol],
) -> Vec<(Protocol, Vec<&'c CatalogModel>)> {
    let groups = offered.iter().map(|surface| {
        let models = context.models().iter().map(AsRef::as_ref);
        let fits = |model: &&CatalogModel| best_surface(model, offered) == *surface;
        (*surface, models.filter(fits).collect::<Vec<_>>())
    });
    groups.filter(|(_, models)| !models.is_empty()).collect()
}

fn provider_name(surface: Protocol) -> &'static str {
    match surface {
        Protocol::Messages => "gateway-messages",
        Protocol::Chat | Protocol::Responses => "gateway",
    }
}

/// The model with the name of its provider, `gateway/beta-5.2`.
fn qualified(model: &CatalogModel, offered: &[Protocol]) -> String {
    let provider = provider_name(best_surface(model, offered));
    format!("{provider}/{}", model.id)
}

fn opencode(context: &SetupContext<'_>) -> ClientSetup {
    let provider = |(surface, models): (Protocol, Vec<&CatalogModel>)| {
        let (package, name) = match surface {
            Protocol::Messages => ("@ai-sdk/anthropic", "Model gateway, messages"),
            Protocol::Chat | Protocol::Responses => ("@ai-sdk/openai-compatible", "Model gateway"),
        };
        let models = models.into_iter().map(|model| {
            let limit = object([
                ("context", model.context_tokens.into()),
                ("output", model.max_output_tokens.into()),
            ]);
            let entry = object([("name", (&model.id).into()), ("limit", limit)]);
            (model.id.clone(), entry)
        });
        let options = object([
            ("baseURL", context.v1().into()),
            ("apiKey", format!("{{env:{}}}", context.key.variable).into()),
        ]);
        let entry = object([
            ("npm", package.into()),
            ("name", name.into()),
            ("options", options),
            ("models", OrderedValue::Object(models.collect())),
        ]);
        (provider_name(surface).to_owned(), entry)
    };
    let groups = by_surface(context, CHAT_AND_MESSAGES);
    let providers = groups.into_iter().map(provider).collect();
    let chosen = qualified(context.model(), CHAT_AND_MESSAGES);
    let small = qualified(context.cheapest_model(), CHAT_AND_MESSAGES);
    let settings = object([
        ("$schema", "https://opencode.ai/config.json".into()),
        ("model", chosen.into()),
        ("small_model", small.into()),
        ("provider", OrderedValue::Object(providers)),
    ]);
    ClientSetup::default()
        .with_file(
            "~/.config/opencode/opencode.json",
            FileFormat::Json,
            settings.to_json(),
        )
        .with_run("opencode")
        .with_note(
            "Models of a messages vendor have a provider of their own, so that prompt caching \
             needs no translation.",
        )
}

fn aider_model(model: &CatalogModel) -> String {
    let prefix = match best_surface(model, CHAT_AND_MESSAGES) {
        Protocol::Messages => "anthropic",
        Protocol::Chat | Protocol::Responses => "openai",
    };
    format!("{prefix}/{}", model.id)
}

fn aider(context: &SetupContext<'_>) -> ClientSetup {
    let entries = context.models().iter().map(|model| {
        let provider = match best_surface(model, CHAT_AND_MESSAGES) {
            Protocol::Messages => "anthropic",
            Protocol::Chat | Protocol::Responses => "openai",
        };
        let entry = object([
            ("max_input_tokens", model.context_tokens.into()),
            ("max_output_tokens", model.max_output_tokens.into()),
            ("max_tokens", model.max_output_tokens.into()),
            ("litellm_provider", provider.into()),
            ("mode", "chat".into()),
        ]);
        (aider_model(model), entry)
    });
    let metadata = OrderedValue::Object(entries.collect());
    // Without this, aider limits the output of a messages model to 4096 tokens.
    let settings = context.models().iter().map(|model| {
        let parameters = object([("max_tokens", model.max_output_tokens.into())]);
        object([
            ("name", aider_model(model).into()),
            ("edit_format", "diff".into()),
            ("use_repo_map", true.into()),
            ("extra_params", parameters),
        ])
    });
    let settings = OrderedValue::List(settings.collect());
    let config = object([
        ("model", aider_model(context.model()).into()),
        ("weak-model", aider_model(context.cheapest_model()).into()),
        ("show-model-warnings", false.into()),
    ]);
    ClientSetup::default()
        .with_file(
            "~/.aider.model.metadata.json",
            FileFormat::Json,
            metadata.to_json(),
        )
        .with_file(
            "~/.aider.model.settings.yml",
            FileFormat::Yaml,
            settings.to_yaml(),
        )
        .with_file("~/.aider.conf.yml", FileFormat::Yaml, config.to_yaml())
        .with_variable("OPENAI_API_BASE", context.v1())
        .with_key_variable("OPENAI_API_KEY")
        .with_variable("ANTHROPIC_API_BASE", context.base_url)
        .with_key_variable("ANTHROPIC_API_KEY")
        .with_run("aider")
        .with_note("aider does not know the prices of this gateway: see the costs under Activity.")
}

fn cline(context: &SetupContext<'_>) -> ClientSetup {
    let model = context.model();
    ClientSetup::default()
        .with_command(format!(
            "cline auth -p openai -k {} -b {} -m {}",
            context.shell_key(),
            shell_word(&context.v1()),
            shell_word(&model.id),
        ))
        .with_run(format!("cline -P openai -m {}", shell_word(&model.id)))
        .with_note(
            "Use the provider openai for every model: Cline's provider anthropic ignores the \
             address. Cline stores the key in ~/.cline.",
        )
        .with_note(format!(
            "In the VS Code extension choose \"OpenAI Compatible\" and enter: base URL {}, model \
             {}, context window {}, max output tokens {}.",
            context.v1(),
            model.id,
            model.context_tokens,
            model.max_output_tokens,
        ))
}

fn continue_dev(context: &SetupContext<'_>) -> ClientSetup {
    // Continue starts with the first model.
    let chosen = context.model();
    let others = context.models().iter().map(AsRef::as_ref);
    let others = others.filter(|model: &&CatalogModel| model.id != chosen.id);
    let models = std::iter::once(chosen).chain(others).map(|model| {
        let provider = match best_surface(model, CHAT_AND_MESSAGES) {
            Protocol::Messages => "anthropic",
            Protocol::Chat | Protocol::Responses => "openai",
        };
        let limits = object([
            ("contextLength", model.context_tokens.into()),
            ("maxTokens", model.max_output_tokens.into()),
        ]);
        let key = format!("${{{{ secrets.{} }}}}", context.key.variable);
        object([
            ("name", (&model.id).into()),
            ("provider", provider.into()),
            ("model", (&model.id).into()),
            ("apiBase", context.v1().into()),
            ("apiKey", key.into()),
            ("capabilities", vec!["tool_use".into()].into()),
            (
                "roles",
                vec!["chat".into(), "edit".into(), "apply".into()].into(),
            ),
            ("defaultCompletionOptions", limits),
        ])
    });
    let config = object([
        ("name", "Model gateway".into()),
        ("version", "1.0.0".into()),
        ("schema", "v1".into()),
        ("models", OrderedValue::List(models.collect())),
    ]);
    ClientSetup::default()
        .with_file(
            "~/.continue/config.yaml",
            FileFormat::Yaml,
            config.to_yaml(),
        )
        .with_run("cn")
        .with_note(format!(
            "The extensions for editors do not read variables of the shell: write \
             {}=gw-sk-… into ~/.continue/.env.",
            context.key.variable
        ))
}

fn copilot_cli(context: &SetupContext<'_>) -> ClientSetup {
    let model = context.model();
    // The agent uses the responses API only for models whose vendor has no other one.
    let surface = if is_native(model, Protocol::Chat) {
        Protocol::Chat
    } else {
        best_surface(model, &[Protocol::Messages, Protocol::Responses])
    };
    let setup = ClientSetup::default();
    let setup = match surface {
        Protocol::Messages => setup
            .with_variable("COPILOT_PROVIDER_TYPE", "anthropic")
            .with_variable("COPILOT_PROVIDER_BASE_URL", context.base_url),
        Protocol::Chat | Protocol::Responses => setup
            .with_variable("COPILOT_PROVIDER_TYPE", "openai")
            .with_variable("COPILOT_PROVIDER_BASE_URL", context.v1()),
    };
    let setup = match surface {
        Protocol::Responses => setup.with_variable("COPILOT_PROVIDER_WIRE_API", "responses"),
        Protocol::Chat | Protocol::Messages => setup,
    };
    setup
        .with_key_variable("COPILOT_PROVIDER_API_KEY")
        .with_variable("COPILOT_MODEL", &*model.id)
        .with_variable(
            "COPILOT_PROVIDER_MAX_PROMPT_TOKENS",
            prompt_tokens(model).to_string(),
        )
        .with_variable(
            "COPILOT_PROVIDER_MAX_OUTPUT_TOKENS",
            model.max_output_tokens.to_string(),
        )
        .with_variable("COPILOT_OFFLINE", "true")
        .with_run("copilot")
        .with_note("With COPILOT_OFFLINE, it does not sign in to GitHub and has no web tools.")
}

fn qwen_code(context: &SetupContext<'_>) -> ClientSetup {
    let kind = |surface| match surface {
        Protocol::Messages => "anthropic",
        Protocol::Chat | Protocol::Responses => "openai",
    };
    let provider = |(surface, models): (Protocol, Vec<&CatalogModel>)| {
        let models = models.into_iter().map(|model| {
            let address = match surface {
                Protocol::Messages => context.base_url.to_owned(),
                Protocol::Chat | Protocol::Responses => context.v1(),
            };
            let sampling = object([("max_tokens", model.max_output_tokens.into())]);
            let limits = object([
                ("contextWindowSize", model.context_tokens.into()),
                ("samplingParams", sampling),
            ]);
            object([
                ("id", (&model.id).into()),
                ("name", (&model.id).into()),
                ("baseUrl", address.into()),
                ("envKey", (&context.key.variable).into()),
                ("generationConfig", limits),
            ])
        });
        let models = OrderedValue::List(models.collect());
        (kind(surface).to_owned(), models)
    };
    let groups = by_surface(context, CHAT_AND_MESSAGES);
    let providers = groups.into_iter().map(provider).collect();
    let chosen = context.model();
    let selected = kind(best_surface(chosen, CHAT_AND_MESSAGES));
    let auth = object([("selectedType", selected.into())]);
    let settings = object([
        ("modelProviders", OrderedValue::Object(providers)),
        ("security", object([("auth", auth)])),
        ("model", object([("name", (&chosen.id).into())])),
    ]);
    ClientSetup::default()
        .with_file(
            "~/.qwen/settings.json",
            FileFormat::Json,
            settings.to_json(),
        )
        .with_run("qwen")
}

fn pi(context: &SetupContext<'_>) -> ClientSetup {
    let provider = |(surface, models): (Protocol, Vec<&CatalogModel>)| {
        let (api, address) = match surface {
            Protocol::Messages => ("anthropic-messages", context.base_url.to_owned()),
            Protocol::Chat | Protocol::Responses => ("openai-completions", context.v1()),
        };
        let models = models.into_iter().map(|model| {
            object([
                ("id", (&model.id).into()),
                ("name", (&model.id).into()),
                ("reasoning", model.hides_reasoning().into()),
                ("contextWindow", model.context_tokens.into()),
                ("maxTokens", model.max_output_tokens.into()),
            ])
        });
        let entry = object([
            ("baseUrl", address.into()),
            ("api", api.into()),
            ("apiKey", (&context.key.variable).into()),
            ("models", OrderedValue::List(models.collect())),
        ]);
        (provider_name(surface).to_owned(), entry)
    };
    let groups = by_surface(context, CHAT_AND_MESSAGES);
    let providers = groups.into_iter().map(provider).collect();
    let settings = object([("providers", OrderedValue::Object(providers))]);
    let chosen = context.model();
    ClientSetup::default()
        .with_file(
            "~/.pi/agent/models.json",
            FileFormat::Json,
            settings.to_json(),
        )
        .with_run(format!(
            "pi --provider {} --model {}",
            provider_name(best_surface(chosen, CHAT_AND_MESSAGES)),
            shell_word(&chosen.id),
        ))
}

fn gptme(context: &SetupContext<'_>) -> ClientSetup {
    let model = context.model();
    let config = format!(
        "[[providers]]\nname = \"gateway\"\nbase_url = {}\napi_key_env = {}\ndefault_model = {}",
        quoted(&context.v1()),
        quoted(&context.key.variable),
        quoted(&model.id),
    );
    ClientSetup::default()
        .with_file("~/.config/gptme/config.toml", FileFormat::Toml, config)
        .with_run(format!(
            "gptme -m {}",
            shell_word(&format!("gateway/{}", model.id))
        ))
        .with_note(
            "gptme has no setting for the context of a custom model. It assumes 128 000 tokens.",
        )
}
