//! Implements a bounded queue between threads that allocates per queued item.
//!
//! The bounded channel of the standard library preallocates its whole capacity: two megabytes in a
//! gateway that has not received a request yet. This file must not depend on the items.
//!
//! Other crates are no replacement: `flume` drops queued items only once all senders are gone and
//! never releases its memory, tokio's channel cannot receive with a timeout on a plain thread, and
//! crossbeam's bounded channel preallocates too.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvError, RecvTimeoutError, SendError, TrySendError};
use std::time::Duration;

/// Creates a queue that holds at most `capacity` items.
pub fn bounded_queue<T>(capacity: usize) -> (QueueSender<T>, QueueReceiver<T>) {
    #[expect(clippy::disallowed_methods, reason = "this file puts the limit on it")]
    let (sender, receiver) = mpsc::channel();
    let queued = Arc::new(AtomicUsize::new(0));
    (
        QueueSender {
            sender,
            queued: Arc::clone(&queued),
            capacity,
        },
        QueueReceiver { receiver, queued },
    )
}

pub struct QueueSender<T> {
    sender: mpsc::Sender<T>,
    queued: Arc<AtomicUsize>,
    capacity: usize,
}

/// The only consumer of the queue. Once it is dropped, senders can no longer add items.
pub struct QueueReceiver<T> {
    receiver: mpsc::Receiver<T>,
    queued: Arc<AtomicUsize>,
}

impl<T> Clone for QueueSender<T> {
    fn clone(&self) -> Self {
        Self {
            sender: self.sender.clone(),
            queued: Arc::clone(&self.queued),
            capacity: self.capacity,
        }
    }
}

impl<T> QueueSender<T> {
    /// Adds an item, or fails at once.
    ///
    /// # Errors
    /// Returns the item if the queue is full or the receiver was dropped.
    pub fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        // Count before sending, so that the queue never holds more items than were counted.
        if self.queued.fetch_add(1, Ordering::Relaxed) >= self.capacity {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            return Err(TrySendError::Full(item));
        }
        self.sender.send(item).map_err(|SendError(item)| {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            TrySendError::Disconnected(item)
        })
    }
}

impl<T> QueueReceiver<T> {
    /// Waits for an item.
    ///
    /// # Errors
    /// Returns an error if the queue is empty and all senders were dropped.
    pub fn recv(&self) -> Result<T, RecvError> {
        self.receiver.recv().inspect(|_| self.release_slot())
    }

    /// Waits for an item, at most for the given time.
    ///
    /// # Errors
    /// Returns an error if the time has passed or the queue is empty and all senders were dropped.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        self.receiver
            .recv_timeout(timeout)
            .inspect(|_| self.release_slot())
    }

    /// Iterates over the items that are queued now and those that arrive during the iteration.
    pub fn try_iter(&self) -> impl Iterator<Item = T> {
        self.receiver.try_iter().inspect(|_| self.release_slot())
    }

    fn release_slot(&self) {
        self.queued.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_refuses_items_until_one_is_received() {
        let (sender, receiver) = bounded_queue(2);
        assert!(sender.try_send(1).is_ok() && sender.clone().try_send(2).is_ok());
        for _ in 0..3 {
            assert!(matches!(sender.try_send(3), Err(TrySendError::Full(3))));
        }
        assert_eq!(receiver.recv(), Ok(1));
        assert!(sender.try_send(4).is_ok());
        assert!(matches!(sender.try_send(5), Err(TrySendError::Full(5))));
        assert_eq!(receiver.recv_timeout(Duration::ZERO), Ok(2));
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [4]);
        assert_eq!(
            receiver.recv_timeout(Duration::ZERO),
            Err(RecvTimeoutError::Timeout)
        );
        assert!(
            sender.try_send(6).is_ok() && sender.try_send(7).is_ok() && sender.try_send(8).is_err()
        );
        drop(sender);
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [6, 7]);
        assert!(receiver.recv().is_err());
    }

    #[test]
    fn a_queued_item_is_dropped_with_the_receiver() {
        let (sender, receiver) = bounded_queue(1);
        let (done, is_done) = mpsc::sync_channel::<()>(1);
        assert!(sender.try_send(done).is_ok());
        drop(receiver);
        assert_eq!(
            is_done.try_recv(),
            Err(mpsc::TryRecvError::Disconnected),
            "a thread that waits for a reply learns that none will come"
        );
    }

    #[test]
    fn an_item_comes_back_once_the_receiver_is_gone() {
        let (sender, receiver) = bounded_queue(1);
        drop(receiver);
        for _ in 0..3 {
            assert!(matches!(
                sender.try_send("back"),
                Err(TrySendError::Disconnected("back"))
            ));
        }
    }
}
