//! Ends a hold in this process's own ledger: releases its credits, writes its line to the journal,
//! and queues its ending for the ledger writer.
//!
//! This file must not decide what a request costs: `billing/hold.rs` does.

use super::hold::{HeldRequest, HoldEnd, HoldStore, record_metrics};
use super::holds::HoldResolution;
use super::ledger_writer::Settlement;
use super::service::ServingState;
use base::failpoint::{self, Point};
use base::telemetry::METRICS;
use credits::money::{CreditSplit, Micro};
use ledger::RequestOutcome;
use ledger::journal::JournalRecord;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl HoldStore for ServingState {
    fn settle(self: Arc<Self>, hold: &mut HeldRequest, end: HoldEnd) -> io::Result<Micro> {
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
        let Some(opened_in) = hold.opened_in.take() else {
            self.release_claim(&hold.request.account, freed);
            return Ok(Micro::ZERO);
        };
        let record = JournalRecord::End(hold.build_ending(taken, writeoff, &end));
        failpoint::hit(Point::BeforeJournalEnd);
        let written = self.journal.write(&record);
        failpoint::hit(Point::AfterJournalEnd);
        let JournalRecord::End(ending) = record else {
            return written.map(|_| Micro::ZERO);
        };
        match written {
            Ok(ended_in) => {
                record_metrics(&ending, taken);
                self.writer.enqueue(Settlement {
                    ending,
                    freed,
                    journalled_in: [opened_in, ended_in],
                });
                Ok(taken.total())
            }
            Err(error) => {
                METRICS.ledger_error("journal_write");
                let freed = self
                    .holds
                    .undo_settlement(ledger, &hold.request.payer(), &resolved);
                // The ledger receives the ending without the journal. A replay of the journal would
                // have the same result, because the opening record has no end.
                let interrupted = HoldEnd::without_cost(RequestOutcome::Interrupted, end.at_ms);
                let ending = hold.build_ending(CreditSplit::default(), Micro::ZERO, &interrupted);
                self.writer.enqueue(Settlement {
                    ending,
                    freed,
                    journalled_in: [Arc::clone(&opened_in), opened_in],
                });
                Err(error)
            }
        }
    }
}
