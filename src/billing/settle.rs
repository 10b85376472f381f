//! Ends a hold in this process's own ledger: releases its credits, submits its line to the journal,
//! and queues its ending for the ledger writer once the journal has it.
//!
//! This file must not decide what a request costs: `billing/hold.rs` does.

use super::hold::{
    Debit, HeldRequest, HoldEnd, HoldRequest, HoldStore, record_metrics, without_charge,
};
use super::holds::{HoldResolution, Payer};
use super::ledger_writer::Settlement;
use super::service::ServingState;
use base::failpoint::{self, Point};
use ledger::journal::{EncodedRecord, JournalRecord};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl HoldStore for ServingState {
    fn settle(self: Arc<Self>, hold: &mut HeldRequest, end: HoldEnd) -> Debit {
        let ledger = &self.ledger;
        let tokens = end.usage.tokens_total();
        let resolved = self.holds.resolve(
            ledger,
            &hold.request.payer(),
            hold.parts,
            end.cost,
            tokens,
            end.at_ms,
        );
        let HoldResolution {
            taken,
            writeoff,
            freed,
        } = resolved;
        self.open.fetch_sub(1, Ordering::Relaxed);
        let opened = hold.opened.take().filter(|opened| !opened.has_failed());
        let Some(opened) = opened else {
            self.release_claim(&hold.request.account, freed);
            return Debit::default();
        };
        let ending = hold.build_ending(taken, writeoff, &end);
        let record = EncodedRecord::new(&JournalRecord::End(ending.clone()));
        let HoldRequest {
            account,
            key_id,
            member,
            bounds,
            ..
        } = &hold.request;
        let (account, key, bounds) = (Arc::clone(account), Arc::clone(key_id), *bounds);
        let member = member.clone();
        let serving = Arc::clone(&self);
        failpoint::hit(Point::BeforeJournalEnd);
        let journalled = self.journal.submit(record, move |written| match written {
            Ok(ended_in) => {
                failpoint::hit(Point::AfterJournalEnd);
                record_metrics(&ending, taken);
                serving.writer.enqueue(Settlement {
                    ending,
                    freed,
                    journalled_in: [opened.segment(), Some(ended_in)],
                });
            }
            Err(error) => {
                let payer = Payer {
                    account: &account,
                    key: &key,
                    member: member.as_ref(),
                    bounds: &bounds,
                };
                let freed = serving
                    .holds
                    .undo_settlement(&serving.ledger, &payer, &resolved);
                // The ledger receives the ending without the journal. A replay of the journal would
                // have the same result, because the opening record has no end.
                serving.writer.enqueue(Settlement {
                    ending: without_charge(ending, &error),
                    freed,
                    journalled_in: [opened.segment(), None],
                });
            }
        });
        Debit {
            credits: taken.total(),
            journalled: Some(journalled),
        }
    }
}
