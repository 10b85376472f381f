//! The values in the guide for Claude Code.
//!
//! Claude Code knows only the limits of its vendor's models. The settings describe every other
//! model by a known one and by variables, whose effects were measured with 2.1.330. This file must
//! not name a model with a larger context than the catalog's.

use super::guide::{ClientGuide, ModelRole};
use super::setup::SetupContext;
use config::catalog::CatalogModel;

/// Context in tokens of a model that Claude Code does not know.
const DEFAULT_CONTEXT_TOKENS: u64 = 200_000;
/// Context in tokens from which on a model has the suffix `[1m]`. Claude Code never sends the
/// suffix.
const LONG_CONTEXT_TOKENS: u64 = 1_000_000;
/// Output limit that Claude Code requests unless a variable sets another one.
const DEFAULT_OUTPUT_TOKENS: u64 = 64_000;
/// Models that Claude Code treats as having a context of 200 000 tokens. In 2.1.330, a row of the
/// picker that behaves as one of these has that context, whatever the variables say.
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

/// Returns the known model whose prompt and reasoning Claude Code should use for this one. Its
/// context is not larger than that of this model. Returns `None` if no known model fits.
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

/// Returns the context for models that behave as no known one. Claude Code has one number for all
/// of them, so it is the smallest.
fn context_variable(context: &SetupContext<'_>) -> Option<u64> {
    let models = context.models().iter();
    let unlike = models.filter(|model| behaves_as(model).is_none());
    let smallest = unlike.map(|model| model.context_tokens).min();
    let chosen = context.model().context_tokens;
    let between = DEFAULT_CONTEXT_TOKENS + 1..LONG_CONTEXT_TOKENS;
    // If all models behave as known ones, the number may be that of the chosen model.
    smallest.or(between.contains(&chosen).then_some(chosen))
}

/// The values of the settings file.
pub struct ClaudeSettings<'a> {
    pub chosen: String,
    /// The variable of each tier, with its model.
    pub tiers: Vec<(String, String)>,
    pub context_tokens: Option<u64>,
    pub needs_output_limit: bool,
    /// Rows of the model picker.
    pub rows: Vec<PickerRow<'a>>,
}

pub struct PickerRow<'a> {
    pub name: String,
    pub model: &'a CatalogModel,
    pub behaves_as: Option<&'a str>,
}

impl<'a> ClaudeSettings<'a> {
    pub fn new(guide: &ClientGuide, context: &'a SetupContext<'_>) -> Self {
        let tiers = guide.roles.iter().filter_map(|role| match role {
            ModelRole::Tier(tier) => Some((
                format!("ANTHROPIC_DEFAULT_{}_MODEL", tier.to_ascii_uppercase()),
                model_name(context.model_for(*role)),
            )),
            ModelRole::Chosen | ModelRole::Small => None,
        });
        let context_tokens = context_variable(context);
        let rows = context.models().iter().map(|model| PickerRow {
            name: model_name(model),
            model,
            // The variable applies only to models without `behavesAs`.
            behaves_as: behaves_as(model).filter(|_| Some(model.context_tokens) != context_tokens),
        });
        Self {
            chosen: model_name(context.model()),
            tiers: tiers.collect(),
            context_tokens,
            needs_output_limit: context.model().max_output_tokens < DEFAULT_OUTPUT_TOKENS,
            rows: rows.collect(),
        }
    }
}

impl PickerRow<'_> {
    pub fn description(&self) -> String {
        let CatalogModel {
            context_tokens,
            price,
            ..
        } = self.model;
        format!(
            "{context_tokens} tokens of context · {} in, {} out: credits per million tokens",
            price.input, price.output
        )
    }
}
