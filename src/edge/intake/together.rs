//! A request's head and body leave for the vendor together.
//!
//! Pingora flushes the head and writes the body behind it: two packets, and the vendor is woken
//! twice. So the connection is corked (`tcp(7)`, `TCP_CORK`) before the head is written, and let go
//! once the body was handed to it. Nothing depends on it: what fills a packet goes out at once, and
//! the kernel lets go by itself after 200 ms. Must not touch a connection that other requests
//! share.

use rustix::net::sockopt::set_tcp_cork;
use std::future::poll_fn;
use std::os::fd::{BorrowedFd, RawFd};
use std::task::Poll;

/// A connection to a vendor that holds back what does not fill a packet, until this is dropped.
#[derive(Debug)]
pub struct Corked(RawFd);

impl Corked {
    /// `None` where the system knows no such thing of this connection.
    pub fn new(socket: RawFd) -> Option<Self> {
        set(socket, true).then_some(Self(socket))
    }

    /// Lets go once whatever else the request's task does has had its turn: Pingora's half that
    /// writes the body is polled in the same task, after the half that waits for what comes next.
    pub async fn after_a_turn(self) {
        let mut had_turn = false;
        poll_fn(|context| {
            if std::mem::replace(&mut had_turn, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Corked {
    fn drop(&mut self) {
        set(self.0, false);
    }
}

#[expect(
    unsafe_code,
    reason = "Pingora tells of a connection to a vendor nothing but its number"
)]
fn set(socket: RawFd, corked: bool) -> bool {
    // SAFETY: the borrow ends with the call. Pingora has the connection open while it writes; a
    // `Corked` that is dropped later than that may find its number closed, which the system
    // refuses, or another's, whose packet then leaves in two.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    set_tcp_cork(socket, corked).is_ok()
}
