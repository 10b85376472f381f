//! Reserves ports that no other test process takes, not even before a server listens on them.
//!
//! A test process reserves whole blocks of ports by abstract Unix sockets, which the kernel always
//! frees when the process ends. `tests/world/run.mjs` reserves its blocks by the same names.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

/// First port of the first block. All blocks are below the range for outgoing connections, so no
/// connection takes a port between two starts of its server. `scripts/run` uses ports above them.
const FIRST_PORT: u16 = 20_000;
const PORTS_PER_BLOCK: u16 = 100;
const BLOCKS: u16 = 100;
/// Maximum number of blocks that one process reserves. At the limit, the process reuses its ports.
const MAX_BLOCKS_PER_PROCESS: usize = 20;

/// The reserved blocks of this process, and its next port.
struct Reserved {
    /// First port of each block, with the socket that reserves it.
    blocks: Vec<(u16, UnixListener)>,
    next: usize,
}

static RESERVED: Mutex<Reserved> = Mutex::new(Reserved {
    blocks: Vec::new(),
    next: 0,
});

/// Returns a port of this machine without a listener. No other test process gets the port while
/// this process lives.
pub fn free_port() -> u16 {
    let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let port = reserved.next_port();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Reserved {
    fn next_port(&mut self) -> u16 {
        let per_block = usize::from(PORTS_PER_BLOCK);
        if self.next == self.blocks.len() * per_block {
            match reserve_block(FIRST_PORT, BLOCKS) {
                Some(block) if self.blocks.len() < MAX_BLOCKS_PER_PROCESS => {
                    self.blocks.push(block);
                }
                _ if self.blocks.is_empty() => {
                    panic!("other test processes have reserved all {BLOCKS} blocks of ports")
                }
                _ => self.next = 0,
            }
        }
        let (first, _) = self.blocks[self.next / per_block];
        let offset = u16::try_from(self.next % per_block).unwrap();
        self.next += 1;
        first + offset
    }
}

/// Reserves one of `blocks` free blocks, starting at port `start`. Returns the first port of the
/// block.
fn reserve_block(start: u16, blocks: u16) -> Option<(u16, UnixListener)> {
    (0..blocks).find_map(|block| {
        let first = start + block * PORTS_PER_BLOCK;
        let name = format!("model-gateway-test-ports-{first}");
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let socket = UnixListener::bind_addr(&address).ok()?;
        Some((first, socket))
    })
}

#[cfg(test)]
mod tests {
    use super::{BLOCKS, FIRST_PORT, PORTS_PER_BLOCK, free_port, reserve_block};
    use std::collections::BTreeSet;
    use std::net::TcpListener;

    #[test]
    fn a_port_is_handed_out_once_and_is_of_a_reserved_block() {
        let ports: Vec<_> = (0..2 * PORTS_PER_BLOCK).map(|_| free_port()).collect();
        let different: BTreeSet<_> = ports.iter().copied().collect();
        assert_eq!(different.len(), ports.len());
        let last = FIRST_PORT + BLOCKS * PORTS_PER_BLOCK;
        assert!(ports.iter().all(|port| (FIRST_PORT..last).contains(port)));
    }

    #[test]
    fn a_port_with_a_listener_is_not_handed_out() {
        let next = free_port() + 1;
        // Another test of this process may take the next port first; then nothing is checked less.
        let _listener = TcpListener::bind(("127.0.0.1", next));
        assert_ne!(free_port(), next);
    }

    #[test]
    fn no_block_is_reserved_twice_and_a_released_one_can_be_reserved_again() {
        // Two blocks that no process takes its ports from.
        let start = FIRST_PORT + BLOCKS * PORTS_PER_BLOCK;
        let reserve = || reserve_block(start, 2);
        let first = reserve().expect("a free block");
        let second = reserve().expect("a free block");
        assert_ne!(first.0, second.0);
        assert!(reserve().is_none(), "both are reserved");
        let released = first.0;
        drop(first);
        assert_eq!(reserve().map(|(port, _)| port), Some(released));
    }
}
