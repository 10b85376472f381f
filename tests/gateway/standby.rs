//! Tests several sidecars whose ledger is in PostgreSQL: one holds it, and another one takes over,
//! whichever process dies. Real PostgreSQL, a primary and a standby, as processes.

use crate::account::micro;
use crate::client::{self, Request};
use crate::crash;
use crate::shared::Fleet;
use crate::surface::Chat;
use crate::world::{Plan, SOON, World, wait_until};
use std::path::Path;
use std::time::{Duration, Instant};
use test_world::postgres::PostgresServer;
use test_world::redis::Server;

/// Longest time without a ledger, in the test that measures it.
pub const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(15);
/// Longest time until somebody holds the ledger, in a test that does not measure it.
const QUIET_WITHIN: Duration = Duration::from_secs(120);

/// Redis, PostgreSQL with its standby, two edges, and two sidecars, of which the first holds the
/// ledger.
pub struct Installation {
    pub fleet: Fleet,
    pub standby: World,
    pub primary: PostgresServer,
    pub follower: PostgresServer,
}

impl Installation {
    pub fn new() -> Self {
        Self::with(None, PostgresServer::start(), PostgresServer::start_standby)
    }

    /// An installation with these servers, and with the second sidecar's data in `standby_data`.
    pub fn with(
        standby_data: Option<&Path>,
        primary: PostgresServer,
        follow: impl Fn(&PostgresServer) -> PostgresServer,
    ) -> Self {
        primary.create_database("gateway");
        let follower = follow(&primary);
        let url = format!(
            "postgres://gateway@127.0.0.1:{},127.0.0.1:{}/gateway?sslmode=disable",
            primary.port, follower.port
        );
        let redis = Server::start();
        let store = format!("{{kind: redis, url: \"redis://127.0.0.1:{}\"}}", redis.port);
        let ledger = format!("ledger: {{kind: postgres, url: \"{url}\"}}");
        let with_ledger = format!("store: {store}\n{ledger}");
        let value = with_ledger.strip_prefix("store: ").unwrap();
        let fleet = Fleet::on(redis, value);
        let standby = Plan::default()
            .role("sidecar")
            .edit("store: {kind: embedded}", &with_ledger)
            .endpoints(&[fleet.sidecar.vendor.port]);
        let standby = match standby_data {
            Some(data) => standby.data(data).start(),
            None => standby.start(),
        };
        wait_until("the second sidecar to be a standby", SOON, || {
            standby.log().contains("this one is a standby")
        });
        Self {
            fleet,
            standby,
            primary,
            follower,
        }
    }

    pub fn wait_taken_over(&self) {
        wait_until("the standby to hold the ledger", SOON, || {
            self.standby
                .log()
                .contains("holds the ledger in PostgreSQL")
        });
    }

    /// The second sidecar answers for the ledger from here on; the first one is a standby.
    pub fn swap(&mut self) {
        std::mem::swap(&mut self.fleet.sidecar, &mut self.standby);
        // The edges call the vendor that they have always called.
        std::mem::swap(&mut self.fleet.sidecar.vendor, &mut self.standby.vendor);
    }

    /// Makes `fleet.sidecar` the sidecar that holds the ledger.
    pub fn find_holder(&mut self) {
        let began = Instant::now();
        while !self.fleet.sidecar.holds_ledger() {
            self.swap();
            assert!(
                began.elapsed() < QUIET_WITHIN,
                "no sidecar holds the ledger"
            );
            std::thread::sleep(Duration::from_millis(50));
            for sidecar in [&mut self.fleet.sidecar, &mut self.standby] {
                // A holder that was superseded has ended, as have those that met no Redis at their
                // start.
                if sidecar.has_ended() {
                    sidecar.begin_gateway(None);
                }
            }
        }
    }

    /// Ends the standby before the others.
    pub fn close(mut self) {
        self.standby.signal("TERM");
        assert_eq!(self.standby.wait_end(SOON), 0);
    }
}

#[test]
fn a_standby_takes_over_when_the_holder_is_killed_under_load() {
    let mut all = Installation::new();
    let account = all.fleet.funded(crash::FUNDS);
    let standby = all.standby.sidecar;
    let holder = all.fleet.sidecar.sidecar;
    // The standby passes pages on.
    let page = || Request::get("/dashboard/sign-in");
    assert_eq!(client::ask(standby, &page()).status, 200);
    let Installation { fleet, .. } = &mut all;
    let log = fleet.under_load(&account, |fleet| {
        crash::wait_for_calls(&fleet.sidecar.vendor, 100);
        fleet.sidecar.kill();
        crash::wait_for_calls(&fleet.sidecar.vendor, 100);
    });
    all.wait_taken_over();
    assert!(log.cut.is_empty(), "no answer depends on the sidecar");
    // The first one comes back as a standby, with what it has.
    all.fleet.sidecar.start_gateway();
    all.swap();
    all.fleet.matches(&account, &log);
    for edge in &all.fleet.edges {
        wait_until("an edge to find the sidecar", SOON, || {
            edge.ask(&page()).status == 200
        });
        edge.works(Chat, &account.key);
    }
    assert_ne!(standby, holder);
    assert_eq!(client::ask(holder, &page()).status, 200);
    all.close();
}

#[test]
fn a_holder_that_stops_gives_the_ledger_to_the_standby_at_once() {
    let mut all = Installation::new();
    let account = all.fleet.funded(10_000_000);
    let asked = all.fleet.edges[0].works(Chat, &account.key).request_id();
    all.fleet.settled(&account, [&asked]);
    all.fleet.sidecar.signal("TERM");
    assert_eq!(all.fleet.sidecar.wait_end(SOON), 0);
    // Two domains. The standby may have taken both by now.
    let own = format!(
        "SELECT count(*) FROM model_gateway.holding
         WHERE lease_until > now() AND address LIKE '%:{}'",
        all.fleet.sidecar.sidecar
    );
    assert_eq!(all.primary.psql("gateway", &own), "0");
    all.wait_taken_over();
    all.fleet.sidecar.start_gateway();
    all.swap();
    // What the first one knew, the second one knows: keys and accounts too.
    let (_, key) = all.fleet.sidecar.key(&account.id, "another");
    all.fleet.wait_known(&all.fleet.edges[0], &key);
    let second = all.fleet.edges[1].works(Chat, &account.key).request_id();
    let (balance, _) = all.fleet.settled(&account, [&asked, &second]);
    // A command on the machine of the standby reads what is there now.
    let shown = all.standby.json(&["account", "show", &account.id]);
    assert_eq!(micro(&shown["balance"]), balance);
    // One that writes is refused, and says where to run it.
    let refused = all
        .standby
        .command(&["account", "grant", &account.id, "1", "--ref", "x"]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    let address = format!("the sidecar at 127.0.0.1:{}", all.fleet.sidecar.sidecar);
    assert!(error.contains(&address), "{error}");
    all.close();
}

#[test]
fn a_sidecar_that_is_told_to_end_while_it_takes_the_lease_does_not_keep_it() {
    let (postgres, redis) = (PostgresServer::start(), Server::start());
    postgres.create_database("gateway");
    let stores = format!(
        "store: {{kind: redis, url: \"redis://127.0.0.1:{}\"}}\n\
         ledger: {{kind: postgres, url: \"postgres://gateway@127.0.0.1:{}/gateway?sslmode=disable\", require_standby: false}}",
        redis.port, postgres.port
    );
    let plan = Plan::default().role("sidecar");
    let mut sidecar = plan.edit("store: {kind: embedded}", &stores).start();
    sidecar.signal("TERM");
    assert_eq!(sidecar.wait_end(SOON), 0);
    let count = |of: &str| postgres.psql("gateway", &format!("SELECT count(*) FROM {of}"));
    std::thread::scope(|scope| {
        let lock = "BEGIN; LOCK TABLE model_gateway.holding; SELECT pg_sleep(60)";
        scope.spawn(|| postgres.try_psql("gateway", lock));
        wait_until("the lock", SOON, || {
            count("pg_stat_activity WHERE wait_event = 'PgSleep'") == "1"
        });
        sidecar.begin_gateway(None);
        wait_until("the sidecar to wait for its lease", SOON, || {
            count("pg_locks WHERE NOT granted") == "1"
        });
        sidecar.signal("TERM");
        let unlock = "pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        postgres.psql("gateway", &format!("SELECT {unlock}"));
    });
    assert_eq!(sidecar.wait_end(SOON), 0, "{}", sidecar.log());
    assert_eq!(
        count("model_gateway.holding WHERE lease_until > now()"),
        "0"
    );
}

#[test]
fn a_server_that_is_killed_and_replaced_by_its_standby_loses_nothing() {
    let mut all = Installation::new();
    let account = all.fleet.funded(crash::FUNDS);
    let Installation {
        fleet,
        primary,
        follower,
        ..
    } = &mut all;
    let log = fleet.under_load(&account, |fleet| {
        crash::wait_for_calls(&fleet.sidecar.vendor, 100);
        primary.kill();
        // As long as there is no standby, commits wait: nothing is acknowledged that one server
        // has.
        follower.wait_for_standby_named("standby");
        follower.promote();
        crash::wait_for_calls(&fleet.sidecar.vendor, 100);
    });
    let _next = all.follower.start_follower("standby");
    all.fleet.matches(&account, &log);
    let report = all
        .fleet
        .sidecar
        .command(&["ledger", "verify", "--all", "--json"]);
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(report.status.success(), "{text}");
    all.close();
}
