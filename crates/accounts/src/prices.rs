//! Records price changes of the config file in the audit log.
//!
//! At a start and after a reload, the prices in force are compared with the last recorded ones.
//! Thus changes made while no gateway ran are found too. This file must not compute costs.

use super::accounts::Accounts;
use super::views::AuditLog;
use crate::db::audit::{AuditRow, NewAuditLine};
use credits::price_list::PriceList;
use ledger::StoreError;
use serde_json::json;
use std::collections::BTreeMap;

/// Name of the action in the audit log.
pub const PRICES_ACT: &str = "prices.change";

/// Actor of the lines, because nobody signs in to change a file.
const CONFIG_FILE: &str = "config file";

/// Price lists by the ids of their models.
pub type ModelPrices = BTreeMap<String, PriceList>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriceChange {
    /// Line of the audit log.
    pub seq: i64,
    pub at_ms: i64,
    pub model: String,
    /// Previous prices; `None` if the model is new.
    pub before: Option<PriceList>,
    /// New prices; `None` if the config file no longer has the model.
    pub after: Option<PriceList>,
}

impl Accounts {
    /// Records in one line the prices of `models` that differ from the last recorded ones. Returns
    /// the number of changed models, including new and removed ones.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn record_prices<'m>(
        &self,
        models: impl Iterator<Item = (&'m str, &'m PriceList)>,
        now_ms: i64,
    ) -> Result<usize, StoreError> {
        let new: BTreeMap<&str, &PriceList> = models.collect();
        let is_equal = |old: &ModelPrices| {
            let known = old.iter().map(|(model, price)| (model.as_str(), price));
            known.eq(new.iter().map(|(model, price)| (*model, *price)))
        };
        if is_equal(&self.last_prices()?) {
            return Ok(0);
        }
        // During an upgrade, two processes can read the same file. The second one finds the line of
        // the first in the same transaction.
        let (mut changed, mut is_first) = (0, false);
        self.db.audit().append_audit_after(PRICES_ACT, |lines| {
            let old = fold_prices(&parse_lines(lines));
            let differs = |model: &str| old.get(model) != new.get(model).copied();
            let mut models: Vec<&str> = old.keys().map(String::as_str).collect();
            models.extend(new.keys());
            models.sort_unstable();
            models.dedup();
            models.retain(|model| differs(model));
            changed = models.len();
            if models.is_empty() {
                return None;
            }
            is_first = old.is_empty();
            let before: BTreeMap<_, _> = models.iter().map(|it| (*it, old.get(*it))).collect();
            let after: BTreeMap<_, _> = models.iter().map(|it| (*it, new.get(it))).collect();
            Some(NewAuditLine {
                at_ms: now_ms,
                actor: CONFIG_FILE.to_owned(),
                address: "file".to_owned(),
                act: PRICES_ACT,
                object: CONFIG_FILE.to_owned(),
                before: match is_first {
                    true => String::new(),
                    false => json!(before).to_string(),
                },
                after: json!(after).to_string(),
            })
        })?;
        if changed > 0 && !is_first {
            log::info!("the config file changed prices; the audit log names {changed} models");
        }
        Ok(changed)
    }

    fn last_prices(&self) -> Result<ModelPrices, StoreError> {
        Ok(fold_prices(&self.audit_log().price_changes()?))
    }
}

impl AuditLog<'_> {
    /// Returns all changes of prices, oldest first.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn price_changes(&self) -> Result<Vec<PriceChange>, StoreError> {
        Ok(parse_lines(&self.0.db.audit().audit_rows_of(PRICES_ACT)?))
    }
}

/// Parses the price changes in a line, one for each model.
///
/// # Errors
/// Returns an error if the line's JSON is not a map of price lists.
pub fn parse_price_changes(row: &AuditRow) -> Result<Vec<PriceChange>, StoreError> {
    let read = |text: &str| -> Result<BTreeMap<String, Option<PriceList>>, StoreError> {
        if text.is_empty() {
            return Ok(BTreeMap::new());
        }
        serde_json::from_str(text).map_err(|error| {
            StoreError::Unusable(format!(
                "cannot read the prices in line {} of the audit log: {error}",
                row.seq
            ))
        })
    };
    let mut before = read(&row.before)?;
    let after = read(&row.after)?.into_iter();
    Ok(after
        .map(|(model, after)| PriceChange {
            seq: row.seq,
            at_ms: row.at_ms,
            before: before.remove(&model).flatten(),
            after,
            model,
        })
        .collect())
}

/// Parses lines and skips unreadable ones, because a gateway must start with a damaged log.
fn parse_lines(rows: &[AuditRow]) -> Vec<PriceChange> {
    let read = |row| {
        parse_price_changes(row).unwrap_or_else(|error| {
            log::warn!("{error}");
            Vec::new()
        })
    };
    rows.iter().flat_map(read).collect()
}

fn fold_prices(changes: &[PriceChange]) -> ModelPrices {
    let mut prices = ModelPrices::new();
    for PriceChange { model, after, .. } in changes {
        match after {
            Some(price) => drop(prices.insert(model.clone(), price.clone())),
            None => drop(prices.remove(model)),
        }
    }
    prices
}
