//! Computes the balances at the end of a new segment.
//!
//! This file must not write.

use crate::database::Ledger;
use crate::sealed::balance_slice;
use crate::segment::SealedBalance;
use credits::money::Micro;
use std::collections::{BTreeMap, VecDeque};
use std::io;

/// An account's balance after its last entry in a segment.
#[derive(Default)]
pub(crate) struct ChangedBalance {
    pub paid: Micro,
    pub trial: Micro,
    /// Sum of the credits that the segment's entries buy or grant.
    pub credited: Micro,
}

/// Computes the balance of every account at the end of a new segment, from the balances at the end
/// of the last segment and the changes since.
pub(crate) struct BalanceMerge<'a> {
    ledger: &'a Ledger,
    /// Position of the last segment's last entry.
    through: i64,
    changed: std::iter::Peekable<std::collections::btree_map::IntoIter<String, ChangedBalance>>,
    known: VecDeque<SealedBalance>,
    after: Option<String>,
    is_read: bool,
    /// Balances that have changed since the last segment.
    rows: Vec<SealedBalance>,
}

impl<'a> BalanceMerge<'a> {
    /// Creates the merge. `through` is the position of the last segment's last entry.
    pub(crate) fn new(
        ledger: &'a Ledger,
        through: i64,
        changed: BTreeMap<String, ChangedBalance>,
    ) -> Self {
        Self {
            ledger,
            through,
            changed: changed.into_iter().peekable(),
            known: VecDeque::new(),
            after: None,
            is_read: false,
            rows: Vec::new(),
        }
    }

    pub(crate) fn into_changed(self) -> Vec<SealedBalance> {
        self.rows
    }
}

impl Iterator for BalanceMerge<'_> {
    type Item = io::Result<SealedBalance>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.known.is_empty() && !self.is_read {
            let slice = self.ledger.read("read balances", |connection| {
                balance_slice(connection, self.after.as_deref(), self.through)
            });
            match slice {
                Err(error) => return Some(Err(io::Error::other(error))),
                Ok(slice) => {
                    self.is_read = slice.is_empty();
                    self.after = slice.last().map(|last| last.account.clone());
                    self.known.extend(slice);
                }
            }
        }
        let is_changed = match (self.known.front(), self.changed.peek()) {
            (None, None) => return None,
            (Some(known), Some((account, _))) => *account <= known.account,
            (known, _) => known.is_none(),
        };
        if !is_changed {
            return self.known.pop_front().map(Ok);
        }
        let (account, change) = self.changed.next()?;
        let before = match self.known.front() {
            Some(known) if known.account == account => self.known.pop_front(),
            _ => None,
        };
        let credited = before.map_or(Micro::ZERO, |before| before.credited);
        let balance = SealedBalance {
            account,
            paid: change.paid,
            trial: change.trial,
            credited: credited.plus(change.credited),
        };
        self.rows.push(balance.clone());
        Some(Ok(balance))
    }
}
