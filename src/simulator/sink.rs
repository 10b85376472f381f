//! The body of an answer on its way out: its framing, and how it is cut into pieces.
//!
//! It must not know why a body is broken (`play.rs` does).

use super::http::{Connection, Gone};

/// How body bytes are delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Sized,
    Chunked,
}

pub struct Sink<'a> {
    pub connection: &'a mut Connection,
    framing: Framing,
    /// Bytes of a piece, if the body is to be written in pieces.
    split: Option<usize>,
    /// Body bytes too few for a piece.
    waiting: Vec<u8>,
}

impl<'a> Sink<'a> {
    /// Starts an answer; `head` ends with the last header's line end.
    pub async fn open(
        connection: &'a mut Connection,
        head: &str,
        framing: Framing,
        split: Option<usize>,
    ) -> Result<Self, Gone> {
        connection.push(head.as_bytes()).await?;
        connection.push(b"\r\n").await?;
        Ok(Self { connection, framing, split, waiting: Vec::new() })
    }

    /// Part of a body. Small parts are sent together, until [`Self::settle`] or [`Self::end`].
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        let Some(size) = self.split else {
            return self.frame(bytes).await;
        };
        self.waiting.extend_from_slice(bytes);
        let waiting = std::mem::take(&mut self.waiting);
        let pieces = waiting.chunks_exact(size);
        self.waiting = pieces.remainder().to_vec();
        for piece in pieces {
            self.frame(piece).await?;
            self.connection.flush().await?;
            // Lets a reader in the same process see this piece before the next one.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Sends everything that is still held back.
    pub async fn settle(&mut self) -> Result<(), Gone> {
        let waiting = std::mem::take(&mut self.waiting);
        self.frame(&waiting).await?;
        self.connection.flush().await
    }

    /// Ends the body as its framing wants it.
    pub async fn end(mut self) -> Result<(), Gone> {
        self.settle().await?;
        if self.framing == Framing::Chunked {
            self.connection.push(b"0\r\n\r\n").await?;
        }
        self.connection.flush().await
    }

    /// Sends what no chunk parser accepts.
    pub async fn invalid_chunk(mut self) -> Result<(), Gone> {
        self.settle().await?;
        self.connection.push(b"zz\r\nnot a chunk\r\n").await?;
        self.connection.flush().await
    }

    async fn frame(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.framing == Framing::Sized {
            return self.connection.push(bytes).await;
        }
        let size = format!("{:x}\r\n", bytes.len());
        self.connection.push(size.as_bytes()).await?;
        self.connection.push(bytes).await?;
        self.connection.push(b"\r\n").await
    }
}
