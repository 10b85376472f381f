//! A timer for how long a client or a vendor is silent.
//!
//! If this process could not run when the timer was due (it was stopped, or its machine slept),
//! data that came meanwhile lies in the socket, and the runtime may fire the timer before it looks
//! at the socket. So a timer that fires late waits a little longer: ready data wins. Must not know
//! what the data is.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// How many times the gateway's own limit Pingora's timers wait for a client's body or a vendor.
/// They cannot wait for ready data, so they must not be the ones that decide.
pub const BACKSTOP_FACTOR: u64 = 3;
/// A timer that fires so much later than it was due shows that this process did not run.
const MIN_LATENESS: Duration = Duration::from_millis(250);
/// Time in which the runtime looks at its sockets, and their tasks read from them.
const GRACE: Duration = Duration::from_millis(100);

pub struct SilenceTimer {
    sleep: Pin<Box<Sleep>>,
    deadline: Instant,
    /// It fired late, and waits a little longer.
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

/// Waits for `future` until a deadline; `None` if it is not ready by then.
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

    /// A runtime that looks at its sockets only after it has fired its timers.
    async fn socket_is_read() {
        sleep(Duration::from_millis(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_while_the_process_was_stopped_wins_over_the_timer() {
        let mut timer = SilenceTimer::new(Instant::now() + LIMIT);
        advance(Duration::from_secs(9)).await;
        let read = wait_until(timer.deadline(), socket_is_read()).await;
        assert!(read.is_some(), "it lay in the socket");
        // Whoever waits may be polled again with the same timer.
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
