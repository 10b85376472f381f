//! Counts the pages that this process is serving, and limits their number.
//!
//! A page needs no key. So the gateway counts pages, in total and per client address. The
//! dashboard's live balance is a stream that lasts as long as the page is open, and has limits of
//! its own. This file must not read a request: `admit/page.rs` does.

use super::intake::BodyShare;
use crate::client_counts::{ClientCounts, ExceededLimit};
use base::telemetry::METRICS;
use config::Limits;
use llm_protocol::failure::{Failure, Kind};
use prometheus::IntGauge;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub struct OpenPages {
    pages: Arc<PageCounts>,
    live: Arc<PageCounts>,
}

#[derive(Default)]
struct PageCounts(Mutex<ClientCounts>);

impl PageCounts {
    fn lock(&self) -> MutexGuard<'_, ClientCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One page's slot in the counts, and the memory of its body. Dropping it releases both.
pub struct PagePermit {
    open: Arc<PageCounts>,
    client: IpAddr,
    gauge: &'static IntGauge,
    pub(super) body: BodyShare,
}

impl PagePermit {
    /// Takes a slot for a page.
    ///
    /// # Errors
    /// Returns the limit if this process or this address has the maximum number of pages open.
    pub(super) fn acquire(
        open: &OpenPages,
        is_live: bool,
        caller: PageClient,
        limits: &Limits,
    ) -> Result<Self, Failure> {
        let (open, gauge, total, per_address, failures) = if is_live {
            let kinds = (Kind::TooManyLiveStreams, Kind::TooManyLiveStreamsOfAddress);
            (
                &open.live,
                &METRICS.live_streams_open,
                limits.live_streams,
                limits.live_streams_per_address,
                kinds,
            )
        } else {
            let kinds = (Kind::TooManyPages, Kind::TooManyPagesOfAddress);
            (
                &open.pages,
                &METRICS.pages_open,
                limits.open_pages,
                limits.open_pages_per_address,
                kinds,
            )
        };
        let per_address = if caller.is_shared { 0 } else { per_address };
        open.lock()
            .enter(caller.address, per_address, total)
            .map_err(|exceeded| {
                Failure::from_kind(match exceeded {
                    ExceededLimit::Total => failures.0,
                    ExceededLimit::Address => failures.1,
                })
            })?;
        gauge.inc();
        Ok(Self {
            open: Arc::clone(open),
            client: caller.address,
            gauge,
            body: BodyShare::default(),
        })
    }

    /// Returns how many requests of this kind are open.
    pub(super) fn open_pages(&self) -> u64 {
        self.open.lock().total()
    }
}

impl Drop for PagePermit {
    fn drop(&mut self) {
        self.open.lock().leave(&self.client);
        self.gauge.dec();
    }
}

/// The client of a page. Its address may be unknown.
#[derive(Clone, Copy)]
pub(super) struct PageClient {
    pub(super) address: IpAddr,
    /// True if the address is that of a proxy that named no client.
    pub(super) is_shared: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(text: &str) -> PageClient {
        PageClient {
            address: text.parse().unwrap(),
            is_shared: false,
        }
    }

    #[test]
    fn pages_and_live_balances_have_places_of_their_own_which_are_given_back() {
        let limits = Limits {
            open_pages: 2,
            open_pages_per_address: 1,
            live_streams: 1,
            live_streams_per_address: 1,
            ..Limits::default()
        };
        let (open, one, other) = (
            OpenPages::default(),
            caller("192.0.2.1"),
            caller("192.0.2.2"),
        );
        let take = |is_live, caller| {
            PagePermit::acquire(&open, is_live, caller, &limits).map_err(|failure| failure.kind)
        };
        let first = take(false, one).unwrap();
        assert_eq!(take(false, one).err(), Some(Kind::TooManyPagesOfAddress));
        let second = take(
            false,
            PageClient {
                is_shared: true,
                ..one
            },
        )
        .expect("an address that many share");
        assert_eq!(take(false, other).err(), Some(Kind::TooManyPages));
        let live = take(true, one).expect("a live balance is not counted as a page");
        assert_eq!(
            take(true, one).err(),
            Some(Kind::TooManyLiveStreamsOfAddress)
        );
        assert_eq!(take(true, other).err(), Some(Kind::TooManyLiveStreams));
        drop((first, second, live));
        assert_eq!(
            (open.pages.lock().total(), open.live.lock().total()),
            (0, 0)
        );
        assert!(take(false, one).is_ok());
    }
}
