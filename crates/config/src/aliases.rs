//! Validates the aliases of models. An alias must lead to exactly one model, and must not match the
//! id of another.
//!
//! This file must not look up models at run time: `catalog.rs` does.

use super::raw;
use super::validator::ModelSection;
use crate::catalog::AliasPattern;
use std::collections::HashMap;

/// Maximum number of aliases of one model. The number is small because a lookup compares a name
/// with every alias that has a `*`.
const MAX_ALIASES: usize = 32;
/// Maximum length of an alias in bytes. Ids have the same limit.
const MAX_NAME_BYTES: usize = 128;

impl ModelSection<'_> {
    pub(super) fn check_aliases(&mut self, models: &[raw::Model]) {
        let ids: HashMap<_, _> = models
            .iter()
            .enumerate()
            .map(|(index, model)| (model.id.as_str(), index))
            .collect();
        let mut owners: HashMap<&str, usize> = HashMap::new();
        for (index, model) in models.iter().enumerate() {
            let key = format!("models[{index}].aliases");
            if model.aliases.len() > MAX_ALIASES {
                self.0.add_fault(
                    key.clone(),
                    format!("at most {MAX_ALIASES} aliases are allowed"),
                );
            }
            for (position, alias) in model.aliases.iter().enumerate() {
                let key = format!("{key}[{position}]");
                if let Some(message) = alias_fault(index, alias, models, &ids) {
                    self.0.add_fault(key, message);
                } else if let Some(owner) = owners.insert(alias, index) {
                    let owner = models.get(owner).map_or("", |model| &model.id);
                    self.0.add_fault(
                        key,
                        format!("{alias:?} is already an alias of {owner:?}: an alias can stand for only one model"),
                    );
                }
            }
        }
    }
}

/// Returns the reason why the model at `index` cannot have this alias. Duplicates are checked
/// elsewhere.
fn alias_fault(
    index: usize,
    alias: &str,
    models: &[raw::Model],
    ids: &HashMap<&str, usize>,
) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._:-/@*".contains(c);
    if alias.is_empty() || alias.len() > MAX_NAME_BYTES || !alias.chars().all(is_plain) {
        return Some("must be 1 to 128 letters, digits and . _ : - / @, and at most one *".into());
    }
    if let Some(owner) = ids.get(alias) {
        return Some(match *owner == index {
            true => {
                format!("{alias:?} is the model's own id: remove it, clients can always use the id")
            }
            false => format!(
                "{alias:?} is the id of models[{owner}], which takes precedence over an alias"
            ),
        });
    }
    if !alias.contains('*') {
        return None;
    }
    let Some(pattern) = AliasPattern::parse(alias) else {
        return Some(format!("{alias:?} has more than one *"));
    };
    let mut others = models
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != index);
    let (_, hidden) = others.find(|(_, other)| pattern.matches(&other.id))?;
    let id = &hidden.id;
    Some(format!(
        "{alias:?} also matches {id:?}, the id of another model: use a longer alias"
    ))
}
