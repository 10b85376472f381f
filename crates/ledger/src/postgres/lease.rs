//! Takes, renews and releases the lease of the holder.
//!
//! The server's clock alone decides when a lease has expired. Both domains have the same holder and
//! the same epoch. This file must not decide when to take the lease: `app/standby.rs` does.

use super::home::PostgresHome;
use super::model::Domain;
use super::read;
use super::server::check_commits_wait;
use super::session::PostgresSession;
use crate::StoreError;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Duration of a lease. The holder renews it every third of this time.
pub const LEASE: Duration = Duration::from_secs(10);

const TAKE: &str = "UPDATE holding SET epoch = epoch + 1, holder = $1, address = $2,
      lease_until = clock_timestamp() + $3::bigint * interval '1 millisecond'
    WHERE lease_until < clock_timestamp() OR holder = $1 AND (address = $2 OR address = '' OR $2 = '')
    RETURNING epoch";

const SET_FORMAT: &str =
    "UPDATE holding SET format = $3 WHERE domain = $1 AND epoch = $2 AND format < $3";

const RENEW: &str =
    "UPDATE holding SET lease_until = clock_timestamp() + $2::bigint * interval '1 millisecond'
    WHERE epoch = $1";

const SET_ADDRESS: &str = "UPDATE holding SET address = $2 WHERE epoch = $1 AND address <> $2";

const RELEASE: &str = "UPDATE holding SET lease_until = '-infinity' WHERE epoch = $1";

impl PostgresHome {
    /// Takes the lease for the data directory with the id `holder`, and returns its epoch. `held`
    /// is the epoch in which the holder held the lease last; it keeps this epoch if it still has
    /// the lease. Returns `None` if another data directory has the lease.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached.
    pub fn take_lease(&self, holder: &str, held: i64) -> Result<Option<i64>, StoreError> {
        let (holder, address) = (holder.to_owned(), self.settings().address.clone());
        let asked = Instant::now();
        let taken = self.with_session("take the lease of the ledger", move |session| {
            Box::pin(take(session, holder, address, held))
        })?;
        self.set_lease_until(taken.map(|_| asked + LEASE));
        Ok(taken)
    }

    fn set_lease_until(&self, until: Option<Instant>) {
        *self
            .0
            .lease_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = until;
    }

    /// Returns whether this process still has the lease, by the time of the last renewal. A process
    /// that was stopped for long must check this before it relies on its data.
    pub fn lease_is_valid(&self) -> bool {
        let until = *self
            .0
            .lease_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Renews the lease.
    ///
    /// # Errors
    /// Returns [`StoreError::NotHolder`] if another data directory has the lease, or an error if
    /// the server cannot be reached or must not be used any more.
    pub fn renew_lease(&self, epoch: i64) -> Result<(), StoreError> {
        let asked = Instant::now();
        let require_standby = self.settings().require_standby;
        let renewed = self.with_session("renew the lease of the ledger", move |session| {
            Box::pin(async move {
                // The server's settings may have changed since the last renewal.
                session.waits_for_standby = false;
                check_commits_wait(session, require_standby).await?;
                renew(session, epoch).await
            })
        });
        match &renewed {
            Ok(()) => self.set_lease_until(Some(asked + LEASE)),
            Err(StoreError::NotHolder(_)) => self.set_lease_until(None),
            Err(_) => {}
        }
        renewed
    }

    /// Records the schema version of the holder's file.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached.
    pub fn set_format(&self, domain: Domain, epoch: i64, format: i32) -> Result<(), StoreError> {
        let operation = "record the version of the holder";
        self.with_session(operation, move |session| {
            Box::pin(async move {
                session
                    .client
                    .execute(SET_FORMAT, &[&domain.name(), &epoch, &format])
                    .await
                    .map(drop)
                    .map_err(|source| StoreError::postgres(operation, source))
            })
        })
    }

    /// Releases the lease, so that another data directory need not wait for its end.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached.
    pub fn release_lease(&self, epoch: i64) -> Result<(), StoreError> {
        let operation = "give the lease of the ledger back";
        self.with_session(operation, move |session| {
            Box::pin(async move {
                let released = session.client.execute(RELEASE, &[&epoch]).await;
                released
                    .map(drop)
                    .map_err(|source| StoreError::postgres(operation, source))
            })
        })
    }
}

fn lease_ms() -> i64 {
    i64::try_from(LEASE.as_millis()).unwrap_or(i64::MAX)
}

async fn take(
    session: &mut PostgresSession,
    holder: String,
    address: String,
    held: i64,
) -> Result<Option<i64>, StoreError> {
    let sql = |source| StoreError::postgres("take the lease of the ledger", source);
    let holding = read::holding(session, Domain::Ledger).await?;
    // A data directory copied to another machine has the same id, so compare the address too.
    let has_address =
        holding.address == address || holding.address.is_empty() || address.is_empty();
    let is_ours = holding.holder == holder && has_address;
    if is_ours && holding.epoch == held {
        session
            .client
            .execute(SET_ADDRESS, &[&held, &address])
            .await
            .map_err(sql)?;
        renew(session, held).await?;
        return Ok(Some(held));
    }
    if holding.is_live && !is_ours {
        return Ok(None);
    }
    let transaction = session.client.transaction().await.map_err(sql)?;
    let taken = transaction
        .query(TAKE, &[&holder, &address, &lease_ms()])
        .await
        .map_err(sql)?;
    // Both domains or neither must be taken. Another process may have taken one of them just now.
    let epochs: Vec<i64> = taken
        .iter()
        .map(|row| row.try_get(0))
        .collect::<Result<_, _>>()
        .map_err(sql)?;
    match epochs.as_slice() {
        [first, second] if first == second => {
            transaction.commit().await.map_err(sql)?;
            Ok(Some(*first))
        }
        _ => {
            transaction.rollback().await.map_err(sql)?;
            Ok(None)
        }
    }
}

async fn renew(session: &mut PostgresSession, epoch: i64) -> Result<(), StoreError> {
    let renewed = session
        .client
        .execute(RENEW, &[&epoch, &lease_ms()])
        .await
        .map_err(|source| StoreError::postgres("renew the lease of the ledger", source))?;
    if renewed == 2 {
        return Ok(());
    }
    Err(StoreError::NotHolder(
        "another process holds the ledger now: this one did not renew its lease in time".into(),
    ))
}
