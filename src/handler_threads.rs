//! Runs the handlers of a listener on threads of their own. They read files, and a file that does
//! not answer must stop neither the listener nor what needs no file: status pages, and other
//! handlers.
//!
//! One client gets a share of the threads, so that its requests that hang leave threads to the
//! others. This file must not know a route.

use crate::client_counts::ClientCounts;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use ledger::sqlite::writer::begin_writes_by;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task_local;

/// Maximum number of requests whose handlers run. One more gets the late answer at once.
const MAX_REQUESTS: usize = 256;
/// Maximum number of those of one client.
const MAX_CLIENT_REQUESTS: usize = MAX_REQUESTS / 8;
/// Maximum number of threads: one for each handler, and as many for what handlers run apart.
const MAX_THREADS: usize = 2 * MAX_REQUESTS;
/// Time after which a client gets the late answer. The limits inside the handlers are shorter, so
/// they come first unless a thread is stuck.
pub const TIMEOUT: Duration = Duration::from_secs(40);

task_local! {
    /// The permit of the handler that runs.
    static PERMIT: Arc<HandlerPermit>;
}

/// Something by which a client is known before a file is read. A request can count for several.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HandlerClient {
    Network(IpAddr),
    /// A session's token, or an account's id.
    Name(String),
}

/// The reason why a request is not answered by its handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandlerRefusal {
    /// There is no thread, or no answer in time.
    Stuck,
    /// The client has its share of the threads.
    ClientShare,
}

/// Returns the clients for which a request counts, or `None` if its handler reads no file and needs
/// no thread.
pub type ClientFinder = Arc<dyn Fn(&Request) -> Option<Vec<HandlerClient>> + Send + Sync>;

/// Rules of a listener for its requests.
#[derive(Clone)]
pub struct HandlerRules {
    pub clients: ClientFinder,
    pub refuse: fn(HandlerRefusal) -> Response,
}

/// Moves the handlers of `routes` to threads with this name, each to one of its own while it runs.
///
/// # Errors
/// Returns an error if the threads cannot be started.
pub fn run_apart(routes: Router, name: &'static str, rules: HandlerRules) -> io::Result<Router> {
    let threads = HandlerThreads::start(name)?;
    Ok(routes.layer(from_fn_with_state((threads, rules), run_handler)))
}

async fn run_handler(
    State((threads, rules)): State<(HandlerThreads, HandlerRules)>,
    request: Request,
    next: Next,
) -> Response {
    let Some(clients) = (rules.clients)(&request) else {
        return next.run(request).await;
    };
    let response = threads.run(clients, TIMEOUT, next.run(request)).await;
    response.unwrap_or_else(rules.refuse)
}

/// Wraps work that a handler starts on another thread. The work keeps the handler's permit, so that
/// what hangs counts for as long as it has a thread. Its first write begins within this time and
/// before the client gets the late answer, or fails.
pub fn bound_work<T>(within: Duration, work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let permit = PERMIT.try_with(Arc::clone).ok();
    let by = Instant::now() + within;
    let by = permit.as_ref().map_or(by, |permit| by.min(permit.ends_at));
    move || {
        let outcome = begin_writes_by(by, work);
        drop(permit);
        outcome
    }
}

/// The right to run a handler.
pub struct HandlerPermit {
    counts: Arc<Mutex<ClientCounts<HandlerClient>>>,
    clients: Vec<HandlerClient>,
    /// Time at which the client gets the late answer.
    ends_at: Instant,
    _permit: OwnedSemaphorePermit,
}

impl Drop for HandlerPermit {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        self.clients.iter().for_each(|client| counts.leave(client));
    }
}

#[derive(Clone)]
struct HandlerThreads {
    /// Lives as long as the process: to drop it would wait for a thread that is stuck.
    runtime: &'static Runtime,
    permits: Arc<Semaphore>,
    counts: Arc<Mutex<ClientCounts<HandlerClient>>>,
}

impl HandlerThreads {
    fn start(name: &'static str) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(MAX_THREADS)
            .thread_name(name)
            .enable_all()
            .build()?;
        Ok(Self {
            runtime: Box::leak(Box::new(runtime)),
            permits: Arc::new(Semaphore::new(MAX_REQUESTS)),
            counts: Arc::default(),
        })
    }

    fn acquire(
        &self,
        clients: Vec<HandlerClient>,
        ends_at: Instant,
    ) -> Result<HandlerPermit, HandlerRefusal> {
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let mut entered = HandlerPermit {
            counts: Arc::clone(&self.counts),
            clients: Vec::new(),
            ends_at,
            _permit: permit.map_err(|_| HandlerRefusal::Stuck)?,
        };
        for client in clients {
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            let outcome = counts.enter(client.clone(), MAX_CLIENT_REQUESTS as u64, 0);
            drop(counts);
            outcome.map_err(|_| HandlerRefusal::ClientShare)?;
            entered.clients.push(client);
        }
        Ok(entered)
    }

    async fn run(
        &self,
        clients: Vec<HandlerClient>,
        timeout: Duration,
        handler: impl Future<Output = Response> + Send + 'static,
    ) -> Result<Response, HandlerRefusal> {
        let ends_at = Instant::now() + timeout;
        let permit = Arc::new(self.acquire(clients, ends_at)?);
        let runtime = self.runtime;
        // A handler ends when its client disconnects, which drops `_client`.
        let (_client, left) = oneshot::channel::<()>();
        let running = runtime.spawn_blocking(move || {
            let handler = PERMIT.scope(permit, async {
                tokio::select! {
                    response = handler => Some(response),
                    _ = left => None,
                }
            });
            begin_writes_by(ends_at, || runtime.block_on(handler))
        });
        match tokio::time::timeout(timeout, running).await {
            Ok(Ok(Some(response))) => Ok(response),
            Ok(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            _ => Err(HandlerRefusal::Stuck),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::response::IntoResponse as _;
    use ledger::sqlite::writer::begins_too_late;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use tokio::task::JoinSet;

    /// Handlers that stand still until the sender is dropped.
    struct Stuck {
        threads: HandlerThreads,
        release: SyncSender<()>,
        until: Arc<Mutex<Receiver<()>>>,
        started: Arc<AtomicUsize>,
        waiting: JoinSet<Option<HandlerRefusal>>,
    }

    impl Stuck {
        fn new() -> Self {
            let (release, until) = sync_channel(0);
            Self {
                threads: HandlerThreads::start("stuck").unwrap(),
                release,
                until: Arc::new(Mutex::new(until)),
                started: Arc::default(),
                waiting: JoinSet::new(),
            }
        }

        /// Sends requests of a client, and waits until each is stuck.
        async fn send(&mut self, count: usize, clients: &[HandlerClient]) {
            let goal = self.started.load(Ordering::Acquire) + count;
            for _ in 0..count {
                let (threads, until) = (self.threads.clone(), Arc::clone(&self.until));
                let started = Arc::clone(&self.started);
                let clients = clients.to_vec();
                let stuck = async move {
                    started.fetch_add(1, Ordering::AcqRel);
                    let _ = until.lock().unwrap().recv();
                    "done".into_response()
                };
                let run = async move { threads.run(clients, TIMEOUT, stuck).await.err() };
                self.waiting.spawn(run);
            }
            let began = std::time::Instant::now();
            while self.started.load(Ordering::Acquire) < goal {
                assert!(began.elapsed() < test_world::SOON, "the requests get stuck");
                tokio::task::yield_now().await;
            }
        }

        /// Returns why a request is refused that would be answered at once.
        async fn refusal(&self, clients: &[HandlerClient]) -> Option<HandlerRefusal> {
            let handler = async { "ready".into_response() };
            let response = self.threads.run(clients.to_vec(), TIMEOUT, handler);
            response.await.err()
        }
    }

    fn network(number: u8) -> HandlerClient {
        HandlerClient::Network(IpAddr::from([192, 0, 2, number]))
    }

    #[tokio::test]
    async fn stuck_handlers_are_answered_for_up_to_a_number_and_then_at_once() {
        let one = HandlerThreads::start("late").unwrap();
        let never = std::future::pending();
        let soon = Duration::from_millis(20);
        let late = one.run(Vec::new(), soon, never).await.err();
        assert_eq!(late, Some(HandlerRefusal::Stuck));
        let mut stuck = Stuck::new();
        stuck.send(MAX_REQUESTS, &[]).await;
        assert_eq!(stuck.refusal(&[]).await, Some(HandlerRefusal::Stuck));
        // Those that are stuck still count until they end.
        drop(stuck.release);
        let all = u32::try_from(MAX_REQUESTS).unwrap();
        let every = stuck.threads.permits.acquire_many(all).await.unwrap();
        drop(every);
        let handler = async { "ready".into_response() };
        let response = stuck.threads.run(Vec::new(), TIMEOUT, handler).await;
        assert!(response.is_ok());
    }

    #[tokio::test]
    async fn a_client_whose_requests_hang_leaves_threads_to_the_others() {
        let (ada, share) = (
            HandlerClient::Name("ada".into()),
            Some(HandlerRefusal::ClientShare),
        );
        let mut stuck = Stuck::new();
        stuck
            .send(MAX_CLIENT_REQUESTS - 1, &[network(1), ada.clone()])
            .await;
        assert_eq!(stuck.refusal(&[network(1), ada.clone()]).await, None);
        stuck.send(1, &[network(1), ada.clone()]).await;
        for (clients, refusal) in [
            (vec![network(1), ada.clone()], share),
            // The same person elsewhere, and somebody else there.
            (vec![network(2), ada], share),
            (vec![network(1)], share),
            (vec![network(2)], None),
            (vec![], None),
        ] {
            assert_eq!(stuck.refusal(&clients).await, refusal, "{clients:?}");
        }
        // Refused requests have not counted.
        stuck.send(MAX_CLIENT_REQUESTS, &[network(2)]).await;
        assert_eq!(stuck.refusal(&[network(2)]).await, share);
    }

    #[tokio::test]
    async fn work_of_a_handler_that_was_answered_late_begins_no_write() {
        let threads = HandlerThreads::start("answered").unwrap();
        for (is_late, timeout) in [(true, Duration::from_millis(20)), (false, TIMEOUT)] {
            let (release, until) = sync_channel::<()>(0);
            let (send, found) = sync_channel(2);
            let handler = async move {
                let _ = until.recv();
                let apart = std::thread::spawn(bound_work(TIMEOUT, begins_too_late));
                let _ = send.send(apart.join().unwrap());
                let _ = send.send(begins_too_late());
                "done".into_response()
            };
            let running = threads.run(Vec::new(), timeout, handler);
            if is_late {
                assert_eq!(running.await.err(), Some(HandlerRefusal::Stuck));
                drop(release);
            } else {
                drop(release);
                assert!(running.await.is_ok());
            }
            assert_eq!([found.recv(), found.recv()], [Ok(is_late); 2]);
        }
    }

    #[tokio::test]
    async fn work_that_outlives_its_handler_keeps_the_permit() {
        let threads = HandlerThreads::start("outlived").unwrap();
        let (release, until) = sync_channel::<()>(0);
        let handler = async move {
            std::thread::spawn(bound_work(TIMEOUT, move || until.recv()));
            "done".into_response()
        };
        let response = threads.run(vec![network(1)], TIMEOUT, handler).await;
        assert!(response.is_ok());
        let running = || threads.counts.lock().unwrap().count_for(&network(1));
        assert_eq!(running(), 1);
        drop(release);
        test_world::wait_until("the work to end", test_world::SOON, || running() == 0);
    }
}
