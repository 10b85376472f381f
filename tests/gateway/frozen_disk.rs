//! A disk that does not answer: a signal ends the process all the same.

use crate::crash::FUNDS;
use crate::strace::FrozenDisk;
use crate::surface::BOTH;
use crate::world::{Plan, SOON, wait_for};

#[test]
fn a_signal_ends_a_gateway_whose_ledger_does_not_answer() {
    let mut world = Plan::default().limit("drain_seconds", 1).start();
    let account = world.funded(FUNDS);
    for surface in BOTH {
        world.works(surface, &account.key);
    }
    world.ended(&account, BOTH.len());
    let Some(frozen) = FrozenDisk::freeze(&world, |name| name.starts_with("ledger.db")) else {
        return;
    };
    for surface in BOTH {
        let request = surface.whole(&account.key, "input=1 output=1");
        assert_eq!(world.ask(&request).status, 200, "the journal answers");
    }
    world.signal("TERM");
    // strace keeps the thread that it holds up.
    let status = format!("/proc/{}/status", world.pid());
    wait_for("every other thread to end", SOON, || {
        let status = std::fs::read_to_string(&status).unwrap();
        status.contains("State:\tZ").then_some(())
    });
    drop(frozen);
    assert_eq!(world.wait_end(SOON), 1);
    let said = world.log();
    assert!(said.contains("stopped without writing"), "{said}");
    world.start_gateway();
    world.ended(&account, 2 * BOTH.len());
    world.works(BOTH[0], &account.key);
    world.close();
}
