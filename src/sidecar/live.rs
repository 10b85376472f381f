//! Streams the live overview: server-sent events with changes of the balance and the responses.
//!
//! Each stream reads the balance four times a second, so it shows a debit by any process within a
//! second. A read takes microseconds. Streams are counted, end with their session, and end when the
//! sidecar shuts down.

use super::activity::{ActivityRow, latest};
use super::display::{BalanceAmount, Credits, LiveAmount, format_time, percent};
use super::error::PageError;
use super::session::CurrentUser;
use super::spending::{SpendRate, SpendableFunds, format_time_left};
use super::state::SidecarState;
use super::stream_slots::StreamSlot;
use super::viewed_account::ViewedAccount;
use crate::billing::Balance;
use accounts::{ApiKey, ApiKeyStatus, MemberAction};
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use base::clock::now_ms;
use credits::money::Micro;
use futures_util::Stream;
use ledger::{StoreError, UsageQuery};
use serde::Serialize;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval};

const READ_INTERVAL_MS: u64 = 250;

/// Number of reads between two checks of the session: every 2 s.
const READS_PER_SESSION_CHECK: u64 = 8;

/// Number of reads between two computations of the spending totals: every second.
const READS_PER_SUM: u64 = 4;

/// Number of reads without an event after which the stream sends a heartbeat: 5 s. The page marks
/// its numbers as stale after 12 s of silence.
const READS_PER_HEARTBEAT: u64 = 20;

/// An account's values on the overview, formatted for display.
#[derive(Serialize, PartialEq, Eq)]
pub struct BalanceView {
    pub balance: String,
    pub held: String,
    pub available: String,
    pub trial: String,
    pub today: String,
    pub pace: String,
    /// Percentage of the trial's credits that is left; empty without a running trial.
    pub trial_percent: String,
    /// One digit each for key, client and first answer: `1` if done, else `0`.
    pub steps: String,
}

impl BalanceView {
    pub fn balance_amount(&self) -> LiveAmount<'_> {
        balance_amount(&self.balance)
    }

    pub fn available_amount(&self) -> LiveAmount<'_> {
        balance_amount(&self.available)
    }

    pub fn held_amount(&self) -> LiveAmount<'_> {
        balance_amount(&self.held)
    }
}

fn balance_amount(exact: &str) -> LiveAmount<'_> {
    LiveAmount { exact, decimals: 2 }
}

/// Progress of a new account on the way to its first answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstSteps {
    pub has_key: bool,
    /// True after the first answer, which implies that a client is set up.
    pub has_answer: bool,
}

impl FirstSteps {
    pub fn load(app: &SidecarState, account: &str) -> Result<Self, StoreError> {
        let has_answer = app.billing.ledger().pages().last_ending_seq(account)? > 0;
        let keys = match has_answer {
            true => Vec::new(),
            false => app.accounts.api_keys().keys(account)?,
        };
        let is_active =
            |key: &ApiKey| key.status == ApiKeyStatus::Active && !key.is_of_playground();
        Ok(Self {
            has_key: has_answer || keys.iter().any(is_active),
            has_answer,
        })
    }

    pub fn is_complete(self) -> bool {
        self.has_answer
    }

    fn text(self) -> String {
        let steps = [self.has_key, self.has_answer, self.has_answer];
        let marks = steps.map(|is_done| if is_done { '1' } else { '0' });
        marks.iter().collect()
    }
}

/// Values that change more slowly than a balance.
pub struct SpendingSnapshot {
    granted: Option<Micro>,
    pace: SpendRate,
    /// When the account was opened.
    opened_ms: i64,
    steps: FirstSteps,
    /// Reserve of a usual request, and the last response from which it is computed.
    reserve: (Micro, i64),
}

impl SpendingSnapshot {
    /// Loads the values. Parts of the `former` snapshot that did not change are reused.
    pub fn load(
        app: &SidecarState,
        account: &str,
        former: Option<&Self>,
        now_ms: i64,
    ) -> Result<Self, StoreError> {
        let billing = &app.billing;
        let last = billing.ledger().pages().last_ending_seq(account)?;
        let known = former
            .map(|former| former.reserve)
            .filter(|(_, seq)| *seq == last);
        let reserve = match known {
            Some(known) => known,
            None => {
                let usual = billing
                    .pages()
                    .usual_reserve(account, &app.settings.load())?;
                (usual.credits, last)
            }
        };
        let spent = billing
            .ledger()
            .pages()
            .hourly_spend(account, SpendRate::first_hour(now_ms))?;
        let opened_ms = match former {
            Some(former) => former.opened_ms,
            None => app.accounts.find(account)?.map_or(0, |it| it.created_at_ms),
        };
        let pace = SpendRate::new(&spent, opened_ms, now_ms);
        let has_forecast = match former {
            Some(former) if former.pace.has_forecast() => true,
            _ => {
                let earlier = UsageQuery::new(SpendRate::forecast_hours(now_ms));
                let used = billing.ledger().pages().usage(account, &earlier, None, 1)?;
                used.first().is_some_and(|used| used.sum.responses > 0)
            }
        };
        Ok(Self {
            granted: billing.ledger().pages().trial_granted(account)?,
            pace: pace.with_forecast(has_forecast),
            opened_ms,
            steps: FirstSteps::load(app, account)?,
            reserve,
        })
    }

    pub fn to_view(&self, balance: &Balance, now_ms: i64) -> BalanceView {
        let trial = match &balance.trial {
            None => "No trial".to_owned(),
            Some(trial) if trial.active => {
                let granted = self.granted.unwrap_or(trial.credits_left);
                let left = format_time_left(trial.ends_at_ms.saturating_sub(now_ms));
                format!(
                    "Trial: {left} left, {} of {} credits, until {}",
                    BalanceAmount(trial.credits_left).text(),
                    BalanceAmount(granted).text(),
                    format_time(trial.ends_at_ms)
                )
            }
            Some(trial) => format!("Trial ended {}", format_time(trial.ends_at_ms)),
        };
        let active = balance.trial.as_ref().filter(|trial| trial.active);
        let trial_percent = active.map(|trial| {
            let micro = |amount: Micro| amount.or_zero().get().unsigned_abs();
            let granted = self.granted.unwrap_or(trial.credits_left);
            percent(micro(trial.credits_left), micro(granted)).to_string()
        });
        BalanceView {
            balance: balance.balance.to_string(),
            held: balance.held.to_string(),
            available: balance.available.to_string(),
            trial,
            today: Credits(self.pace.today).text(),
            pace: self.pace.describe(
                &SpendableFunds {
                    available: balance.available,
                    reserve: self.reserve.0,
                    trial: active.map(|trial| (trial.credits_left, trial.ends_at_ms)),
                },
                now_ms,
            ),
            trial_percent: trial_percent.unwrap_or_default(),
            steps: self.steps.text(),
        }
    }
}

/// Renders the latest responses as a fragment of the page.
#[derive(Template)]
#[template(path = "rows.html")]
struct LatestRowsFragment {
    rows: Vec<ActivityRow>,
}

struct LiveStream {
    app: Arc<SidecarState>,
    _slot: StreamSlot,
    /// Id of the account that is shown.
    account: String,
    token: String,
    closing: watch::Receiver<bool>,
    ticks: Interval,
    reads: u64,
    snapshot: Option<SpendingSnapshot>,
    last: Option<BalanceView>,
    /// Position of the latest response that was sent.
    last_ending: Option<i64>,
    /// Number of reads since the last event.
    silent: u64,
}

impl LiveStream {
    /// Returns the next event, if there is one. `Err` ends the stream, and the page reconnects.
    fn next_event(&mut self) -> Result<Option<Event>, ()> {
        let now_ms = now_ms();
        if *self.closing.borrow() {
            return Err(());
        }
        let failed = |error| log::warn!("sidecar: cannot read the live balance: {error}");
        if self.reads.is_multiple_of(READS_PER_SESSION_CHECK) {
            // An open stream does not prolong its session.
            let session = self
                .app
                .accounts
                .logins()
                .find_session(&self.token, now_ms)
                .map_err(failed)?;
            let session = session.ok_or(())?;
            let account = &self.account;
            let may_see =
                session.account.id == *account && session.role.may(MemberAction::SeeUsage);
            if !may_see && session.person.id != *account {
                return Err(());
            }
        }
        if self.snapshot.is_none() || self.reads.is_multiple_of(READS_PER_SUM) {
            let former = self.snapshot.as_ref();
            let snapshot = SpendingSnapshot::load(&self.app, &self.account, former, now_ms);
            self.snapshot = Some(snapshot.map_err(failed)?);
        }
        self.reads += 1;
        self.silent += 1;
        let event = match self.balance_update(now_ms).map_err(failed)? {
            Some(shown) => Some(Event::default().event("balance").json_data(shown)),
            None => self
                .latest_rows_update()
                .map_err(failed)?
                .map(|rows| Event::default().event("responses").json_data(rows)),
        };
        let event = event.or_else(|| {
            // A page that receives nothing for longer marks its numbers as stale.
            (self.silent >= READS_PER_HEARTBEAT)
                .then(|| Ok(Event::default().event("beat").data("")))
        });
        self.silent = if event.is_some() { 0 } else { self.silent };
        event.transpose().map_err(|_| ())
    }

    fn balance_update(&mut self, now_ms: i64) -> Result<Option<&BalanceView>, StoreError> {
        let balance = self.app.billing.balance(&self.account, now_ms)?;
        let Some(snapshot) = &self.snapshot else {
            return Ok(None);
        };
        let shown = snapshot.to_view(&balance, now_ms);
        if self.last.as_ref() == Some(&shown) {
            return Ok(None);
        }
        Ok(Some(self.last.insert(shown)))
    }

    /// Returns the latest responses as HTML, if there is a new one. The template escapes values.
    fn latest_rows_update(&mut self) -> Result<Option<String>, StoreError> {
        let last = self
            .app
            .billing
            .ledger()
            .pages()
            .last_ending_seq(&self.account)?;
        if self.last_ending.replace(last) == Some(last) || last == 0 {
            return Ok(None);
        }
        let rows = LatestRowsFragment {
            rows: latest(&self.app, &ViewedAccount::own(&self.account))?,
        };
        Ok(rows.render().ok())
    }
}

impl Stream for LiveStream {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            ready!(self.ticks.poll_tick(context));
            match self.next_event() {
                Ok(Some(event)) => return Poll::Ready(Some(Ok(event))),
                Ok(None) => {}
                Err(()) => return Poll::Ready(None),
            }
        }
    }
}

pub async fn live(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
) -> Result<Response, PageError> {
    user.require(MemberAction::SeeUsage)?;
    let slot = StreamSlot::try_acquire(&app.streams, &user.person.id, &app.settings.load().limits)
        .ok_or(PageError::Busy)?;
    let mut ticks = interval(Duration::from_millis(READ_INTERVAL_MS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let closing = app.closing.clone();
    let live = LiveStream {
        app,
        _slot: slot,
        account: user.account.id,
        token: user.token,
        closing,
        ticks,
        reads: 0,
        snapshot: None,
        last: None,
        last_ending: None,
        silent: 0,
    };
    let mut response = Sse::new(live)
        .keep_alive(KeepAlive::default())
        .into_response();
    // The header keeps a reverse proxy from buffering the events.
    let name = HeaderName::from_static("x-accel-buffering");
    response
        .headers_mut()
        .insert(name, HeaderValue::from_static("no"));
    Ok(response)
}
