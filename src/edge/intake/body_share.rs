//! Counts the memory that request bodies take: in this process, and per account and client
//! connection.
//!
//! The counts cover bytes that have arrived, not bytes that a client declared: a client that
//! declares a large body and sends little takes no memory from others. This file must not read
//! bodies.

use super::body_limits::BodyLimits;
use base::telemetry::METRICS;
use llm_protocol::failure::{Failure, Kind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of request body bytes that the whole process, one account or one connection holds.
pub type BodyBytes = Arc<AtomicU64>;

/// The counters to which the bytes of one request belong.
#[derive(Default)]
pub struct BodyHolders {
    pub process: BodyBytes,
    pub account: BodyBytes,
    /// `None` for the connection of a trusted proxy, which carries the requests of many clients.
    pub connection: Option<BodyBytes>,
}

/// The bytes that one request holds. Dropping the share releases them.
#[derive(Default)]
pub struct BodyShare {
    holders: BodyHolders,
    limits: ShareLimits,
    bytes: u64,
}

/// Maximum number of bytes per holder.
#[derive(Debug, Clone, Copy, Default)]
struct ShareLimits {
    process: u64,
    account: u64,
    connection: u64,
}

impl ShareLimits {
    /// Computes the limits. Each share has space for at least one body of the maximum size.
    fn new(limits: &BodyLimits) -> Self {
        let process = limits.bodies_in_flight_bytes;
        let part = |percent: u64| {
            (process / 100)
                .saturating_mul(percent)
                .max(limits.body_bytes)
        };
        Self {
            process,
            account: part(limits.account_bodies_percent),
            connection: part(limits.connection_bodies_percent),
        }
    }
}

impl BodyShare {
    pub fn new(holders: BodyHolders, limits: &BodyLimits) -> Self {
        Self {
            holders,
            limits: ShareLimits::new(limits),
            bytes: 0,
        }
    }

    /// Raises the count of a request to `bytes`. A translation may be longer than the original
    /// body, and the gateway may keep both.
    ///
    /// # Errors
    /// Returns the errors of [`BodyShare::grow`].
    pub fn grow_to(&mut self, bytes: u64) -> Result<(), Failure> {
        match bytes.checked_sub(self.bytes) {
            Some(more) if more > 0 => self.grow(more),
            _ => Ok(()),
        }
    }

    /// Counts `bytes` more. After an error they stay counted until the share is dropped.
    ///
    /// # Errors
    /// Returns 429 if the account or the connection holds more than its share, and 503 if the
    /// process holds too much.
    pub fn grow(&mut self, bytes: u64) -> Result<(), Failure> {
        self.bytes = self.bytes.saturating_add(bytes);
        METRICS.bodies_in_flight_bytes.add(gauge_value(bytes));
        let add = |held: &AtomicU64| {
            held.fetch_add(bytes, Ordering::AcqRel)
                .saturating_add(bytes)
        };
        let connection = self.holders.connection.as_deref().map(add);
        let account = add(&self.holders.account);
        self.check(connection, account, add(&self.holders.process), self.bytes)
    }

    /// Counts the memory that a job on the body needs, while the job runs.
    ///
    /// # Errors
    /// Returns the errors of [`BodyShare::grow`], or the job's own error.
    pub fn run_with_extra<T>(
        &mut self,
        bytes: u64,
        job: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.grow(bytes)?;
        let outcome = job();
        self.shrink(bytes);
        outcome
    }

    /// Releases `bytes` that [`BodyShare::grow`] counted.
    pub fn shrink(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        METRICS.bodies_in_flight_bytes.sub(gauge_value(bytes));
        let BodyHolders {
            process,
            account,
            connection,
        } = &self.holders;
        for held in [Some(process), Some(account), connection.as_ref()]
            .into_iter()
            .flatten()
        {
            held.fetch_sub(bytes, Ordering::AcqRel);
        }
    }

    /// Checks whether a body of this declared length would fit beside the bytes that are held now.
    /// The check itself counts nothing.
    ///
    /// # Errors
    /// Returns the errors of [`BodyShare::grow`].
    pub fn check_declared(&self, bytes: u64) -> Result<(), Failure> {
        let with = |held: &AtomicU64| held.load(Ordering::Acquire).saturating_add(bytes);
        let connection = self.holders.connection.as_deref().map(with);
        let holders = &self.holders;
        self.check(
            connection,
            with(&holders.account),
            with(&holders.process),
            self.bytes.saturating_add(bytes),
        )
    }

    /// Checks the limit of one holder. A request whose account or connection holds nothing else may
    /// exceed their shares: a share divides the memory among several requests, and must not refuse
    /// a request that would fit alone.
    fn check(
        &self,
        connection: Option<u64>,
        account: u64,
        process: u64,
        own: u64,
    ) -> Result<(), Failure> {
        let ShareLimits {
            process: of_process,
            account: of_account,
            connection: of_connection,
        } = self.limits;
        if connection.is_some_and(|held| held > own && held > of_connection) {
            return Err(share_exceeded(
                Kind::ConnectionBodies,
                "client connection",
                of_connection,
            ));
        }
        if account > own && account > of_account {
            return Err(share_exceeded(Kind::AccountBodies, "account", of_account));
        }
        if process > of_process {
            Err(Failure::from_kind(Kind::BodiesFull))
        } else {
            Ok(())
        }
    }
}

fn share_exceeded(kind: Kind, whose: &str, bytes: u64) -> Failure {
    let message = format!(
        "The running requests of this {whose} already have {bytes} bytes of request bodies, the limit. Try again when one of them has ended."
    );
    Failure::new(kind, message)
}

fn gauge_value(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn limits(body_bytes: u64) -> BodyLimits {
        BodyLimits {
            body_bytes,
            bodies_in_flight_bytes: 16_000,
            account_bodies_percent: 25,
            connection_bodies_percent: 6,
            body_read: Duration::from_secs(1),
            body_bytes_per_second: 0,
            body_rate: Duration::from_secs(1),
        }
    }

    #[derive(Default)]
    struct ProcessBodies(BodyBytes);

    impl ProcessBodies {
        fn share(
            &self,
            account: &BodyBytes,
            connection: Option<&BodyBytes>,
            body_bytes: u64,
        ) -> BodyShare {
            let holders = BodyHolders {
                process: Arc::clone(&self.0),
                account: Arc::clone(account),
                connection: connection.map(Arc::clone),
            };
            BodyShare::new(holders, &limits(body_bytes))
        }

        fn held(&self) -> u64 {
            self.0.load(Ordering::Acquire)
        }
    }

    fn kind(outcome: Result<(), Failure>) -> Option<Kind> {
        outcome.err().map(|failure| failure.kind)
    }

    #[test]
    fn an_account_holds_a_quarter_of_the_room_and_gives_it_back() {
        let (bodies, account, other) = (
            ProcessBodies::default(),
            BodyBytes::default(),
            BodyBytes::default(),
        );
        let mut first = bodies.share(&account, None, 1);
        assert_eq!(kind(first.grow(3_000)), None);
        let mut second = bodies.share(&account, None, 1);
        assert_eq!(kind(second.check_declared(1_000)), None);
        assert_eq!(
            kind(second.check_declared(1_001)),
            Some(Kind::AccountBodies)
        );
        assert_eq!(kind(second.grow(1_000)), None, "at the limit");
        assert_eq!(kind(second.grow(1)), Some(Kind::AccountBodies));
        assert_eq!(
            kind(bodies.share(&other, None, 1).grow(4_000)),
            None,
            "another account has its own share"
        );
        drop(second);
        assert_eq!(
            (bodies.held(), account.load(Ordering::Acquire)),
            (3_000, 3_000)
        );
        assert_eq!(kind(bodies.share(&account, None, 1).grow(1_000)), None);
        drop(first);
        assert_eq!(
            (
                bodies.held(),
                account.load(Ordering::Acquire),
                other.load(Ordering::Acquire)
            ),
            (0, 0, 0)
        );
    }

    #[test]
    fn a_connection_holds_a_sixteenth_and_the_process_no_more_than_the_room() {
        let (bodies, account, connection) = (
            ProcessBodies::default(),
            BodyBytes::default(),
            BodyBytes::default(),
        );
        let mut first = bodies.share(&account, Some(&connection), 1);
        assert_eq!(kind(first.grow(900)), None);
        assert_eq!(
            kind(bodies.share(&account, Some(&connection), 1).grow(61)),
            Some(Kind::ConnectionBodies)
        );
        assert_eq!(
            kind(bodies.share(&account, Some(&connection), 1).grow(60)),
            None
        );
        assert_eq!(
            kind(
                bodies
                    .share(&account, Some(&BodyBytes::default()), 1)
                    .grow(61)
            ),
            None,
            "another connection"
        );
        let shares: Vec<_> = (0..4)
            .map(|_| {
                let mut share = bodies.share(&BodyBytes::default(), None, 1);
                assert_eq!(kind(share.grow(3_000)), None);
                share
            })
            .collect();
        let mut last = bodies.share(&BodyBytes::default(), None, 1);
        assert_eq!(
            kind(last.grow(3_100)),
            None,
            "the room is full to the last byte"
        );
        assert_eq!(kind(last.grow(1)), Some(Kind::BodiesFull));
        drop((first, shares, last));
        assert_eq!((bodies.held(), connection.load(Ordering::Acquire)), (0, 0));
    }

    #[test]
    fn one_body_of_the_largest_size_fits_and_so_does_whatever_is_alone() {
        let (bodies, account, connection) = (
            ProcessBodies::default(),
            BodyBytes::default(),
            BodyBytes::default(),
        );
        let mut small = bodies.share(&account, Some(&connection), 5_000);
        assert_eq!(kind(small.grow(10)), None);
        let mut large = bodies.share(&account, Some(&connection), 5_000);
        assert_eq!(
            kind(large.grow(4_990)),
            None,
            "a share bears one body of the largest size"
        );
        assert_eq!(kind(large.grow(1)), Some(Kind::ConnectionBodies));
        drop((small, large));
        let mut alone = bodies.share(&account, Some(&connection), 5_000);
        assert_eq!(
            kind(alone.grow(16_000)),
            None,
            "with its translation it may be longer"
        );
        assert_eq!(kind(alone.grow(1)), Some(Kind::BodiesFull));
    }
}
