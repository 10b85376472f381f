//! Consumes the store's events: reads them, enters them into the ledger in one commit, then clears
//! them.
//!
//! Each pass reads a partition's events from the beginning. An event that was entered but not
//! cleared is read again, and the ledger recognizes it. This holds whichever server answers, and
//! however old its first event is. Must not clear an event that the ledger does not have.

use super::Feed;
use crate::catalog::Price;
use crate::clock;
use crate::failpoint::{self, Point};
use crate::money::{Micro, Parts};
use crate::store::StoreError;
use crate::store::ledger::{Detail, Done, Ending};
use crate::store::redis::{Event, PARTITIONS, Post};
use crate::telemetry::METRICS;
use serde::Deserialize;

/// Maximum number of events in one commit.
const BATCH: usize = 512;
/// Maximum number of commits for one partition before the next partition's turn.
const BATCHES: usize = 16;
/// Maximum number of rejected events to remember as reported.
const REPORTED_MOST: usize = 10_000;

/// The edge's report of a request's end; the store adds the amounts.
#[derive(Debug, Deserialize)]
struct Told {
    at_ms: i64,
    /// Credits that the request's hold covered: its admission promised that much.
    #[serde(default)]
    paid: Micro,
    #[serde(default)]
    trial: Micro,
    detail: Detail,
    /// Price of the version in the detail, in case the ledger does not have it yet.
    #[serde(default)]
    price: Option<Box<Price>>,
}

/// Size and age of the events that a pass found.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    events: i64,
    oldest_ms: Option<i64>,
    /// Whether there were more events than one pass processes.
    pub is_left: bool,
}

impl Backlog {
    fn saw(&mut self, events: usize, first_ms: Option<i64>) {
        self.events = self
            .events
            .saturating_add(i64::try_from(events).unwrap_or(i64::MAX));
        self.oldest_ms = [self.oldest_ms, first_ms].into_iter().flatten().min();
    }
}

impl Feed {
    pub(super) async fn follow_all(&mut self) -> Result<(), StoreError> {
        self.backlog = Backlog::default();
        // If one node of a cluster is unreachable, the partitions of the others are still consumed.
        let mut failed = Ok(());
        for partition in 0..PARTITIONS {
            failed = failed.and(self.follow(partition).await);
        }
        let Backlog {
            events, oldest_ms, ..
        } = self.backlog;
        METRICS.journal_pending.set(events);
        let age_ms = oldest_ms.map_or(0, |oldest| clock::now_ms().saturating_sub(oldest).max(0));
        METRICS.journal_oldest_seconds.set(age_ms / 1_000);
        failed
    }

    /// Enters a partition's events into the ledger, until the last event or the end of the
    /// partition's turn.
    pub(super) async fn follow(&mut self, partition: u32) -> Result<(), StoreError> {
        let mut after = "0".to_owned();
        for _ in 0..BATCHES {
            let events = self.store.events(partition, &after, BATCH).await?;
            let (Some((first, _)), Some((last, _))) = (events.first(), events.last()) else {
                return Ok(());
            };
            self.backlog.saw(events.len(), told_at_ms(first));
            after.clone_from(last);
            let is_last = events.len() < BATCH;
            self.enter(partition, events).await?;
            if is_last {
                return Ok(());
            }
        }
        self.backlog.is_left = true;
        Ok(())
    }

    async fn enter(
        &mut self,
        partition: u32,
        events: Vec<(String, Event)>,
    ) -> Result<(), StoreError> {
        let (mut ids, mut all) = (Vec::new(), Vec::new());
        for (id, event) in events {
            match done(&id, event) {
                Ok((done, stored)) => {
                    ids.push((id, stored));
                    all.push(done);
                }
                Err(why) => self.report(partition, &id, &why),
            }
        }
        if all.is_empty() {
            return Ok(());
        }
        failpoint::pass(Point::EventsRead);
        let entered = self.ledger.enter_shared(&all)?;
        failpoint::pass(Point::EventsEntered);
        let (mut events, mut requests) = (Vec::new(), Vec::new());
        for (((id, stored), done), taken) in ids.into_iter().zip(all).zip(entered) {
            let Some(taken) = taken else {
                self.report(partition, &id, "its account is not in the ledger");
                continue;
            };
            match done {
                Done::Ended(ending, _) => {
                    self.level(&ending, stored.minus(taken)).await?;
                    requests.push(ending.request_id);
                }
                // The debit in the ledger is published to the store like an entry without a
                // request.
                Done::EndedLate(ending, _) => requests.push(ending.request_id),
                Done::Lapsed { account, .. } => {
                    self.level_lapse(&account, stored.minus(taken)).await?
                }
            }
            events.push(id);
        }
        self.store.clear(partition, &events, &requests).await?;
        failpoint::pass(Point::EventsCleared);
        Ok(())
    }

    /// The ledger wins. If the store charged a different amount (from the other bucket; or twice,
    /// because it lost the first ending), posts the difference back to the store. `change` is the
    /// amount to credit.
    async fn level(&self, ending: &Ending, change: Parts) -> Result<(), StoreError> {
        if change == Parts::ZERO {
            return Ok(());
        }
        let operation = format!("ended:{}", ending.request_id);
        let (account, credited) = (ending.account.as_str(), Micro::ZERO);
        let post = Post {
            operation: &operation,
            account,
            change,
            credited,
            only_free: false,
            seq: 0,
        };
        self.store.level(&post, &ending.request_id).await.map(drop)
    }

    /// Like [`IngestWorker::reconcile`], for a trial whose remaining credit differs between ledger
    /// and store.
    async fn level_lapse(&self, account: &str, change: Parts) -> Result<(), StoreError> {
        if change == Parts::ZERO {
            return Ok(());
        }
        let operation = format!("lapsed:{account}");
        let post = Post {
            operation: &operation,
            account,
            change,
            credited: Micro::ZERO,
            only_free: false,
            seq: 0,
        };
        self.store.post(&post).await.map(drop)
    }

    /// Logs once that an event cannot be entered. The event stays in the store for an operator to
    /// examine.
    fn report(&mut self, partition: u32, id: &str, why: &str) {
        if self.reported.len() < REPORTED_MOST && self.reported.insert(format!("{partition} {id}"))
        {
            METRICS.ledger_error("strange_event");
            log::error!(
                "enter event {id} of partition {partition}: {why}; it stays in the shared store"
            );
        }
    }
}

/// The time in an event's id, which begins with its server's time.
fn told_at_ms(id: &str) -> Option<i64> {
    id.split_once('-').and_then(|(ms, _)| ms.parse().ok())
}

/// Converts an event to the record to enter and the amount that the store charged. If the store
/// lacked credit that the hold had promised (because a server lost a top-up or the hold), the
/// ledger still charges it.
fn done(id: &str, event: Event) -> Result<(Done, Parts), String> {
    match event {
        Event::Ended {
            request_id,
            account,
            taken,
            writeoff,
            ending,
        } => {
            let Told {
                at_ms,
                paid,
                trial,
                detail,
                price,
            } = serde_json::from_str(&ending).map_err(|error| error.to_string())?;
            let promised = Parts { paid, trial }
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
            Ok((Done::Ended(Box::new(ending), price), taken))
        }
        Event::EndedLate {
            request_id,
            account,
            ending: text,
        } => {
            let ending: Ending = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            let Told { price, .. } =
                serde_json::from_str(&text).map_err(|error| error.to_string())?;
            if (&ending.request_id, &ending.account) != (&request_id, &account) {
                return Err("it tells of another request".into());
            }
            Ok((Done::EndedLate(Box::new(ending), price), Parts::ZERO))
        }
        Event::Lapsed { account, trial } => {
            let at_ms = told_at_ms(id).ok_or("its id tells no time")?;
            Ok((
                Done::Lapsed {
                    account,
                    trial,
                    at_ms,
                },
                Parts {
                    paid: Micro::ZERO,
                    trial,
                },
            ))
        }
        Event::Unreadable(why) => Err(why),
    }
}
