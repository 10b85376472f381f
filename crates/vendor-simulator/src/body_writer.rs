//! Writes the body of an answer, cut into pieces.
//!
//! This file must not decide whether a body is broken (`sender.rs` does).

use super::exchange::Exchange;
use super::http_message::{ClientGone, ConnectionAction, SimFraming};

pub struct SimBodyWriter<'a, 'b> {
    pub exchange: &'a mut Exchange<'b>,
    framing: SimFraming,
    /// Size of a piece, if the body is to be split.
    split: Option<usize>,
    /// Body bytes that do not yet fill a piece.
    waiting: Vec<u8>,
}

impl<'a, 'b> SimBodyWriter<'a, 'b> {
    /// Creates a writer for the body after a head with this `framing`.
    pub fn new(exchange: &'a mut Exchange<'b>, framing: SimFraming, split: Option<usize>) -> Self {
        Self {
            exchange,
            framing,
            split,
            waiting: Vec::new(),
        }
    }

    /// Writes a part of the body. Small parts are sent together, until [`Self::flush`] or
    /// [`Self::end`].
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), ClientGone> {
        let Some(size) = self.split else {
            return self.exchange.send_piece(bytes, self.framing).await;
        };
        self.waiting.extend_from_slice(bytes);
        let waiting = std::mem::take(&mut self.waiting);
        let pieces = waiting.chunks_exact(size);
        self.waiting = pieces.remainder().to_vec();
        for piece in pieces {
            self.exchange.send_piece(piece, self.framing).await?;
            self.exchange.flush().await?;
            // Yielding lets a reader in the same process receive this piece before the next one.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Sends all buffered bytes.
    pub async fn flush(&mut self) -> Result<(), ClientGone> {
        let waiting = std::mem::take(&mut self.waiting);
        self.exchange.send_piece(&waiting, self.framing).await?;
        self.exchange.flush().await
    }

    /// Ends the body as its framing requires.
    pub async fn end(mut self) -> Result<ConnectionAction, ClientGone> {
        self.flush().await?;
        self.exchange.end(self.framing).await?;
        Ok(ConnectionAction::Next)
    }

    /// Ends a body that is shorter than its head announced.
    pub async fn end_short(mut self) -> Result<ConnectionAction, ClientGone> {
        self.flush().await?;
        self.exchange.end_short().await
    }

    /// Ends the body with bytes that are invalid in its framing.
    pub async fn break_framing(mut self) -> Result<ConnectionAction, ClientGone> {
        self.flush().await?;
        self.exchange.break_framing().await?;
        Ok(ConnectionAction::Close)
    }
}
