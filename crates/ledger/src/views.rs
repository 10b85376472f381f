//! Groups the methods of the ledger into one view for each subject. Free functions take the whole
//! [`Ledger`].
//!
//! This file must not contain behaviour: a method is implemented beside its statements.

use crate::Ledger;

/// Rows by their key. The view reads accounts, prices, spending of keys, entries and ends of
/// requests; it also opens accounts, stores prices, and removes the rows of ended processes.
#[derive(Clone, Copy)]
pub struct LedgerRows<'a>(pub(crate) &'a Ledger);

/// The rows of accounts and keys that are in memory for admission.
#[derive(Clone, Copy)]
pub struct AdmissionCache<'a>(pub(crate) &'a Ledger);

impl<'a> LedgerRows<'a> {
    pub fn in_memory(self) -> AdmissionCache<'a> {
        AdmissionCache(self.0)
    }
}

/// Checks of the database file for an audit.
#[derive(Clone, Copy)]
pub struct LedgerChecks<'a>(pub(crate) &'a Ledger);

/// The index beside the ledger, which gets entries after their commit.
#[derive(Clone, Copy)]
pub struct LedgerIndexing<'a>(pub(crate) &'a Ledger);

/// The data of pages: lists of entries, usage, statements.
#[derive(Clone, Copy)]
pub struct LedgerPages<'a>(pub(crate) &'a Ledger);

/// Sealed entries. The view seals the oldest ones, archives segments, and looks entries up in them.
#[derive(Clone, Copy)]
pub struct Segments<'a>(pub(crate) &'a Ledger);

/// Changes of balances, and the claims of processes on them.
#[derive(Clone, Copy)]
pub struct LedgerChanges<'a>(pub(crate) &'a Ledger);

/// The events of a shared store, and the position up to which they were entered.
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
