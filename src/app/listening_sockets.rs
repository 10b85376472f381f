//! Manages the listening sockets of this process. A fresh start binds them, and an upgrade receives
//! them from the predecessor.
//!
//! No two gateways share an address: `SO_REUSEPORT` is never set, and a process has all its sockets
//! before it serves on one. This file must not accept a connection.

use super::server_handle::DRAIN_POLL_INTERVAL;
use anyhow::Context as _;
use rustix::fs::{Mode, OFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::collections::HashMap;
use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{IntoRawFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum number of connections that wait to be accepted. The kernel has a limit of its own.
const LISTEN_BACKLOG: i32 = 65_535;
/// Time that a start waits for another process to release an address. A successor waits as long for
/// its predecessor's sockets.
const BIND_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a predecessor that has not sent its sockets is presumed dead.
const PREDECESSOR_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit of the message with the sockets, once the predecessor has connected.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of sockets that a predecessor sends, which is Pingora's own limit.
const MAX_SOCKETS: usize = 32;
const MAX_MESSAGE_BYTES: usize = 2_048;
/// File in the data directory through which a predecessor sends its sockets.
pub(super) const UPGRADE_SOCKET: &str = "upgrade.sock";

/// The addresses of a process, each with its key in the config.
pub(super) type ListenAddresses = Vec<(&'static str, SocketAddr)>;

pub(super) struct ListeningSockets(HashMap<SocketAddr, TcpListener>);

impl ListeningSockets {
    /// Binds all addresses. A process that has just handed over may not have closed its sockets
    /// yet.
    ///
    /// # Errors
    /// Returns an error if another process keeps an address, or if an address cannot be bound.
    pub(super) fn bind(addresses: &ListenAddresses) -> anyhow::Result<Self> {
        Self(HashMap::new()).bind_others(addresses)
    }

    /// Receives the sockets of the predecessor, which has handed over, and binds the other
    /// addresses. If the predecessor died meanwhile, binds all addresses.
    ///
    /// # Errors
    /// Returns the errors of [`ListeningSockets::bind`].
    pub(super) fn receive(path: &Path, addresses: &ListenAddresses) -> anyhow::Result<Self> {
        let _ = std::fs::remove_file(path);
        let offer = UnixListener::bind(path).context("cannot ask for the listening sockets")?;
        let received = Self::receive_or_bind(&offer, addresses);
        let _ = std::fs::remove_file(path);
        let Self(mut received) = received?;
        received.retain(|address, _| {
            let is_used = addresses.iter().any(|(_, used)| used == address);
            if !is_used {
                log::info!("closed {address}: it is no longer configured");
            }
            is_used
        });
        Self(received).bind_others(addresses)
    }

    fn receive_or_bind(offer: &UnixListener, addresses: &ListenAddresses) -> anyhow::Result<Self> {
        offer.set_nonblocking(true)?;
        let began = Instant::now();
        loop {
            match offer.accept() {
                Ok((predecessor, _)) => match receive_sockets(&predecessor) {
                    Ok(sockets) if !sockets.is_empty() => return Ok(Self(sockets)),
                    // The predecessor died before it had sent the sockets.
                    Ok(_) => {}
                    Err(error) => log::error!("cannot receive the listening sockets: {error}"),
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("cannot receive the listening sockets"),
            }
            // The kernel has closed the sockets of a dead process.
            if began.elapsed() > PREDECESSOR_TIMEOUT {
                match Self::try_bind(addresses) {
                    Ok(sockets) => {
                        log::warn!("no predecessor sends its listening sockets: bound new ones");
                        return Ok(sockets);
                    }
                    Err(error) if began.elapsed() > BIND_TIMEOUT => return Err(error),
                    Err(_) => {}
                }
            }
            std::thread::sleep(DRAIN_POLL_INTERVAL);
        }
    }

    fn try_bind(addresses: &ListenAddresses) -> anyhow::Result<Self> {
        let sockets = addresses.iter().map(|(key, address)| {
            let socket = listen(*address).map_err(|error| explain(key, *address, &error))?;
            Ok((*address, socket))
        });
        sockets.collect::<anyhow::Result<_>>().map(Self)
    }

    fn bind_others(mut self, addresses: &ListenAddresses) -> anyhow::Result<Self> {
        for (key, address) in addresses {
            if !self.0.contains_key(address) {
                self.0.insert(*address, bind(key, *address)?);
            }
        }
        Ok(self)
    }

    /// Returns the socket of an address of this process.
    ///
    /// # Errors
    /// Returns an error if the address has no socket, or if its socket was taken before.
    pub(super) fn take(&mut self, address: SocketAddr) -> anyhow::Result<TcpListener> {
        let socket = self.0.remove(&address);
        socket.with_context(|| format!("{address} is configured twice"))
    }
}

/// Listens on an address, and waits for a process that keeps it.
///
/// # Errors
/// Returns an error if another process keeps the address, or if it cannot be bound.
pub(super) fn bind(key: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let began = Instant::now();
    loop {
        match listen(address) {
            Ok(socket) => return Ok(socket),
            Err(error)
                if error.kind() == ErrorKind::AddrInUse && began.elapsed() < BIND_TIMEOUT =>
            {
                std::thread::sleep(DRAIN_POLL_INTERVAL);
            }
            Err(error) => return Err(explain(key, address, &error)),
        }
    }
}

fn explain(key: &str, address: SocketAddr, error: &io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::AddrInUse => anyhow::anyhow!(
            "cannot listen on {key} {address}: another process does; stop it, or change {key}"
        ),
        _ => anyhow::anyhow!("cannot listen on {key} {address}: {error}"),
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpListener::bind(address)?;
    rustix::net::listen(&socket, LISTEN_BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Receives the message of `pingora_core::server::Fds::send_to_sock`. It has the addresses,
/// separated by spaces, and their sockets in the same order.
fn receive_sockets(predecessor: &UnixStream) -> io::Result<HashMap<SocketAddr, TcpListener>> {
    predecessor.set_nonblocking(false)?;
    predecessor.set_read_timeout(Some(MESSAGE_TIMEOUT))?;
    let mut text = [0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = recvmsg(
        predecessor,
        &mut [IoSliceMut::new(&mut text)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let sockets: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
            _ => None,
        })
        .flatten()
        .collect();
    let text = String::from_utf8_lossy(&text[..message.bytes]);
    let addresses = text.split_ascii_whitespace().map(str::parse);
    let mut received = HashMap::new();
    for (address, socket) in addresses.zip(sockets) {
        if let Ok(address) = address {
            let socket = TcpListener::from(socket);
            socket.set_nonblocking(true)?;
            received.insert(address, socket);
        }
    }
    Ok(received)
}

/// Returns the path of the upgrade socket in the data directory. The path leads through an open
/// descriptor of the directory, because the path of a socket has at most 107 bytes, and that of a
/// directory 4 095.
///
/// # Errors
/// Returns an error if the directory cannot be opened.
pub(super) fn upgrade_socket(data_dir: &Path) -> anyhow::Result<PathBuf> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(data_dir, flags, Mode::empty())
        .with_context(|| format!("cannot open {}", data_dir.display()))?;
    let path = format!("/proc/self/fd/{}/{UPGRADE_SOCKET}", folder.into_raw_fd());
    Ok(path.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::IoSlice;
    use std::os::fd::AsFd as _;

    fn free_address() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
    }

    /// Sends sockets as a predecessor does.
    fn send(path: &Path, text: &str, sockets: &[TcpListener]) {
        let stream = test_world::wait_for("the successor to ask", test_world::SOON, || {
            UnixStream::connect(path).ok()
        });
        let sockets: Vec<_> = sockets.iter().map(|socket| socket.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&sockets)));
        let text = [IoSlice::new(text.as_bytes())];
        sendmsg(&stream, &text, &mut control, SendFlags::empty()).unwrap();
    }

    #[test]
    fn an_address_has_one_process() {
        let listening = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listening.local_addr().unwrap();
        assert_eq!(
            listen(address).unwrap_err().kind(),
            ErrorKind::AddrInUse,
            "the standard library's"
        );
        drop(listening);
        let ours = listen(address).unwrap();
        assert_eq!(
            listen(address).unwrap_err().kind(),
            ErrorKind::AddrInUse,
            "one of the same program"
        );
        drop(ours);
    }

    #[test]
    fn a_successor_has_its_predecessors_sockets_and_binds_new_addresses() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(UPGRADE_SOCKET);
        let sockets: Vec<_> = (0..2).map(|_| listen(free_address()).unwrap()).collect();
        let [kept, dropped] = [0, 1].map(|index: usize| sockets[index].local_addr().unwrap());
        let new = free_address();
        let addresses = vec![("listen.edge", kept), ("listen.admin", new)];
        let mut received = std::thread::scope(|scope| {
            let receiving = scope.spawn(|| ListeningSockets::receive(&path, &addresses));
            send(
                &path,
                &format!("{dropped} {kept}"),
                &[&sockets[1], &sockets[0]].map(|socket| socket.try_clone().unwrap()),
            );
            receiving.join().unwrap().unwrap()
        });
        drop(sockets);
        assert_eq!(received.take(kept).unwrap().local_addr().unwrap(), kept);
        assert_eq!(received.take(new).unwrap().local_addr().unwrap(), new);
        assert!(received.take(kept).is_err());
        assert!(listen(dropped).is_ok(), "nobody listens there any more");
        assert!(!path.exists());
    }

    #[test]
    fn a_successor_whose_predecessor_dies_binds_its_addresses_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(UPGRADE_SOCKET);
        let predecessor = listen(free_address()).unwrap();
        let address = predecessor.local_addr().unwrap();
        let addresses = vec![("listen.edge", address)];
        let mut bound = std::thread::scope(|scope| {
            let receiving = scope.spawn(|| ListeningSockets::receive(&path, &addresses));
            // It connects and dies before it has sent anything.
            test_world::wait_for("the successor to ask", test_world::SOON, || {
                UnixStream::connect(&path).ok()
            });
            drop(predecessor);
            receiving.join().unwrap().unwrap()
        });
        assert_eq!(bound.take(address).unwrap().local_addr().unwrap(), address);
    }

    #[test]
    fn a_long_data_dir_has_a_short_socket() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a".repeat(200)).join("b".repeat(200));
        std::fs::create_dir_all(&folder).unwrap();
        let path = upgrade_socket(&folder).unwrap();
        let listening = UnixListener::bind(&path).unwrap();
        assert!(folder.join(UPGRADE_SOCKET).exists());
        UnixStream::connect(&path).unwrap();
        drop(listening);
    }
}
