//! The live balance: a stream of events that says what the overview shows whenever it changes.
//!
//! Each stream reads the balance four times a second (microseconds each), so a debit by any process is seen within a
//! second. Streams are counted, end with their session, and end when the sidecar closes.

use super::App;
use super::page::when;
use super::problem::Problem;
use super::session::Visitor;
use crate::billing::Balance;
use crate::clock::now_ms;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde::Serialize;
use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval};

const READ_EVERY_MS: u64 = 250;

/// The session is looked at again every so many reads: each 2 s.
const READS_PER_SESSION_CHECK: u64 = 8;

/// Streams of one account at one time; past it, 503.
const STREAMS_PER_ACCOUNT: usize = 8;

/// Streams of everybody at one time; past it, 503.
const STREAMS_MAX: usize = 4_096;

/// What the overview shows of a balance, ready to be read.
#[derive(Serialize, PartialEq, Eq)]
pub struct Shown {
    pub balance: String,
    pub held: String,
    pub available: String,
    pub trial: String,
}

impl Shown {
    pub fn of(balance: &Balance) -> Self {
        let trial = match &balance.trial {
            None => "No trial".to_owned(),
            Some(trial) if trial.active => {
                format!("Trial: {} credits left, until {}", trial.credits_left, when(trial.ends_at_ms))
            }
            Some(trial) => format!("Trial ended {}", when(trial.ends_at_ms)),
        };
        Self {
            balance: balance.balance.to_string(),
            held: balance.held.to_string(),
            available: balance.available.to_string(),
            trial,
        }
    }
}

/// How many streams each account has open.
#[derive(Default)]
pub struct Streams {
    open: Mutex<HashMap<String, usize>>,
}

/// One open stream's place in the count.
struct Place {
    streams: Arc<Streams>,
    account: String,
}

impl Place {
    fn take(streams: &Arc<Streams>, account: &str) -> Option<Self> {
        let mut open = streams.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.values().sum::<usize>() >= STREAMS_MAX {
            return None;
        }
        let count = open.entry(account.to_owned()).or_insert(0);
        if *count >= STREAMS_PER_ACCOUNT {
            return None;
        }
        *count += 1;
        Some(Self { streams: Arc::clone(streams), account: account.to_owned() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.streams.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.account) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.account);
            }
        }
    }
}

struct Live {
    app: Arc<App>,
    place: Place,
    token: String,
    closing: watch::Receiver<bool>,
    ticks: Interval,
    reads: u64,
    last: Option<Shown>,
}

impl Live {
    /// What to send now, if anything; `Err` ends the stream, and the page asks anew.
    fn read(&mut self) -> Result<Option<Event>, ()> {
        let now_ms = now_ms();
        if *self.closing.borrow() {
            return Err(());
        }
        let failed = |error| log::warn!("sidecar: live balance: {error}");
        if self.reads.is_multiple_of(READS_PER_SESSION_CHECK) {
            // Being watched does not keep a session alive.
            let session = self.app.accounts.find_session(&self.token, now_ms).map_err(failed)?;
            session.ok_or(())?;
        }
        self.reads += 1;
        let shown = Shown::of(&self.app.billing.balance(&self.place.account, now_ms).map_err(failed)?);
        if self.last.as_ref() == Some(&shown) {
            return Ok(None);
        }
        let event = Event::default().event("balance").json_data(&shown).map_err(|_| ())?;
        self.last = Some(shown);
        Ok(Some(event))
    }
}

impl Stream for Live {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            ready!(self.ticks.poll_tick(context));
            match self.read() {
                Ok(Some(event)) => return Poll::Ready(Some(Ok(event))),
                Ok(None) => {}
                Err(()) => return Poll::Ready(None),
            }
        }
    }
}

pub async fn live(State(app): State<Arc<App>>, visitor: Visitor) -> Result<Response, Problem> {
    let place = Place::take(&app.streams, &visitor.account.id).ok_or(Problem::Busy)?;
    let mut ticks = interval(Duration::from_millis(READ_EVERY_MS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let closing = app.closing.clone();
    let live = Live { app, place, token: visitor.token, closing, ticks, reads: 0, last: None };
    let mut response = Sse::new(live).keep_alive(KeepAlive::default()).into_response();
    // For a proxy in front that would otherwise collect the events.
    let name = HeaderName::from_static("x-accel-buffering");
    response.headers_mut().insert(name, HeaderValue::from_static("no"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_eight_streams_and_places_are_given_back() {
        let streams = Arc::new(Streams::default());
        let places: Vec<_> = (0..STREAMS_PER_ACCOUNT).map(|_| Place::take(&streams, "a").unwrap()).collect();
        assert!(Place::take(&streams, "a").is_none());
        assert!(Place::take(&streams, "b").is_some(), "another account has its own");
        drop(places);
        assert!(Place::take(&streams, "a").is_some());
        assert!(streams.open.lock().unwrap().is_empty(), "nothing is left behind");
    }
}
