//! Reads the events that the scripts leave for the ledger.
//!
//! This file must not remove an event: `redis/ingest.rs` does.

use super::errors;
use super::reply::parse_amount;
use super::views::StoreEventLog;
use ::redis::Cmd;
use credits::money::{CreditSplit, Micro};
use ledger::StoreError;

/// An event that the ledger must enter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreEvent {
    Ended {
        request_id: String,
        account: String,
        taken: CreditSplit,
        writeoff: Micro,
        ending: String,
    },
    /// An end that was reported too late for the store to know whether it is new. The ledger
    /// decides that.
    EndedLate {
        request_id: String,
        account: String,
        ending: String,
    },
    Lapsed {
        account: String,
        trial: Micro,
    },
    /// The event was not written by the gateway. The text is the reason.
    Unreadable(String),
}

/// Events in order, with their ids.
pub type StoredEvents = Vec<(String, StoreEvent)>;
/// Events in the form of the server's reply: names and values.
type RawEvents = Vec<(String, Vec<(String, String)>)>;

impl StoreEventLog<'_> {
    /// Returns the events of a partition after the event `after`, in order, with their ids. "0"
    /// stands for the beginning.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn events(
        &self,
        partition: u32,
        after: &str,
        limit: usize,
    ) -> Result<StoredEvents, StoreError> {
        let mut read = Cmd::new();
        read.arg("XRANGE")
            .arg(self.0.key(partition, "ev", ""))
            .arg(format!("({after}"))
            .arg("+")
            .arg("COUNT")
            .arg(limit);
        Ok(parse_events(self.0.query("read events", &read).await?))
    }

    /// Returns at most `limit` first events of each of these partitions. The partitions must be of
    /// one group of [`super::client::SharedStore::partition_groups`].
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn first_events(
        &self,
        partitions: &[u32],
        limit: usize,
    ) -> Result<Vec<(u32, StoredEvents)>, StoreError> {
        if let [partition] = partitions {
            return Ok(vec![(
                *partition,
                self.events(*partition, "0", limit).await?,
            )]);
        }
        let streams: Vec<_> = partitions
            .iter()
            .map(|partition| self.0.key(*partition, "ev", ""))
            .collect();
        let mut read = Cmd::new();
        read.arg("XREAD")
            .arg("COUNT")
            .arg(limit)
            .arg("STREAMS")
            .arg(&streams)
            .arg(vec!["0"; streams.len()]);
        let found: Option<Vec<(String, RawEvents)>> = match self.0.query("read events", &read).await
        {
            // An ACL that was made for an older version lacks this command.
            Err(error) if errors::reply_code(&error) == Some("NOPERM") => {
                return self.first_events_of_each(partitions, limit).await;
            }
            found => found?,
        };
        let of = |stream: &String| {
            let index = streams.iter().position(|name| name == stream)?;
            partitions.get(index).copied()
        };
        Ok(found
            .unwrap_or_default()
            .into_iter()
            .filter_map(|(stream, events)| Some((of(&stream)?, parse_events(events))))
            .collect())
    }

    async fn first_events_of_each(
        &self,
        partitions: &[u32],
        limit: usize,
    ) -> Result<Vec<(u32, StoredEvents)>, StoreError> {
        let mut all = Vec::new();
        for partition in partitions {
            all.push((*partition, self.events(*partition, "0", limit).await?));
        }
        Ok(all)
    }
}

fn parse_events(events: RawEvents) -> StoredEvents {
    // An unreadable event must not block the others. The caller decides about it.
    let read = |fields| {
        parse_event(fields).unwrap_or_else(|error| StoreEvent::Unreadable(error.to_string()))
    };
    events
        .into_iter()
        .map(|(id, fields)| (id, read(fields)))
        .collect()
}

fn parse_event(fields: Vec<(String, String)>) -> Result<StoreEvent, StoreError> {
    let field = |name: &str| {
        let found = fields
            .iter()
            .find(|(field, _)| field == name)
            .map(|(_, value)| value.clone());
        found.ok_or_else(|| {
            let known: Vec<_> = fields.iter().map(|(field, _)| field.as_str()).collect();
            StoreError::Unusable(format!(
                "an event of the shared store has no {name}; its fields are: {}",
                known.join(", ")
            ))
        })
    };
    match fields.first().map(|(name, _)| name.as_str()) {
        Some("lapse") => {
            return Ok(StoreEvent::Lapsed {
                account: field("account")?,
                trial: parse_amount(&field("trial")?)?,
            });
        }
        Some("late") => {
            let (request_id, account, ending) =
                (field("late")?, field("account")?, field("ending")?);
            return Ok(StoreEvent::EndedLate {
                request_id,
                account,
                ending,
            });
        }
        _ => {}
    }
    Ok(StoreEvent::Ended {
        request_id: field("request")?,
        account: field("account")?,
        taken: CreditSplit {
            paid: parse_amount(&field("paid")?)?,
            trial: parse_amount(&field("trial")?)?,
        },
        writeoff: parse_amount(&field("writeoff")?)?,
        ending: field("ending")?,
    })
}
