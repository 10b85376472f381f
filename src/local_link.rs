//! In-memory connections between the edge and the sidecar when both run in one process, so that
//! serving a page uses no file descriptor.
//!
//! Both ends are plain byte streams. The edge and the sidecar speak HTTP over them, as they do over
//! TCP. This file must not interpret the bytes.

use std::io;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;

/// Maximum number of bytes buffered in each direction of a connection.
const BUFFER_BYTES: usize = 65_536;
/// Maximum number of connections that wait to be accepted.
const BACKLOG: usize = 1_024;

/// The edge's end of the link, which opens connections.
#[derive(Debug, Clone)]
pub struct LocalConnector(mpsc::Sender<DuplexStream>);

/// The sidecar's end of the link. Once it is dropped, no connection can be opened.
#[derive(Debug)]
pub struct LocalAcceptor(mpsc::Receiver<DuplexStream>);

pub fn local_link() -> (LocalConnector, LocalAcceptor) {
    let (sender, receiver) = mpsc::channel(BACKLOG);
    (LocalConnector(sender), LocalAcceptor(receiver))
}

impl LocalConnector {
    /// Returns whether the sidecar still accepts connections.
    pub fn is_open(&self) -> bool {
        !self.0.is_closed()
    }

    /// Opens a connection. Waits while the backlog is full.
    ///
    /// # Errors
    /// Returns an error if the sidecar has ended.
    pub async fn connect(&self) -> io::Result<DuplexStream> {
        let (own, other) = tokio::io::duplex(BUFFER_BYTES);
        let ended = |_| {
            io::Error::new(
                io::ErrorKind::ConnectionRefused,
                "the sidecar of this process has ended",
            )
        };
        self.0.send(other).await.map_err(ended)?;
        Ok(own)
    }
}

impl LocalAcceptor {
    /// Returns the next connection. Waits forever once no further connection can arrive.
    pub async fn accept(&mut self) -> DuplexStream {
        match self.0.recv().await {
            Some(stream) => stream,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn what_one_end_writes_the_other_reads_until_the_sidecar_ends() {
        let (connector, mut acceptor) = local_link();
        let mut edge = connector.connect().await.unwrap();
        let mut sidecar = acceptor.accept().await;
        edge.write_all(b"GET").await.unwrap();
        let mut read = [0; 3];
        sidecar.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"GET");
        assert!(connector.is_open());
        drop(acceptor);
        assert!(!connector.is_open());
        assert_eq!(
            connector.connect().await.unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
    }
}
