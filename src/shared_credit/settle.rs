//! Ends a hold in the shared store: submits its line to this edge's journal, and queues its ending
//! in the outbox once the journal has it.
//!
//! This file must not decide how much of the cost the account pays: the store does, and this
//! process knows only the hold.

use crate::billing::{
    Debit, HeldRequest, Hold, HoldEnd, HoldStore, record_metrics, without_charge,
};
use crate::shared_credit::billing::{SharedBilling, SharedBillingInner};
use crate::shared_credit::outbox::OutboxEntry;
use base::failpoint::{self, Point};
use credits::price_list::PriceList;
use ledger::Ending;
use ledger::journal::{EncodedRecord, JournalRecord};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl HoldStore for SharedBillingInner {
    fn settle(self: Arc<Self>, hold: &mut HeldRequest, mut end: HoldEnd) -> Debit {
        end.at_ms = self.store.clock().to_store_time(end.at_ms);
        let shared = SharedBilling(self);
        let taken = hold.parts.draw(end.cost);
        let writeoff = end.cost.minus(taken.total());
        let ending = hold.build_ending(taken, writeoff, &end);
        let price = Arc::clone(&hold.request.model.price);
        shared.count_closed();
        let opened = hold.opened.take().filter(|opened| !opened.has_failed());
        let Some(opened) = opened else {
            shared.send_unjournalled(ending, &price);
            return Debit::default();
        };
        let record = EncodedRecord::new(&JournalRecord::End(ending.clone()));
        let journal = shared.clone();
        failpoint::hit(Point::BeforeJournalEnd);
        let journalled = journal
            .0
            .journal
            .submit(record, move |written| match written {
                Ok(ended_in) => {
                    failpoint::hit(Point::AfterJournalEnd);
                    record_metrics(&ending, taken);
                    let journalled_in = opened.segment().into_iter().chain([ended_in]).collect();
                    shared
                        .0
                        .relay
                        .enqueue(OutboxEntry::new(ending, Some(&price), journalled_in));
                }
                Err(error) => {
                    if let Some(opened_in) = opened.segment() {
                        opened_in.keep_for_replay();
                    }
                    shared.send_unjournalled(without_charge(ending, &error), &price);
                }
            });
        Debit {
            credits: taken.total(),
            journalled: Some(journalled),
        }
    }
}

impl SharedBilling {
    /// Discards a hold that the store refused.
    pub(crate) fn discard(&self, hold: Hold) {
        let request_id = hold.discard();
        self.count_closed();
        // Without this record, the process that replays this journal would report an interrupted
        // request.
        let forgotten = EncodedRecord::new(&JournalRecord::Forgotten(request_id));
        self.0.journal.submit(forgotten, |written| {
            if let Err(error) = written {
                log::debug!("cannot journal that a request was refused: {error}");
            }
        });
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
