//! Guides for editors, chat applications and programs of the command line.
//!
//! Editors store keys themselves: their files name no key, and the notes say where to enter it.

use super::format::{OrderedValue, object, quoted, shell_word};
use super::{
    ClientGuide, ClientKind, ClientSetup, FileFormat, SetupContext, best_surface, prompt_tokens,
};
use crate::catalog::CatalogModel;
use llm_protocol::Protocol;

pub const GUIDES: &[ClientGuide] = &[
    ClientGuide {
        id: "vscode",
        name: "VS Code chat",
        kind: ClientKind::Editor,
        surfaces: &[Protocol::Chat, Protocol::Messages, Protocol::Responses],
        build: vscode,
    },
    ClientGuide {
        id: "zed",
        name: "Zed",
        kind: ClientKind::Editor,
        surfaces: &[Protocol::Chat],
        build: zed,
    },
    ClientGuide {
        id: "open-webui",
        name: "Open WebUI",
        kind: ClientKind::ChatApp,
        surfaces: &[Protocol::Chat],
        build: open_webui,
    },
    ClientGuide {
        id: "curl",
        name: "curl",
        kind: ClientKind::CommandLine,
        surfaces: &[Protocol::Messages, Protocol::Chat, Protocol::Responses],
        build: curl,
    },
    ClientGuide {
        id: "llm",
        name: "llm",
        kind: ClientKind::CommandLine,
        surfaces: &[Protocol::Chat],
        build: llm,
    },
    ClientGuide {
        id: "other",
        name: "Other clients",
        kind: ClientKind::CommandLine,
        surfaces: &[Protocol::Chat, Protocol::Messages, Protocol::Responses],
        build: other,
    },
];

const VSCODE_SURFACES: &[Protocol] = &[Protocol::Chat, Protocol::Messages, Protocol::Responses];

fn vscode(context: &SetupContext<'_>) -> ClientSetup {
    let groups = VSCODE_SURFACES.iter().filter_map(|surface| {
        let (api, path, name) = match surface {
            Protocol::Chat => ("chat-completions", "/chat/completions", "Model gateway"),
            Protocol::Messages => ("messages", "/messages", "Model gateway, messages"),
            Protocol::Responses => ("responses", "/responses", "Model gateway, responses"),
        };
        let fits = |model: &&CatalogModel| best_surface(model, VSCODE_SURFACES) == *surface;
        let models = context.models().iter().map(AsRef::as_ref).filter(fits);
        let models: Vec<_> = models
            .map(|model| {
                object([
                    ("id", (&model.id).into()),
                    ("name", (&model.id).into()),
                    ("url", format!("{}{path}", context.v1()).into()),
                    ("toolCalling", true.into()),
                    ("vision", false.into()),
                    ("maxInputTokens", prompt_tokens(model).into()),
                    ("maxOutputTokens", model.max_output_tokens.into()),
                ])
            })
            .collect();
        (!models.is_empty()).then(|| {
            object([
                ("name", name.into()),
                ("vendor", "customendpoint".into()),
                ("apiType", api.into()),
                ("models", OrderedValue::List(models)),
            ])
        })
    });
    ClientSetup::default()
        .with_file(
            "chatLanguageModels.json",
            FileFormat::Json,
            OrderedValue::List(groups.collect()).to_json(),
        )
        .with_note(
            "VS Code 1.122 or later. Run the command \"Chat: Manage Language Models\", choose Add \
             Models and Custom Endpoint, and enter the key: VS Code stores it and opens the file. \
             Keep the apiKey lines that it wrote, one per group, and paste the rest.",
        )
        .with_note("Set vision to true for models that accept images.")
}

fn zed(context: &SetupContext<'_>) -> ClientSetup {
    let models = context.models().iter().map(|model| {
        let capabilities = object([
            ("tools", true.into()),
            ("images", false.into()),
            ("parallel_tool_calls", true.into()),
            ("prompt_cache_key", false.into()),
        ]);
        object([
            ("name", (&model.id).into()),
            ("display_name", (&model.id).into()),
            ("max_tokens", model.context_tokens.into()),
            ("max_output_tokens", model.max_output_tokens.into()),
            ("capabilities", capabilities),
        ])
    });
    let provider = object([
        ("api_url", context.v1().into()),
        ("available_models", OrderedValue::List(models.collect())),
    ]);
    let compatible = object([("gateway", provider)]);
    let chosen = object([
        ("provider", "gateway".into()),
        ("model", (&context.model().id).into()),
    ]);
    let settings = object([
        ("agent", object([("default_model", chosen)])),
        (
            "language_models",
            object([("openai_compatible", compatible)]),
        ),
    ]);
    ClientSetup::default()
        .with_file(
            "~/.config/zed/settings.json",
            FileFormat::Json,
            settings.to_json(),
        )
        .with_key_variable("GATEWAY_API_KEY")
        .with_run("zed")
        .with_note(
            "Zed reads GATEWAY_API_KEY if you start it from a terminal. Otherwise run \
             \"agent: open settings\" and enter the key under LLM Providers, gateway.",
        )
        .with_note("Set images to true for models that accept images.")
}

fn open_webui(context: &SetupContext<'_>) -> ClientSetup {
    ClientSetup::default()
        .with_run(format!(
            "docker run -d --name open-webui -p 3000:8080 -v open-webui:/app/backend/data \\\n  \
             -e OPENAI_API_BASE_URLS={} -e OPENAI_API_KEYS={} \\\n  \
             -e DEFAULT_MODELS={} -e ENABLE_OLLAMA_API=false \\\n  \
             ghcr.io/open-webui/open-webui:main",
            shell_word(&context.v1()),
            context.shell_key(),
            shell_word(&context.model().id),
        ))
        .with_note(
            "Open WebUI lists the models that the key may use. In a running installation enter the \
             address and the key under Admin Panel, Settings, Connections.",
        )
        .with_note(
            "From inside a container, 127.0.0.1 is the container: use the name or address of the \
             machine with the gateway.",
        )
}

fn curl(context: &SetupContext<'_>) -> ClientSetup {
    let request = |path: &str, header: &str, body: OrderedValue| {
        let body = serde_json::to_string(&body).unwrap_or_default();
        format!(
            "curl {} \\\n  -H \"{header}${}\" \\\n  \
             -H \"Content-Type: application/json\" \\\n  -d {}",
            shell_word(&format!("{}{path}", context.v1())),
            context.key.variable,
            shell_word(&body),
        )
    };
    let model = || OrderedValue::from(&context.model().id);
    let messages = || {
        let message = object([("role", "user".into()), ("content", "Say hello.".into())]);
        OrderedValue::List(vec![message])
    };
    let limit = || OrderedValue::Number(hello_tokens(context));
    let bearer = "Authorization: Bearer ";
    ClientSetup::default()
        .with_file(
            "messages.sh",
            FileFormat::Shell,
            request(
                "/messages",
                "x-api-key: ",
                object([
                    ("model", model()),
                    ("max_tokens", limit()),
                    ("messages", messages()),
                ]),
            ),
        )
        .with_file(
            "chat.sh",
            FileFormat::Shell,
            request(
                "/chat/completions",
                bearer,
                object([
                    ("model", model()),
                    ("max_tokens", limit()),
                    ("messages", messages()),
                ]),
            ),
        )
        .with_file(
            "responses.sh",
            FileFormat::Shell,
            request(
                "/responses",
                bearer,
                object([
                    ("model", model()),
                    ("store", false.into()),
                    ("max_output_tokens", limit()),
                    ("input", "Say hello.".into()),
                ]),
            ),
        )
}

/// Output limit of the greeting in the examples.
pub fn hello_tokens(context: &SetupContext<'_>) -> u64 {
    context.model().max_output_tokens.min(1_024)
}

fn llm(context: &SetupContext<'_>) -> ClientSetup {
    let models = context.models().iter().map(|model| {
        object([
            ("model_id", format!("gateway/{}", model.id).into()),
            ("model_name", (&model.id).into()),
            ("api_base", context.v1().into()),
            ("api_key_name", "gateway".into()),
            ("supports_tools", true.into()),
        ])
    });
    let config = OrderedValue::List(models.collect());
    ClientSetup::default()
        .with_file(
            "~/.config/io.datasette.llm/extra-openai-models.yaml",
            FileFormat::Yaml,
            config.to_yaml(),
        )
        .with_command(format!(
            "llm keys set gateway --value {}",
            context.shell_key()
        ))
        .with_run(format!(
            "llm -m {} \"Say hello.\"",
            shell_word(&format!("gateway/{}", context.model().id))
        ))
        .with_note(
            "On macOS the folder is ~/Library/Application Support/io.datasette.llm. llm stores the \
             key in it.",
        )
}

fn other(context: &SetupContext<'_>) -> ClientSetup {
    let model = context.model();
    ClientSetup::default()
        .with_variable("OPENAI_BASE_URL", context.v1())
        .with_key_variable("OPENAI_API_KEY")
        .with_variable("ANTHROPIC_BASE_URL", context.base_url)
        .with_key_variable("ANTHROPIC_AUTH_TOKEN")
        .with_note(
            "Clients of the chat completions or responses API need the address with /v1, clients of \
             the messages API the address without a path. The gateway accepts both for each.",
        )
        .with_note(format!(
            "Settings that the client may have: model {}, context window {} tokens, maximum output \
             {} tokens.",
            quoted(&model.id),
            model.context_tokens,
            model.max_output_tokens,
        ))
}
