//! Makes the head and the body of a request leave for the vendor in one packet.
//!
//! Pingora flushes the head and writes the body after it: two packets, which wake the vendor twice.
//! So the gateway corks the connection (`tcp(7)`, `TCP_CORK`) before it writes the head, and
//! uncorks it once the body is handed over. The cork is an optimisation only: a full packet leaves
//! at once, and the kernel removes the cork by itself after 200 ms. This file must not touch a
//! connection that other requests share.

use rustix::net::sockopt::set_tcp_cork;
use std::future::poll_fn;
use std::os::fd::{BorrowedFd, RawFd};
use std::task::Poll;

/// A corked connection to a vendor: it withholds partial packets until this guard is dropped.
#[derive(Debug)]
pub struct TcpCorkGuard(RawFd);

impl TcpCorkGuard {
    /// Corks the connection. Returns `None` if the kernel does not support that.
    pub fn new(socket: RawFd) -> Option<Self> {
        set_cork(socket, true).then_some(Self(socket))
    }

    /// Uncorks the connection after the other parts of the request's task have been polled once.
    /// Pingora polls the half that writes the body in the same task, after the half that waits for
    /// the next bytes.
    pub async fn release_after_poll(self) {
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

impl Drop for TcpCorkGuard {
    fn drop(&mut self) {
        set_cork(self.0, false);
    }
}

#[expect(
    unsafe_code,
    reason = "Pingora tells of a connection to a vendor nothing but its number"
)]
fn set_cork(socket: RawFd, corked: bool) -> bool {
    // SAFETY: the borrow ends with the call. Pingora keeps the connection open while it writes. A
    // `TcpCorkGuard` that is dropped later may find its descriptor closed, which the kernel
    // rejects, or reused by another connection, whose packet then leaves in two.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    set_tcp_cork(socket, corked).is_ok()
}
