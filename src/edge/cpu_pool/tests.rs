//! Tests of the pool's turns and bounds, and of jobs that panic or whose requests end.

#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use serde_json::json;
use std::sync::atomic::AtomicBool;

fn account(name: &str) -> Arc<str> {
    name.into()
}

fn limits(queue: u64, per_account: u64) -> Limits {
    Limits {
        cpu_queue: queue,
        cpu_queue_per_account: per_account,
        ..Limits::default()
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap()
}

fn take_permit(worker: &CpuWorker) -> CpuPermit {
    match worker.request_permit(usize::MAX) {
        Some(PermitOutcome::Granted(permit)) => permit,
        _ => panic!("no place"),
    }
}

fn queued(worker: &CpuWorker) -> QueuedJob {
    match worker.request_permit(usize::MAX) {
        Some(PermitOutcome::Queued(queued)) => queued,
        _ => panic!("not queued"),
    }
}

fn try_take_permit(queued: &mut QueuedJob) -> Option<CpuPermit> {
    queued.permit.try_recv().ok()
}

#[test]
fn accounts_take_turns_however_many_jobs_one_of_them_has() {
    let pool = Arc::new(CpuPool::new(1));
    let [many, few] = ["many", "few"].map(|name| pool.worker(&account(name), &limits(100, 50)));
    let running = take_permit(&many);
    let mut waiting_many: Vec<_> = (0..20).map(|_| queued(&many)).collect();
    let mut waiting_few: Vec<_> = (0..2).map(|_| queued(&few)).collect();
    drop(running);
    let first = try_take_permit(&mut waiting_many[0]).unwrap();
    assert!(
        try_take_permit(&mut waiting_few[0]).is_none(),
        "one place, one job"
    );
    drop(first);
    let second = try_take_permit(&mut waiting_few[0]).expect("the other account's turn");
    drop(second);
    let third = try_take_permit(&mut waiting_many[1]).unwrap();
    drop(third);
    drop(try_take_permit(&mut waiting_few[1]).unwrap());
    // The account now has the pool for itself.
    for waiting in &mut waiting_many[2..] {
        drop(try_take_permit(waiting).unwrap());
    }
    let state = pool.long.lock();
    assert_eq!(
        (state.free, state.queues.len(), state.turns.len()),
        (1, 0, 0)
    );
}

#[test]
fn queues_are_bounded_in_all_and_for_each_account() {
    let pool = Arc::new(CpuPool::new(2));
    let workers = ["a", "b", "c"].map(|name| pool.worker(&account(name), &limits(3, 2)));
    let running = [take_permit(&workers[0]), take_permit(&workers[0])];
    let first = [queued(&workers[0]), queued(&workers[0])];
    assert!(
        workers[0].request_permit(usize::MAX).is_none(),
        "its own bound"
    );
    let _second = queued(&workers[1]);
    assert!(
        workers[2].request_permit(usize::MAX).is_none(),
        "the bound of all"
    );
    drop(first);
    // A request that has ended takes no slot in the queue.
    let _third = [queued(&workers[2]), queued(&workers[2])];
    assert_eq!(pool.long.lock().waiting, 3);
    drop(running);
}

#[test]
fn a_place_that_was_given_to_a_request_that_is_gone_is_passed_on() {
    let pool = Arc::new(CpuPool::new(1));
    let worker = pool.worker(&account("a"), &limits(10, 10));
    let running = take_permit(&worker);
    let (left, mut stays, unread) = (queued(&worker), queued(&worker), queued(&worker));
    drop(left);
    assert_eq!(pool.long.lock().waiting, 2);
    drop(running);
    drop(try_take_permit(&mut stays).unwrap());
    // It has the permit, and ends without having read it.
    drop(unread);
    let state = pool.long.lock();
    assert_eq!((state.free, state.waiting), (1, 0));
}

#[test]
fn who_waits_too_long_gets_no_place_and_leaves_the_queue() {
    let pool = Arc::new(CpuPool::new(1));
    let worker = pool.worker(&account("a"), &limits(10, 10));
    let _running = take_permit(&worker);
    let mut waiting = queued(&worker);
    assert!(
        runtime()
            .block_on(waiting.wait(Duration::from_millis(20)))
            .is_none()
    );
    drop(waiting);
    assert_eq!(pool.long.lock().waiting, 0);
}

#[test]
fn a_short_job_waits_for_no_long_one_and_a_long_one_for_no_short_one() {
    let pool = Arc::new(CpuPool::new(1));
    let [many, other] = ["many", "other"].map(|name| pool.worker(&account(name), &limits(10, 5)));
    let is_granted = |worker: &CpuWorker, work| {
        let outcome = worker.request_permit(work);
        matches!(outcome, Some(PermitOutcome::Granted(_)))
    };
    let long = take_permit(&many);
    let _waiting = queued(&many);
    assert!(!is_granted(&other, MAX_SHORT_WORK + 1));
    assert!(is_granted(&other, MAX_SHORT_WORK));
    drop((long, _waiting));
    let Some(PermitOutcome::Granted(_short)) = many.request_permit(MAX_SHORT_WORK) else {
        panic!("no place")
    };
    assert!(!is_granted(&other, MAX_INLINE_BYTES + 1));
    assert!(is_granted(&other, MAX_SHORT_WORK + 1));
}

fn thread_name() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

#[test]
fn large_bodies_are_worked_on_beside_the_workers_and_small_ones_where_they_are() {
    let pool = Arc::new(CpuPool::new(1));
    let worker = pool.worker(&account("a"), &limits(10, 10));
    let is_beside = |bytes| {
        let worker = worker.clone();
        runtime().block_on(async move {
            tokio::spawn(async move { worker.run_admitted(bytes, || thread_name() == "cpu") })
                .await
                .unwrap()
        })
    };
    assert!(!is_beside(MAX_INLINE_BYTES));
    assert!(is_beside(MAX_INLINE_BYTES + 1));
    assert_eq!(
        (pool.short.lock().free, pool.blocked.load(Ordering::Relaxed)),
        (1, 0)
    );
}

#[test]
fn an_admitted_job_runs_without_a_place_rather_than_not_at_all() {
    let pool = Arc::new(CpuPool::new(1));
    let worker = CpuWorker {
        wait: Duration::from_millis(20),
        ..pool.worker(&account("a"), &limits(10, 10))
    };
    let _running = take_permit(&worker);
    let ran = runtime().block_on(async move {
        tokio::spawn(async move { worker.run_admitted(usize::MAX, || true) })
            .await
            .unwrap()
    });
    assert!(ran);
    assert_eq!(pool.long.lock().waiting, 0);
}

#[test]
fn a_panic_of_a_job_is_the_requests_and_frees_the_place() {
    let pool = Arc::new(CpuPool::new(1));
    let worker = pool.worker(&account("a"), &limits(10, 10));
    let slot = CpuSlot(Some((take_permit(&worker), false)));
    let begun = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&begun);
    let outcome = runtime().block_on(async move {
        tokio::spawn(async move {
            slot.run(|| {
                seen.store(true, Ordering::Relaxed);
                panic!("a fault in the work")
            })
        })
        .await
    });
    assert!(outcome.is_err_and(|error| error.is_panic()));
    assert!(begun.load(Ordering::Relaxed));
    assert_eq!(pool.long.lock().free, 1);
}

#[test]
fn commas_in_prose_are_no_work_and_each_value_is() {
    let prose = json!({"content": "a, b, \"c\", ".repeat(10_000)}).to_string();
    assert_eq!(work_of(prose.as_bytes()), prose.len());
    let values = json!(vec![1; 1_000]).to_string();
    assert_eq!(work_of(values.as_bytes()), 999 * VALUE_BYTES);
    let many = json!(vec![1; 100_000]).to_string();
    assert!(many.len() < MAX_INLINE_BYTES);
    assert!(work_of(many.as_bytes()) > MAX_INLINE_BYTES);
    let long = vec![b'x'; MAX_INLINE_BYTES + 1];
    assert_eq!(work_of(&long), long.len());
}
