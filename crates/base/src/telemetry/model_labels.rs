//! Selects the models that have their own metric series.
//!
//! A model has some 440 series, so a catalog of thousands would make each scrape hundreds of
//! megabytes. This file must not depend on a metric.

use std::collections::HashSet;
use std::sync::{PoisonError, RwLock};

/// Maximum number of models with series of their own.
pub const MAX_MODELS: usize = 100;

/// Label of all models without series of their own.
pub const OTHER_MODELS: &str = "other";

/// The models with series of their own, which are the first ones that are used.
#[derive(Default)]
pub struct ModelLabels(RwLock<HashSet<String>>);

impl ModelLabels {
    /// Returns the value of the label `model` for a model: its id, or [`OTHER_MODELS`].
    pub fn label<'a>(&self, model: &'a str) -> &'a str {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if known.contains(model) {
            return model;
        }
        if known.len() >= MAX_MODELS {
            return OTHER_MODELS;
        }
        drop(known);
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() < MAX_MODELS || known.contains(model) {
            known.insert(model.to_owned());
            model
        } else {
            OTHER_MODELS
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_models_have_labels_of_their_own_and_share_one_afterwards() {
        let labels = ModelLabels::default();
        let names: Vec<_> = (0..MAX_MODELS + 50)
            .map(|index| index.to_string())
            .collect();
        for _ in 0..2 {
            for (index, name) in names.iter().enumerate() {
                let expected = if index < MAX_MODELS {
                    name
                } else {
                    OTHER_MODELS
                };
                assert_eq!(labels.label(name), expected);
            }
        }
    }
}
