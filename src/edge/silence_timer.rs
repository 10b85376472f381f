//! Measures the time for which a client or a vendor is silent.
//!
//! A process that was stopped, or whose machine slept, finds data in its sockets when it continues,
//! but the runtime may fire the timer before it polls the sockets. So a timer that fires late waits
//! a little longer for data. This file must not interpret the data.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Factor between the gateway's own time limits and Pingora's timers for the same wait. Pingora's
/// timers do not give ready data precedence, so they must fire later than the gateway's.
pub const BACKSTOP_FACTOR: u64 = 3;
/// Lateness of a timer above which this process is assumed not to have run.
const MIN_LATENESS: Duration = Duration::from_millis(250);
/// Time in which the runtime polls its sockets, and the tasks read from them.
const GRACE: Duration = Duration::from_millis(100);

pub struct SilenceTimer {
    sleep: Pin<Box<Sleep>>,
    deadline: Instant,
    /// The timer fired late, and now waits a little longer.
    is_in_grace: bool,
}

impl SilenceTimer {
    pub fn new(deadline: Instant) -> Self {
        Self {
            sleep: Box::pin(tokio::time::sleep_until(deadline)),
            deadline,
            is_in_grace: false,
        }
    }

    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    pub fn reset(&mut self, deadline: Instant) {
        self.sleep.as_mut().reset(deadline);
        self.deadline = deadline;
        self.is_in_grace = false;
    }
}

impl Future for SilenceTimer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.sleep.as_mut().poll(context));
            let now = Instant::now();
            if self.is_in_grace || now.duration_since(self.deadline) < MIN_LATENESS {
                return Poll::Ready(());
            }
            self.is_in_grace = true;
            self.sleep.as_mut().reset(now + GRACE);
        }
    }
}

/// Waits for `future` until a deadline. Returns `None` if the deadline passes first.
pub async fn wait_until<F: Future>(deadline: Instant, future: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = SilenceTimer::new(deadline) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{advance, sleep};

    const LIMIT: Duration = Duration::from_secs(4);

    /// Simulates a runtime that polls its sockets only after it has fired its timers.
    async fn socket_is_read() {
        sleep(Duration::from_millis(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_while_the_process_was_stopped_wins_over_the_timer() {
        let mut timer = SilenceTimer::new(Instant::now() + LIMIT);
        advance(Duration::from_secs(9)).await;
        let read = wait_until(timer.deadline(), socket_is_read()).await;
        assert!(read.is_some(), "it lay in the socket");
        // The future may be polled again with the same timer.
        let is_timeout = tokio::select! {
            biased;
            () = socket_is_read() => false,
            () = &mut timer => true,
        };
        assert!(!is_timeout);
        timer.await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_silent_meanwhile_is_given_up_after_a_moment() {
        let began = Instant::now();
        let mut timer = SilenceTimer::new(began + LIMIT);
        (&mut timer).await;
        assert_eq!(began.elapsed(), LIMIT, "a timer in time");
        timer.reset(Instant::now() + LIMIT);
        let pause = Duration::from_secs(9);
        advance(pause).await;
        timer.await;
        assert_eq!(began.elapsed(), LIMIT + pause + GRACE);
        let silent = wait_until(began, std::future::pending::<()>()).await;
        assert_eq!(silent, None);
    }
}
