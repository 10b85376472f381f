//! Consumes the store's events: reads them, enters them into the ledger in one commit, and then
//! clears them.
//!
//! Each pass reads a partition's events from the beginning. An event that was entered but not
//! cleared is read again, and the ledger recognizes it. That is true for every server and every age
//! of its first event. This file must not clear an event that the ledger does not have.

use super::worker::{Backlog, IngestWorker};
use crate::shared_credit::redis::{PostCommand, StoreEvent, StoredEvents};
use base::clock;
use base::failpoint::{self, Point};
use base::telemetry::METRICS;
use credits::money::{CreditSplit, Micro};
use credits::price_list::PriceList;
use ledger::StoreError;
use ledger::{Ending, EndingDetail, IngestEvent};
use serde::Deserialize;
use std::time::Instant;
use tokio::task::JoinSet;

/// Maximum number of events of one partition in one commit.
const MAX_BATCH: usize = 512;
/// Maximum number of commits in one pass.
const MAX_BATCHES: usize = 16;
/// Maximum number of rejected events to remember as reported.
const MAX_REPORTED: usize = 10_000;

/// The edge's report of a request's end. The store adds the amounts.
#[derive(Debug, Deserialize)]
struct ReceivedEnding {
    at_ms: i64,
    /// Credits that the request's hold covered, which the admission promised.
    #[serde(default)]
    paid: Micro,
    #[serde(default)]
    trial: Micro,
    detail: EndingDetail,
    /// Price list of the version in the detail, in case the ledger does not have it yet.
    #[serde(default)]
    price: Option<Box<PriceList>>,
}

/// Events of one partition that can be entered.
struct PartitionBatch {
    partition: u32,
    /// Id of each event, with the amount that the store charged for it.
    ids: Vec<(String, CreditSplit)>,
    events: Vec<IngestEvent>,
}

impl IngestWorker {
    pub(crate) async fn consume_all(&mut self) -> Result<(), StoreError> {
        self.backlog = Backlog::default();
        // If one node of a cluster is unreachable, continue with the partitions of the other nodes.
        let (mut found, mut failed) = (Vec::new(), Ok(()));
        for group in self.store.partition_groups() {
            match self.store.events().first_events(&group, MAX_BATCH).await {
                Ok(of_group) => found.extend(of_group),
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        let consumed = self.consume_found(found).await;
        let Backlog {
            events, oldest_ms, ..
        } = self.backlog;
        METRICS.journal_pending.set(events);
        let age_ms = oldest_ms.map_or(0, |oldest| clock::now_ms().saturating_sub(oldest).max(0));
        METRICS.journal_oldest_seconds.set(age_ms / 1_000);
        failed.and(consumed)
    }

    /// Enters a partition's events into the ledger, until the last event or the end of the
    /// partition's turn.
    pub(crate) async fn consume(&mut self, partition: u32) -> Result<(), StoreError> {
        let events = self
            .store
            .events()
            .events(partition, "0", MAX_BATCH)
            .await?;
        self.consume_found(vec![(partition, events)]).await
    }

    /// Consumes several partitions whose first events have been read, like
    /// [`IngestWorker::consume`]. One commit enters the events of all partitions, because its time
    /// hardly depends on their number.
    async fn consume_found(
        &mut self,
        mut found: Vec<(u32, StoredEvents)>,
    ) -> Result<(), StoreError> {
        let mut failed = Ok(());
        for _ in 0..MAX_BATCHES {
            let mut unread = Vec::new();
            for (partition, events) in &found {
                if let (Some((first, _)), Some((last, _))) = (events.first(), events.last()) {
                    self.backlog.add(events.len(), event_time_ms(first));
                    if events.len() == MAX_BATCH {
                        unread.push((*partition, last.clone()));
                    }
                }
            }
            failed = failed.and(self.enter_events(found).await);
            found = Vec::new();
            // The next pass reads the events again that could not be entered.
            if failed.is_err() || unread.is_empty() {
                return failed;
            }
            for (partition, after) in unread {
                let events = self
                    .store
                    .events()
                    .events(partition, &after, MAX_BATCH)
                    .await?;
                found.push((partition, events));
            }
        }
        self.backlog.is_left = true;
        failed
    }

    async fn enter_events(&mut self, found: Vec<(u32, StoredEvents)>) -> Result<(), StoreError> {
        let batches: Vec<_> = found
            .into_iter()
            .map(|(partition, events)| self.parse_events(partition, events))
            .filter(|batch| !batch.events.is_empty())
            .collect();
        if batches.is_empty() {
            return Ok(());
        }
        failpoint::hit(Point::EventsRead);
        let entered = match self.enter(&batches) {
            // An event that the ledger refuses must not block the other partitions.
            Err(error) if error.is_refused_row() && batches.len() > 1 => batches
                .iter()
                .map(|batch| self.enter(std::slice::from_ref(batch)))
                .map(|entered| entered.map(|mut of_one| of_one.pop().unwrap_or_default()))
                .collect(),
            entered => entered?.into_iter().map(Ok).collect::<Vec<_>>(),
        };
        failpoint::hit(Point::EventsEntered);
        // Clear all partitions at the same time, because each call takes a round trip.
        let (mut clearing, mut failed) = (JoinSet::new(), Ok(()));
        for (batch, taken) in batches.into_iter().zip(entered) {
            let partition = batch.partition;
            let levelled = match taken {
                Ok(taken) => self.level(batch, taken).await,
                Err(error) => Err(error),
            };
            match levelled {
                Ok(entered) => {
                    let store = self.store.clone();
                    clearing.spawn(async move {
                        store.ingest().clear_events(partition, &entered).await
                    });
                }
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        while let Some(cleared) = clearing.join_next().await {
            failed = failed.and(cleared.unwrap_or_else(|error| {
                Err(StoreError::Unusable(format!(
                    "cannot remove entered events from the shared store: {error}"
                )))
            }));
        }
        failpoint::hit(Point::EventsCleared);
        failed
    }

    fn parse_events(&mut self, partition: u32, events: StoredEvents) -> PartitionBatch {
        let mut batch = PartitionBatch {
            partition,
            ids: Vec::new(),
            events: Vec::new(),
        };
        for (id, event) in events {
            match parse_event(&id, event) {
                Ok((done, stored)) => {
                    batch.ids.push((id, stored));
                    batch.events.push(done);
                }
                Err(why) => self.report_rejected(partition, &id, &why),
            }
        }
        batch
    }

    /// Enters the events of these partitions in one commit. Returns the debits of each partition.
    fn enter(
        &self,
        batches: &[PartitionBatch],
    ) -> Result<Vec<Vec<Option<CreditSplit>>>, StoreError> {
        let all: Vec<_> = batches.iter().flat_map(|batch| &batch.events).collect();
        let mut entered = self.ledger.changes().enter_store_events(&all)?.into_iter();
        let debits = |batch: &PartitionBatch| entered.by_ref().take(batch.events.len()).collect();
        Ok(batches.iter().map(debits).collect())
    }

    /// Corrects the store's charges for a partition's events that differ from the ledger's debits,
    /// `entered`. Returns the events to remove, each with its request.
    async fn level(
        &mut self,
        batch: PartitionBatch,
        entered: Vec<Option<CreditSplit>>,
    ) -> Result<Vec<(String, String)>, StoreError> {
        let PartitionBatch {
            partition,
            ids,
            events,
        } = batch;
        let mut cleared = Vec::new();
        for (((id, stored), done), taken) in ids.into_iter().zip(events).zip(entered) {
            let Some(taken) = taken else {
                self.report_rejected(partition, &id, "its account is not in the ledger, or a segment that may have the request is not at hand");
                continue;
            };
            let request_id = match done {
                IngestEvent::Ended(ending, _) => {
                    self.reconcile(&ending, &id, stored.minus(taken)).await?;
                    ending.request_id
                }
                // The ledger's debit is published to the store like an entry without a request.
                IngestEvent::EndedLate(ending, _) => {
                    self.lost
                        .note_report(partition, ending.at_ms, Instant::now());
                    ending.request_id
                }
                IngestEvent::Lapsed { account, .. } => {
                    self.reconcile_lapse(&account, stored.minus(taken)).await?;
                    String::new()
                }
            };
            cleared.push((id, request_id));
        }
        Ok(cleared)
    }

    /// Posts the difference to the store if the ledger debited another amount. The store may have
    /// charged the other bucket, or charged twice because it lost the first ending. `change` is the
    /// amount to credit.
    async fn reconcile(
        &self,
        ending: &Ending,
        event: &str,
        change: CreditSplit,
    ) -> Result<(), StoreError> {
        if change == CreditSplit::ZERO {
            return Ok(());
        }
        let operation = format!("ended:{}", ending.request_id);
        let (account, credited) = (ending.account.as_str(), Micro::ZERO);
        let post = PostCommand {
            operation: &operation,
            account,
            change,
            credited,
            only_free: false,
            seq: 0,
        };
        self.store
            .balances()
            .reconcile(&post, event, &ending.request_id)
            .await
            .map(drop)
    }

    /// Posts the difference like [`IngestWorker::reconcile`], for a trial whose remaining credit
    /// differs between ledger and store.
    async fn reconcile_lapse(&self, account: &str, change: CreditSplit) -> Result<(), StoreError> {
        if change == CreditSplit::ZERO {
            return Ok(());
        }
        let operation = format!("lapsed:{account}");
        let post = PostCommand {
            operation: &operation,
            account,
            change,
            credited: Micro::ZERO,
            only_free: false,
            seq: 0,
        };
        self.store.balances().post(&post).await.map(drop)
    }

    /// Logs once that an event cannot be entered. The event stays in the store for an operator.
    fn report_rejected(&mut self, partition: u32, id: &str, why: &str) {
        if self.reported.len() < MAX_REPORTED && self.reported.insert(format!("{partition} {id}")) {
            METRICS.ledger_error("strange_event");
            log::error!(
                "cannot enter event {id} of partition {partition} in the ledger: {why}; the event stays in the shared store"
            );
        }
    }
}

/// Returns the time in an event's id, which begins with its server's time in ms since 1970.
fn event_time_ms(id: &str) -> Option<i64> {
    id.split_once('-').and_then(|(ms, _)| ms.parse().ok())
}

/// Converts an event to the record to enter and the amount that the store charged. If the store
/// lacked credit that the hold had promised, because a server lost a top-up or the hold, the ledger
/// still charges that credit.
fn parse_event(id: &str, event: StoreEvent) -> Result<(IngestEvent, CreditSplit), String> {
    match event {
        StoreEvent::Ended {
            request_id,
            account,
            taken,
            writeoff,
            ending,
        } => {
            let ReceivedEnding {
                at_ms,
                paid,
                trial,
                detail,
                price,
            } = serde_json::from_str(&ending).map_err(|error| error.to_string())?;
            let promised = CreditSplit { paid, trial }
                .total()
                .minus(taken.total())
                .or_zero()
                .min(writeoff);
            let (paid, writeoff) = (taken.paid.plus(promised), writeoff.minus(promised));
            let ending = Ending {
                request_id,
                account,
                at_ms,
                paid,
                trial: taken.trial,
                writeoff,
                detail,
            };
            Ok((IngestEvent::Ended(Box::new(ending), price), taken))
        }
        StoreEvent::EndedLate {
            request_id,
            account,
            ending: text,
        } => {
            let ending: Ending = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            let ReceivedEnding { price, .. } =
                serde_json::from_str(&text).map_err(|error| error.to_string())?;
            if (&ending.request_id, &ending.account) != (&request_id, &account) {
                return Err("its request id or account is not that of its ending".into());
            }
            Ok((
                IngestEvent::EndedLate(Box::new(ending), price),
                CreditSplit::ZERO,
            ))
        }
        StoreEvent::Lapsed { account, trial } => {
            let at_ms = event_time_ms(id).ok_or("its id contains no time")?;
            Ok((
                IngestEvent::Lapsed {
                    account,
                    trial,
                    at_ms,
                },
                CreditSplit {
                    paid: Micro::ZERO,
                    trial,
                },
            ))
        }
        StoreEvent::Unreadable(why) => Err(why),
    }
}
