//! The calls of the ledger, grouped by subject. A view shows what belongs together; functions take
//! the whole [`Ledger`].
//!
//! This file must not contain behaviour: each is implemented where its statements are.

use crate::Ledger;

/// Rows by their key: reads accounts, prices, spending of keys, entries and ends of requests; opens
/// accounts, stores prices, and removes what ended processes left.
#[derive(Clone, Copy)]
pub struct LedgerRows<'a>(pub(crate) &'a Ledger);

/// What an audit reads of the file itself.
#[derive(Clone, Copy)]
pub struct LedgerChecks<'a>(pub(crate) &'a Ledger);

/// The index beside the ledger: entries are indexed after their commit.
#[derive(Clone, Copy)]
pub struct LedgerIndexing<'a>(pub(crate) &'a Ledger);

/// What pages show: lists of entries, usage, statements.
#[derive(Clone, Copy)]
pub struct LedgerPages<'a>(pub(crate) &'a Ledger);

/// Sealed entries: seals the oldest, archives segments, finds what they have.
#[derive(Clone, Copy)]
pub struct Segments<'a>(pub(crate) &'a Ledger);

/// Changes of balances, and the claims of processes on them.
#[derive(Clone, Copy)]
pub struct LedgerChanges<'a>(pub(crate) &'a Ledger);

/// What a shared store reports, and how far it is read.
#[derive(Clone, Copy)]
pub struct StoreEvents<'a>(pub(crate) &'a Ledger);

impl Ledger {
    pub fn rows(&self) -> LedgerRows<'_> {
        LedgerRows(self)
    }

    pub fn checks(&self) -> LedgerChecks<'_> {
        LedgerChecks(self)
    }

    pub fn index(&self) -> LedgerIndexing<'_> {
        LedgerIndexing(self)
    }

    pub fn pages(&self) -> LedgerPages<'_> {
        LedgerPages(self)
    }

    pub fn segments(&self) -> Segments<'_> {
        Segments(self)
    }

    pub fn changes(&self) -> LedgerChanges<'_> {
        LedgerChanges(self)
    }

    pub fn events(&self) -> StoreEvents<'_> {
        StoreEvents(self)
    }
}
