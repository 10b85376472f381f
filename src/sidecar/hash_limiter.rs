//! Hashes one password at a time, on a blocking thread. The networks of clients take turns.
//!
//! A hash takes a core for some 50 ms. Only one runs at a time, so the other cores serve requests.
//! A network that sends many requests delays only itself. When the queue is full, the network with
//! the most requests loses one. If every network has one request, the latest client without an
//! earlier sign-in gives way to a client with one. This file must not depend on the hash.

use super::blocking::run_blocking;
use super::error::PageError;
use config::address::network_block;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Maximum number of requests that wait for a hash. Further requests get a 503.
const MAX_WAITING_HASHES: usize = 32;

#[derive(Default)]
pub struct PasswordHashLimiter(Arc<Mutex<HashQueue>>);

#[derive(Default)]
struct HashQueue {
    is_running: bool,
    /// Networks with waiting requests, in the order of their turns.
    networks: VecDeque<(IpAddr, VecDeque<WaitingHash>)>,
}

struct WaitingHash {
    turn: oneshot::Sender<HashPermit>,
    trust: HashTrust,
}

/// Trust in a waiting client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HashTrust {
    Stranger,
    /// The client had the right password before, for this account and from this network.
    Known,
}

impl HashQueue {
    /// Adds a request of a network. If the queue is full, the request takes the place of the last
    /// one of the network with the most. Otherwise, a known client takes the place of the latest
    /// stranger. Returns `None` if no place can be freed.
    fn enter(
        &mut self,
        network: IpAddr,
        trust: HashTrust,
    ) -> Option<oneshot::Receiver<HashPermit>> {
        self.forget_disconnected();
        let own = self
            .networks
            .iter()
            .position(|(known, _)| *known == network);
        if self.waiting() >= MAX_WAITING_HASHES {
            let own = own.map_or(0, |index| self.networks[index].1.len());
            let most = self.networks.iter_mut().map(|(_, requests)| requests);
            let most = most.max_by_key(|requests| requests.len())?;
            if most.len() > own + 1 {
                most.pop_back();
            } else {
                self.displace_stranger(network, trust)?;
            }
        }
        let (turn, receiver) = oneshot::channel();
        let waiting = WaitingHash { turn, trust };
        match own {
            Some(index) => self.networks[index].1.push_back(waiting),
            None => self.networks.push_back((network, [waiting].into())),
        }
        Some(receiver)
    }

    /// Ends the wait of the latest stranger of another network, to free a place for a known client.
    fn displace_stranger(&mut self, network: IpAddr, trust: HashTrust) -> Option<()> {
        if trust == HashTrust::Stranger {
            return None;
        }
        let mut others = self.networks.iter_mut().rev();
        let (_, requests) = others.find(|(other, requests)| {
            *other != network
                && requests
                    .back()
                    .is_some_and(|last| last.trust == HashTrust::Stranger)
        })?;
        requests.pop_back();
        Some(())
    }

    fn waiting(&self) -> usize {
        self.networks
            .iter()
            .map(|(_, requests)| requests.len())
            .sum()
    }

    fn forget_disconnected(&mut self) {
        for (_, requests) in &mut self.networks {
            requests.retain(|request| !request.turn.is_closed());
        }
        self.networks.retain(|(_, requests)| !requests.is_empty());
    }

    /// Takes the first request of the network whose turn it is; `None` if no request waits.
    fn next(&mut self) -> Option<oneshot::Sender<HashPermit>> {
        let (network, mut requests) = self.networks.pop_front()?;
        let next = requests.pop_front().map(|waiting| waiting.turn);
        if !requests.is_empty() {
            self.networks.push_back((network, requests));
        }
        next
    }
}

/// The right to compute a hash. Dropping the permit passes it to the next request.
struct HashPermit(Arc<Mutex<HashQueue>>);

impl Drop for HashPermit {
    fn drop(&mut self) {
        let next = {
            let mut queue = lock(&self.0);
            let next = queue.next();
            queue.is_running = next.is_some();
            next
        };
        if let Some(next) = next {
            // If the client has disconnected, the failed send drops the permit, which passes it on.
            drop(next.send(Self(Arc::clone(&self.0))));
        }
    }
}

fn lock(queue: &Mutex<HashQueue>) -> MutexGuard<'_, HashQueue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PasswordHashLimiter {
    /// Runs a hash for a client. The permit moves with the work, so a disconnected client does not
    /// free the place for a second hash.
    pub async fn run<T: Send + 'static>(
        &self,
        client: IpAddr,
        trust: HashTrust,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PageError> {
        let permit = match self.enter(client, trust)? {
            HashTurn::Now(permit) => permit,
            HashTurn::Later(turn) => turn.await.map_err(|_| PageError::Busy)?,
        };
        run_blocking(move || {
            let value = work();
            drop(permit);
            value
        })
        .await
    }

    fn enter(&self, client: IpAddr, trust: HashTrust) -> Result<HashTurn, PageError> {
        let mut queue = lock(&self.0);
        if !queue.is_running {
            queue.is_running = true;
            return Ok(HashTurn::Now(HashPermit(Arc::clone(&self.0))));
        }
        let turn = queue
            .enter(network_block(client), trust)
            .ok_or(PageError::Busy)?;
        Ok(HashTurn::Later(turn))
    }
}

enum HashTurn {
    Now(HashPermit),
    Later(oneshot::Receiver<HashPermit>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot::error::TryRecvError;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Enters a stranger's request that waits.
    fn enter(limiter: &PasswordHashLimiter, client: &str) -> Option<oneshot::Receiver<HashPermit>> {
        enter_as(limiter, client, HashTrust::Stranger)
    }

    fn enter_as(
        limiter: &PasswordHashLimiter,
        client: &str,
        trust: HashTrust,
    ) -> Option<oneshot::Receiver<HashPermit>> {
        match limiter.enter(ip(client), trust) {
            Ok(HashTurn::Later(turn)) => Some(turn),
            Ok(HashTurn::Now(_)) => panic!("it need not wait"),
            Err(_) => None,
        }
    }

    #[test]
    fn one_password_is_hashed_at_a_time_and_networks_take_turns() {
        let limiter = PasswordHashLimiter::default();
        let Ok(HashTurn::Now(running)) = limiter.enter(ip("192.0.2.1"), HashTrust::Stranger) else {
            panic!("nothing runs")
        };
        // Addresses of one IPv6 block are one network, whichever /64 they are in.
        let block: Vec<_> = (0..MAX_WAITING_HASHES)
            .map(|index| enter(&limiter, &format!("2001:db8:0:{index:x}::1")).unwrap())
            .collect();
        assert!(enter(&limiter, "2001:db8:0:ff::1").is_none(), "it is full");
        // The owner takes the last place of the block, and the next turn but one.
        let mut owner = enter(&limiter, "198.51.100.1").unwrap();
        let mut block: VecDeque<_> = block.into();
        assert!(block.pop_back().unwrap().blocking_recv().is_err());
        drop(running);
        let first = block.pop_front().unwrap().blocking_recv().unwrap();
        assert!(owner.try_recv().is_err());
        // A request whose client left is passed over.
        drop(block.pop_front());
        drop(first);
        let of_owner = owner.try_recv().expect("the turn of another network");
        assert!(block[0].try_recv().is_err(), "one at a time");
        drop(of_owner);
        for turn in block {
            drop(turn.blocking_recv().unwrap());
        }
        assert!(matches!(
            limiter.enter(ip("192.0.2.1"), HashTrust::Stranger),
            Ok(HashTurn::Now(_))
        ));
    }

    #[test]
    fn a_full_queue_of_many_networks_refuses_one_more() {
        let limiter = PasswordHashLimiter::default();
        let _running = limiter.enter(ip("192.0.2.255"), HashTrust::Stranger).ok();
        let all: Vec<_> = (0..MAX_WAITING_HASHES)
            .map(|index| enter(&limiter, &format!("192.0.2.{index}")).unwrap())
            .collect();
        assert!(enter(&limiter, "198.51.100.1").is_none());
        // Whoever had the right password before gets the place of the latest stranger.
        let known = |client: &str| enter_as(&limiter, client, HashTrust::Known);
        let mut all = all;
        let owner = known("198.51.100.1").unwrap();
        assert!(all.pop().unwrap().blocking_recv().is_err());
        assert!(
            all.iter_mut()
                .all(|turn| matches!(turn.try_recv(), Err(TryRecvError::Empty)))
        );
        let owners: Vec<_> = (1..MAX_WAITING_HASHES)
            .map(|index| known(&format!("203.0.113.{index}")).unwrap())
            .collect();
        assert!(known("198.51.100.2").is_none(), "no stranger waits");
        drop((owner, owners));
        drop(all);
        assert!(enter(&limiter, "198.51.100.1").is_some(), "all have left");
    }

    #[tokio::test]
    async fn work_gets_its_turn_after_other_work() {
        let limiter = PasswordHashLimiter::default();
        let run = |value| limiter.run(ip("192.0.2.1"), HashTrust::Stranger, move || value);
        let all = tokio::join!(run(1), run(2), run(3));
        assert_eq!((all.0.unwrap(), all.1.unwrap(), all.2.unwrap()), (1, 2, 3));
    }
}
