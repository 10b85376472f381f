//! The billing core under a simulator: random operations, crashes at any step, and an independent
//! model of the books.
//!
//! One thread, one seed, a virtual clock: an episode is the same every time. `LEDGER_SEED=n`
//! replays one, `GATEWAY_LONG=1` takes ten million steps. The model keeps its amounts in `i128` and
//! shares no arithmetic with the program; after every step the program must agree with it to the
//! µc. A crash drops the core without closing it: what is in memory is gone, and what the journal
//! says comes back, perhaps torn at its end, doubled, or in another order.
//!
//! It must not sync: the files lie in memory (`/dev/shm`), for the power is not cut here.
//!
//! Read next: `ledger_simulation/model.rs`, what ought to be; `ledger_simulation/episode.rs`, what
//! is done.

#![allow(
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods
)]

#[path = "ledger_simulation/episode.rs"]
mod episode;
#[path = "ledger_simulation/model.rs"]
mod model;

use episode::Episode;

/// An episode's length: short enough to be read, long enough for files to fill and trials to end.
const STEPS: u64 = 2_000;

#[test]
fn the_books_agree_with_an_independent_model_whatever_dies() {
    let seed = std::env::var("LEDGER_SEED")
        .ok()
        .map(|seed| seed.parse::<u64>().expect("LEDGER_SEED is a number"));
    let is_long = std::env::var("GATEWAY_LONG").is_ok_and(|value| value == "1");
    let episodes = if is_long { 5_000 } else { 50 };
    let seeds = seed.map_or(1..episodes + 1, |seed| seed..seed + 1);
    let began = std::time::Instant::now();
    let mut done = episode::Counts::default();
    for seed in seeds {
        let run = std::panic::catch_unwind(|| Episode::new(seed).run(STEPS));
        match run {
            Ok(counts) => done.add(&counts),
            Err(panic) => {
                eprintln!(
                    "seed {seed} failed: LEDGER_SEED={seed} cargo test --test ledger_simulation"
                );
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{done:?} in {:?}", began.elapsed());
    if seed.is_none() {
        done.assert_all_kinds();
    }
}
