//! The body of an answer on its way out: how it is cut into pieces.
//!
//! It must not know why a body is broken (`play.rs` does).

use super::exchange::{After, Exchange, Framing};
use super::http::Gone;

pub struct Sink<'a, 'b> {
    pub exchange: &'a mut Exchange<'b>,
    framing: Framing,
    /// Bytes of a piece, if the body is to be written in pieces.
    split: Option<usize>,
    /// Body bytes too few for a piece.
    waiting: Vec<u8>,
}

impl<'a, 'b> Sink<'a, 'b> {
    /// For the body behind a head that said `framing`.
    pub fn new(exchange: &'a mut Exchange<'b>, framing: Framing, split: Option<usize>) -> Self {
        Self {
            exchange,
            framing,
            split,
            waiting: Vec::new(),
        }
    }

    /// Part of a body. Small parts are sent together, until [`Self::settle`] or [`Self::end`].
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Gone> {
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
            // Lets a reader in the same process see this piece before the next one.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Sends everything that is still held back.
    pub async fn settle(&mut self) -> Result<(), Gone> {
        let waiting = std::mem::take(&mut self.waiting);
        self.exchange.send_piece(&waiting, self.framing).await?;
        self.exchange.flush().await
    }

    /// Ends the body as its framing wants it.
    pub async fn end(mut self) -> Result<After, Gone> {
        self.settle().await?;
        self.exchange.end(self.framing).await?;
        Ok(After::Next)
    }

    /// Ends a body that is shorter than its head said.
    pub async fn end_short(mut self) -> Result<After, Gone> {
        self.settle().await?;
        self.exchange.end_short().await
    }

    /// Breaks off with what is not valid in the framing.
    pub async fn break_framing(mut self) -> Result<After, Gone> {
        self.settle().await?;
        self.exchange.break_framing().await?;
        Ok(After::Close)
    }
}
