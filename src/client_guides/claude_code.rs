//! The guide for Claude Code.
//!
//! Claude Code knows the limits of its vendor's models only: the settings describe each other model
//! by a known one and by variables. What they do was measured with 2.1.330. Must not name a model
//! with a larger context than the catalog's.

use super::format::{OrderedValue, object};
use super::{ClientSetup, FileFormat, SetupContext};
use crate::catalog::CatalogModel;

/// Context of a model that Claude Code does not know.
const DEFAULT_CONTEXT_TOKENS: u64 = 200_000;
/// From this context on, a model has the suffix `[1m]`, which Claude Code never sends.
const LONG_CONTEXT_TOKENS: u64 = 1_000_000;
/// Output limit that Claude Code requests unless a variable sets another one.
const DEFAULT_OUTPUT_TOKENS: u64 = 64_000;
/// Models that Claude Code knows with a context of 200 000 tokens. Seen with 2.1.330: a row of the
/// picker that behaves as one of these has that context, and the variables do not change it.
const MODELS_WITH_DEFAULT_CONTEXT: [&str; 6] = [
    "claude-opus-4-5",
    "claude-opus-4-6",
    "claude-sonnet-4-5",
    "claude-sonnet-4-6",
    "claude-haiku-4-5",
    "claude-haiku-4-5-20251001",
];

fn model_name(model: &CatalogModel) -> String {
    let is_long = model.context_tokens >= LONG_CONTEXT_TOKENS;
    format!("{}{}", model.id, if is_long { "[1m]" } else { "" })
}

/// The known model whose prompt and reasoning Claude Code should use for this one. Its context is
/// not larger than that of this model. `None` if there is no such model.
fn behaves_as(model: &CatalogModel) -> Option<&str> {
    let upstream = &*model.upstream_model;
    let is_long = model.context_tokens >= LONG_CONTEXT_TOKENS;
    if model.context_tokens < DEFAULT_CONTEXT_TOKENS {
        None
    } else if is_long && upstream.starts_with("claude-")
        || MODELS_WITH_DEFAULT_CONTEXT.contains(&upstream)
    {
        Some(upstream)
    } else if is_long {
        Some("claude-opus-4-8")
    } else if model.hides_reasoning() || upstream.starts_with("claude-") {
        Some("claude-sonnet-4-6")
    } else {
        Some("claude-haiku-4-5")
    }
}

/// Context of the models that behave as no known one. Claude Code has one number for all of them,
/// so it is the smallest.
fn context_variable(context: &SetupContext<'_>) -> Option<u64> {
    let models = context.models().iter();
    let unlike = models.filter(|model| behaves_as(model).is_none());
    let smallest = unlike.map(|model| model.context_tokens).min();
    let chosen = context.model().context_tokens;
    let between = DEFAULT_CONTEXT_TOKENS + 1..LONG_CONTEXT_TOKENS;
    // If all models behave as known ones, the chosen one can have the number.
    smallest.or(between.contains(&chosen).then_some(chosen))
}

pub fn build(context: &SetupContext<'_>) -> ClientSetup {
    let model = context.model();
    let (chosen, small) = (model_name(model), model_name(context.cheapest_model()));
    let mut env = vec![("ANTHROPIC_BASE_URL", context.base_url.to_owned())];
    if let Some(key) = &context.key.text {
        env.push(("ANTHROPIC_AUTH_TOKEN", key.clone()));
    }
    env.extend([
        // Without it, the first row of the picker is Opus, with a context of a million tokens.
        ("ANTHROPIC_DEFAULT_MODEL", chosen.clone()),
        ("ANTHROPIC_DEFAULT_FABLE_MODEL", chosen.clone()),
        ("ANTHROPIC_DEFAULT_OPUS_MODEL", chosen.clone()),
        ("ANTHROPIC_DEFAULT_SONNET_MODEL", chosen.clone()),
        ("ANTHROPIC_DEFAULT_HAIKU_MODEL", small),
    ]);
    let tokens = context_variable(context);
    if let Some(tokens) = tokens {
        env.push(("CLAUDE_CODE_MAX_CONTEXT_TOKENS", tokens.to_string()));
    }
    if model.max_output_tokens < DEFAULT_OUTPUT_TOKENS {
        let limit = model.max_output_tokens.to_string();
        env.push(("CLAUDE_CODE_MAX_OUTPUT_TOKENS", limit));
    }
    env.push(("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()));
    let env = env
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into()));
    let rows = context.models().iter().map(|model| {
        let mut row = vec![
            ("model", model_name(model)),
            ("label", model.id.clone()),
            ("description", description(model)),
        ];
        // The variable applies only to models without `behavesAs`.
        let has_variable = Some(model.context_tokens) == tokens;
        let known = behaves_as(model).filter(|_| !has_variable);
        row.extend(known.map(|known| ("behavesAs", known.to_owned())));
        let row = row
            .into_iter()
            .map(|(name, text)| (name.to_owned(), text.into()));
        OrderedValue::Object(row.collect())
    });
    let picker = object([
        ("replaceBuiltInOptions", true.into()),
        ("options", OrderedValue::List(rows.collect())),
    ]);
    let settings = object([
        ("env", OrderedValue::Object(env.collect())),
        ("model", chosen.into()),
        ("modelPicker", picker),
    ]);
    let setup = ClientSetup::default().with_file(
        "~/.claude/settings.json",
        FileFormat::Json,
        settings.to_json(),
    );
    let setup = match context.key.text {
        Some(_) => setup,
        None => setup.with_key_variable("ANTHROPIC_AUTH_TOKEN"),
    };
    setup
        .with_run("claude")
        .with_note(
            "Use this file, not a project's .claude/settings.json: Claude Code ignores modelPicker \
             there. Its values override variables of the shell.",
        )
        .with_note(
            "The list of models under /model needs Claude Code 2.1.242 or later, behavesAs needs \
             2.1.257. Older versions use the model in the file or in claude --model MODEL.",
        )
        .with_note(
            "A model that behaves as a known one has at most that model's context. Claude Code \
             shows that model's costs: see the real ones under Activity.",
        )
        .with_note("If you are signed in to an Anthropic account, enter /logout first.")
}

fn description(model: &CatalogModel) -> String {
    format!(
        "{} tokens of context · {} in, {} out: credits per million tokens",
        model.context_tokens, model.price.input, model.price.output
    )
}
