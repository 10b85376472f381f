//! Ends a hold in the shared store: writes its line to this edge's journal, and queues its ending
//! in the outbox.
//!
//! This file must not decide how much of the cost the account pays: the store does, and this
//! process knows only the hold.

use crate::billing::{HeldRequest, Hold, HoldEnd, HoldStore, record_metrics};
use crate::shared_credit::billing::{SharedBilling, SharedBillingInner};
use crate::shared_credit::outbox::OutboxEntry;
use base::failpoint::{self, Point};
use base::telemetry::METRICS;
use credits::money::Micro;
use credits::price_list::PriceList;
use ledger::journal::{JournalRecord, Segment};
use ledger::{Ending, EndingDetail, RequestOutcome};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl HoldStore for SharedBillingInner {
    fn settle(self: Arc<Self>, hold: &mut HeldRequest, mut end: HoldEnd) -> io::Result<Micro> {
        end.at_ms = self.store.clock().to_store_time(end.at_ms);
        let shared = SharedBilling(self);
        let taken = hold.parts.draw(end.cost);
        let writeoff = end.cost.minus(taken.total());
        let ending = hold.build_ending(taken, writeoff, &end);
        let price = &hold.request.model.price;
        let Some(opened_in) = hold.opened_in.take() else {
            shared.count_closed();
            shared.send_unjournalled(ending, price);
            return Ok(Micro::ZERO);
        };
        failpoint::hit(Point::BeforeJournalEnd);
        let written = shared.journal_ending(ending, price, opened_in);
        failpoint::hit(Point::AfterJournalEnd);
        shared.count_closed();
        let ending = written.inspect_err(|_| METRICS.ledger_error("journal_write"))?;
        record_metrics(&ending, taken);
        Ok(taken.total())
    }
}

impl SharedBilling {
    /// Discards a hold that the store refused.
    pub(crate) fn discard(&self, hold: Hold) {
        let request_id = hold.discard();
        self.count_closed();
        // Without this record, the process that replays this journal would report an interrupted
        // request.
        let forgotten = JournalRecord::Forgotten(request_id);
        if let Err(error) = self.0.journal.write(&forgotten) {
            log::debug!("cannot journal that a request was refused: {error}");
        }
    }

    /// Journals an ending and queues it for the store. Returns the ending once it survives a crash
    /// of the process.
    fn journal_ending(
        &self,
        ending: Ending,
        price: &PriceList,
        opened_in: Arc<Segment>,
    ) -> io::Result<Ending> {
        let record = JournalRecord::End(ending);
        let written = self.0.journal.write(&record);
        let JournalRecord::End(ending) = record else {
            return Err(io::Error::other("an end without an ending"));
        };
        match written {
            Ok(ended_in) => {
                self.0.relay.enqueue(OutboxEntry::new(
                    ending.clone(),
                    Some(price),
                    vec![opened_in, ended_in],
                ));
                Ok(ending)
            }
            Err(error) => {
                opened_in.keep_for_replay();
                // A client that does not get the last byte is not charged.
                let nothing = Ending {
                    paid: Micro::ZERO,
                    trial: Micro::ZERO,
                    writeoff: Micro::ZERO,
                    detail: EndingDetail {
                        outcome: RequestOutcome::Interrupted,
                        ..ending.detail
                    },
                    ..ending
                };
                self.send_unjournalled(nothing, price);
                Err(error)
            }
        }
    }

    /// Releases a hold that no journal contains.
    fn send_unjournalled(&self, ending: Ending, price: &PriceList) {
        self.0
            .relay
            .enqueue(OutboxEntry::new(ending, Some(price), Vec::new()));
    }

    fn count_closed(&self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
