//! The rules of a ledger (`crates/ledger/tests/rules/main.rs`) on a ledger in PostgreSQL.

#[path = "../../crates/ledger/tests/rules/chain.rs"]
mod chain;
#[path = "../../crates/ledger/tests/rules/list.rs"]
mod list;
#[path = "../../crates/ledger/tests/rules/model.rs"]
#[allow(dead_code, reason = "its faults are for the tests of the crate")]
mod model;
#[path = "../../crates/ledger/tests/rules/money.rs"]
mod money;
#[path = "../../crates/ledger/tests/rules/random.rs"]
mod random;
#[path = "../../crates/ledger/tests/rules/store.rs"]
mod store;
#[path = "../../crates/ledger/tests/rules/world.rs"]
pub mod world;

use super::copies::CopyWorld;
use list::RULES;
use std::cell::Cell;
use store::LedgerStore;
use test_world::postgres::PostgresServer;
use world::LedgerHome;

impl LedgerHome for CopyWorld {
    fn open(&self) -> Box<dyn LedgerStore> {
        Box::new(self.ledger())
    }
}

#[test]
fn a_ledger_in_postgres_keeps_every_rule() {
    let server = PostgresServer::start();
    let _standby = server.start_standby();
    let databases = Cell::new(0);
    for (_, rule) in RULES {
        rule(&|| {
            databases.set(databases.get() + 1);
            Box::new(CopyWorld::new(
                &server,
                &format!("rules_{}", databases.get()),
            ))
        });
    }
}
