//! Copies of a ledger in PostgreSQL: each is a data directory, of which one holds the ledger.

use super::ledger::world::{ACCOUNTS, NOW, TRIAL_ENDS, debit};
use accounts::db::AppDb;
use credits::money::{CreditSplit, Micro};
use ledger::StoreError;
use ledger::postgres::{PostgresHome, PostgresSettings};
use ledger::{Ledger, LedgerBatch, LedgerChange, Posting};
use model_gateway::replica;
use model_gateway::replica::{detach_from_postgres, push_to_postgres, verify_postgres};
use std::path::Path;
use std::time::Instant;
use tempfile::TempDir;
use test_world::postgres::PostgresServer;

/// A data directory that is a copy.
pub struct CopyWorld {
    dir: TempDir,
    url: String,
}

impl CopyWorld {
    /// The first data directory of a new database; it holds the ledger.
    pub fn new(server: &PostgresServer, database: &str) -> Self {
        let world = Self::beside(&server.create_database(database));
        let home = world.home(true);
        home.prepare().unwrap();
        assert!(world.take(&home).unwrap().is_some());
        world
    }

    /// Another data directory, which is empty.
    pub fn beside(url: &str) -> Self {
        let memory = Path::new("/dev/shm");
        let dir = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        Self {
            dir: dir.unwrap(),
            url: url.to_owned(),
        }
    }

    pub fn home(&self, require_standby: bool) -> PostgresHome {
        self.home_at(require_standby, "10.0.0.1:8081")
    }

    pub fn home_at(&self, require_standby: bool, address: &str) -> PostgresHome {
        PostgresHome::new(PostgresSettings {
            url: self.url.clone(),
            require_standby,
            address: address.into(),
        })
        .unwrap()
    }

    pub fn open(&self, home: &PostgresHome) -> (Ledger, AppDb) {
        let ledger = Ledger::open_with_home(self.dir.path(), Some(home)).unwrap();
        (ledger, AppDb::open(self.dir.path(), Some(home)).unwrap())
    }

    pub fn ledger(&self) -> Ledger {
        self.open(&self.home(true)).0
    }

    /// Tries to take the lease.
    pub fn take(&self, home: &PostgresHome) -> Result<Option<i64>, StoreError> {
        let (ledger, app) = self.open(home);
        replica::take(&ledger, &app)
    }
}

fn open_accounts(ledger: &Ledger) {
    for account in ACCOUNTS {
        ledger
            .rows()
            .open_account(account, Some(TRIAL_ENDS), NOW)
            .unwrap();
        ledger
            .changes()
            .post(&Posting {
                kind: "grant",
                reference: account,
                account,
                d_paid: Micro::new(1_000_000),
                d_trial: Micro::ZERO,
                at_ms: NOW,
            })
            .unwrap();
    }
}

fn enter(ledger: &Ledger, numbers: std::ops::Range<u32>) -> Result<(), StoreError> {
    let endings: Vec<_> = numbers
        .map(|number| debit(number, ACCOUNTS[0], 10, 0))
        .collect();
    let changes: Vec<_> = endings
        .iter()
        .map(|ending| LedgerChange::Ending {
            ending,
            freed: CreditSplit::ZERO,
        })
        .collect();
    let batch = LedgerBatch {
        instance_id: "",
        changes: &changes,
    };
    ledger.changes().append(&batch).map(drop)
}

#[test]
fn another_data_directory_takes_over_with_everything_and_the_first_cannot_commit() {
    let server = PostgresServer::start();
    let _standby = server.start_standby();
    let first = CopyWorld::new(&server, "gateway");
    let home = first.home(true);
    let (ledger, _) = first.open(&home);
    open_accounts(&ledger);
    enter(&ledger, 0..500).unwrap();

    let second = CopyWorld::beside(&server.address("gateway"));
    let its_home = second.home(true);
    assert_eq!(
        second.take(&its_home).unwrap(),
        None,
        "the first one holds it"
    );
    replica::give_back(&ledger).unwrap();
    let epoch = second.take(&its_home).unwrap();
    assert_eq!(epoch, Some(2));
    let (copy, _) = second.open(&its_home);
    assert_eq!(
        copy.rows().heads().unwrap().last,
        ledger.rows().heads().unwrap().last
    );
    for account in ACCOUNTS {
        let balances = |ledger: &Ledger| ledger.rows().account(account, "").unwrap().unwrap();
        assert_eq!(
            format!("{:?}", balances(&copy)),
            format!("{:?}", balances(&ledger)),
            "{account}"
        );
    }
    assert_eq!(
        copy.rows().key_spend("key_a", 0, "").unwrap(),
        ledger.rows().key_spend("key_a", 0, "").unwrap()
    );

    let error = enter(&ledger, 500..501).unwrap_err().to_string();
    assert!(
        error.contains("the sidecar at 10.0.0.1:8081 holds the ledger"),
        "{error}"
    );
    // The same request twice, on either side of the take-over, counts once.
    enter(&copy, 499..502).unwrap();
    assert_eq!(copy.rows().heads().unwrap().last.seq, 3 + 502);
    let count = server.psql("gateway", "SELECT count(*) FROM model_gateway.entry");
    assert_eq!(count, "505");
}

#[test]
fn a_promoted_standby_that_was_behind_is_found_and_can_be_given_what_it_lacks() {
    let mut server = PostgresServer::start();
    let mut follower = server.start_follower("follower");
    let world = {
        let url = server.create_database("gateway");
        let world = CopyWorld::beside(&url);
        let home = world.home(false);
        let report = home.prepare().unwrap();
        assert!(
            report
                .warnings
                .iter()
                .any(|warning| warning.contains("standby")),
            "{report:?}"
        );
        assert!(world.take(&home).unwrap().is_some());
        let (ledger, _) = world.open(&home);
        open_accounts(&ledger);
        enter(&ledger, 0..10).unwrap();
        let last = server.psql("postgres", "SELECT pg_current_wal_lsn()");
        test_world::wait_until("the follower", test_world::SOON, || {
            let here = format!("SELECT pg_last_wal_replay_lsn() >= '{last}'");
            follower.psql("postgres", &here) == "t"
        });
        // From here on the follower gets nothing, and the server does not wait for it.
        follower.kill();
        enter(&ledger, 10..20).unwrap();
        world
    };
    server.kill();
    follower.start_again();
    follower.promote();

    let moved = CopyWorld {
        dir: world.dir,
        url: follower.address("gateway"),
    };
    let home = moved.home(false);
    let (ledger, app) = moved.open(&home);
    let error = enter(&ledger, 20..21).unwrap_err().to_string();
    assert!(
        error.contains("PostgreSQL lacks entries 14 to 23"),
        "{error}"
    );
    let error = moved.take(&home).unwrap_err().to_string();
    assert!(
        error.contains("PostgreSQL lacks entries 14 to 23"),
        "{error}"
    );
    let report = replica::push(&ledger, &app).unwrap();
    assert_eq!((report.entries, report.last), (10, 23));
    assert!(moved.take(&home).unwrap().is_some());
    enter(&ledger, 20..21).unwrap();
    let count = follower.psql("gateway", "SELECT count(*) FROM model_gateway.entry");
    assert_eq!(count, "24");
}

/// The only standby is promoted: it waits for no standby itself, and the holder meets it with a new
/// connection, or by a change of the settings.
#[test]
fn a_holder_commits_nothing_at_a_server_without_a_standby() {
    let mut server = PostgresServer::start();
    let standby = server.start_standby();
    let world = CopyWorld::new(&server, "gateway");
    let home = world.home(true);
    let (ledger, _) = world.open(&home);
    open_accounts(&ledger);
    let epoch = world.take(&home).unwrap().unwrap();
    enter(&ledger, 0..1).unwrap();
    home.renew_lease(epoch).unwrap();
    let set = "ALTER SYSTEM SET synchronous_standby_names = ''";
    server.psql("postgres", set);
    server.psql("postgres", "SELECT pg_reload_conf()");
    test_world::wait_until("the setting", test_world::SOON, || {
        server
            .psql("postgres", "SHOW synchronous_standby_names")
            .is_empty()
    });
    let error = home.renew_lease(epoch).unwrap_err();
    assert!(matches!(error, StoreError::Unusable(_)), "{error}");
    server.kill();

    standby.psql("postgres", "SELECT pg_promote()");
    let moved = CopyWorld {
        dir: world.dir,
        url: standby.address("gateway"),
    };
    let home = moved.home(true);
    let (ledger, _) = moved.open(&home);
    for _ in 0..2 {
        let error = enter(&ledger, 1..2).unwrap_err().to_string();
        assert!(error.contains("no synchronous standby"), "{error}");
    }
    let error = home.renew_lease(epoch).unwrap_err();
    assert!(matches!(error, StoreError::Unusable(_)), "{error}");
    let entries = "SELECT count(*) FROM model_gateway.entry WHERE kind = 'debit'";
    let before = standby.psql("gateway", entries);
    // The operator accepts that there is one machine, or sets a standby up.
    enter(&moved.open(&moved.home(false)).0, 1..2).unwrap();
    let after = standby.psql("gateway", entries);
    assert_eq!(
        after.parse::<u32>(),
        before.parse::<u32>().map(|count| count + 1)
    );
}

#[test]
fn a_server_that_could_lose_debits_is_refused() {
    let server = PostgresServer::start();
    let world = CopyWorld::beside(&server.create_database("gateway"));
    let error = world.home(true).prepare().unwrap_err().to_string();
    assert!(error.contains("no synchronous standby"), "{error}");
    assert!(world.home(false).prepare().is_ok());
    assert!(world.take(&world.home(false)).unwrap().is_some());
    server.psql(
        "gateway",
        "UPDATE model_gateway.holding SET format = 99 WHERE domain = 'accounts'",
    );
    let error = world.take(&world.home(false)).unwrap_err().to_string();
    assert!(
        error.contains("a newer version of the program has written the accounts"),
        "{error}"
    );
    server.psql(
        "gateway",
        "UPDATE model_gateway.schema_version SET version = 7",
    );
    let error = world.home(false).prepare().unwrap_err().to_string();
    assert!(error.contains("has version 7"), "{error}");
}

#[test]
fn entries_cannot_be_changed_in_the_server() {
    let server = PostgresServer::start();
    let world = CopyWorld::beside(&server.create_database("gateway"));
    let home = world.home(false);
    home.prepare().unwrap();
    world.take(&home).unwrap();
    open_accounts(&world.open(&home).0);
    for sql in [
        "UPDATE model_gateway.entry SET d_paid = 0",
        "DELETE FROM model_gateway.entry",
        "TRUNCATE model_gateway.entry",
        "UPDATE model_gateway.account SET paid = -1",
    ] {
        assert!(!server.try_psql("gateway", sql).status.success(), "{sql}");
    }
}

/// An installation moves to PostgreSQL, to another data directory and back; the chain is the same
/// everywhere. A long run moves a million entries.
#[test]
fn an_installation_moves_to_postgres_and_back_with_the_same_chain() {
    let server = PostgresServer::start();
    let url = server.create_database("gateway");
    let count = if std::env::var_os("GATEWAY_LONG").is_some() {
        1_000_000
    } else {
        20_000
    };
    let here = CopyWorld::beside(&url);
    let heads = {
        let ledger = Ledger::open(here.dir.path()).unwrap();
        open_accounts(&ledger);
        for first in (0..count).step_by(4_000) {
            enter(&ledger, first..first + 4_000).unwrap();
        }
        ledger.rows().heads().unwrap()
    };
    assert_eq!(heads.last.seq, i64::from(count) + 3);
    let home = here.home(false);
    let refused = Ledger::open_with_home(here.dir.path(), Some(&home))
        .err()
        .unwrap();
    assert!(
        refused.to_string().contains("`model-gateway ledger push`"),
        "{refused}"
    );
    for expected in [heads.last.seq, 0] {
        let began = Instant::now();
        let pushed = push_to_postgres(here.dir.path(), &home).unwrap();
        println!("pushed {} entries in {:?}", pushed.entries, began.elapsed());
        assert_eq!(pushed.entries, expected, "repeating it gives nothing");
        assert_eq!(
            (pushed.last, pushed.hash),
            (heads.last.seq, heads.last.hash.clone())
        );
    }
    let refused = Ledger::open(here.dir.path()).err().unwrap();
    assert!(
        refused
            .to_string()
            .contains("is a copy of a ledger in PostgreSQL"),
        "{refused}"
    );
    assert!(
        verify_postgres(&home, here.dir.path(), true)
            .unwrap()
            .is_empty()
    );

    let there = CopyWorld::beside(&url);
    let its_home = there.home(false);
    let began = Instant::now();
    assert!(there.take(&its_home).unwrap().is_some());
    println!("copied them in {:?}", began.elapsed());
    let (ledger, _) = there.open(&its_home);
    assert_eq!(ledger.rows().heads().unwrap().last, heads.last);
    replica::give_back(&ledger).unwrap();
    drop(ledger);
    detach_from_postgres(there.dir.path(), &its_home).unwrap();
    let back = Ledger::open(there.dir.path()).unwrap();
    assert_eq!(back.rows().heads().unwrap().last, heads.last);
    enter(&back, count..count + 1).unwrap();
    let found = verify_postgres(&its_home, there.dir.path(), false).unwrap();
    let text: Vec<_> = found
        .iter()
        .map(|finding| finding.message.as_str())
        .collect();
    assert!(
        text.len() == 1 && text[0].contains("PostgreSQL lacks entries"),
        "{text:?}"
    );
}

/// A command in the holder's data directory must not keep the lease of a sidecar that died.
#[test]
fn a_commit_renews_no_lease() {
    let server = PostgresServer::start();
    let world = CopyWorld::beside(&server.create_database("gateway"));
    let home = world.home(false);
    home.prepare().unwrap();
    world.take(&home).unwrap();
    let lease = || {
        server.psql(
            "gateway",
            "SELECT lease_until FROM model_gateway.holding ORDER BY domain",
        )
    };
    let before = lease();
    open_accounts(&world.open(&home).0);
    assert_eq!(lease(), before);
    // Once it has run out, the data directory still commits, until another one takes it.
    let sql = "UPDATE model_gateway.holding SET lease_until = '-infinity'";
    server.psql("gateway", sql);
    let (ledger, _) = world.open(&home);
    enter(&ledger, 0..1).unwrap();
    let other = CopyWorld::beside(&server.address("gateway"));
    assert!(other.take(&other.home(false)).unwrap().is_some());
    assert!(enter(&ledger, 1..2).is_err());
    // What it has is older now, which is no fault, and it has nothing to give.
    let (theirs, _) = other.open(&other.home(false));
    enter(&theirs, 1..3).unwrap();
    let (ledger, app) = world.open(&home);
    let pushed = replica::push(&ledger, &app).unwrap();
    assert_eq!((pushed.entries, pushed.last), (0, 6));
    replica::catch_up(&ledger, &app).unwrap();
    assert_eq!(
        ledger.rows().heads().unwrap().last,
        theirs.rows().heads().unwrap().last
    );
}

/// A data directory that was copied to another machine, say with its disk.
#[test]
fn two_sidecars_with_the_same_data_directory_do_not_both_hold_the_ledger() {
    let server = PostgresServer::start();
    let world = CopyWorld::beside(&server.create_database("gateway"));
    let home = world.home(false);
    home.prepare().unwrap();
    world.take(&home).unwrap();
    open_accounts(&world.open(&home).0);
    let twin = CopyWorld::beside(&server.address("gateway"));
    for file in [
        "ledger.db",
        "ledger.db-wal",
        "ledger.anchor",
        "app.db",
        "app.db-wal",
    ] {
        let from = world.dir.path().join(file);
        if from.exists() {
            std::fs::copy(from, twin.dir.path().join(file)).unwrap();
        }
    }
    let its_home = twin.home_at(false, "10.0.0.2:8081");
    assert_eq!(twin.take(&its_home).unwrap(), None, "the lease is valid");
    let (ledger, _) = world.open(&home);
    replica::give_back(&ledger).unwrap();
    assert_eq!(twin.take(&its_home).unwrap(), Some(2));
    assert_eq!(world.take(&home).unwrap(), None);
    assert!(enter(&ledger, 0..1).is_err());
}

#[test]
fn a_server_that_cannot_be_used_is_named_with_its_reason() {
    let server = PostgresServer::start();
    server.create_database("gateway");
    let says = |url: &str| {
        let world = CopyWorld::beside(url);
        let error = world.home(true).prepare().unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
        error
    };
    let address =
        |what: &str| format!("postgres://gateway:secret@127.0.0.1:{what}?sslmode=disable");
    let port = server.port;
    let unknown = says(&address(&format!("{port}/nowhere")));
    assert!(
        unknown.contains("database \"nowhere\" does not exist"),
        "{unknown}"
    );
    let closed = says(&address("1/gateway"));
    assert!(closed.contains("Connection refused"), "{closed}");
    // Every commit would wait.
    server.wait_for_standby_named("away");
    let waiting = says(&address(&format!("{port}/gateway")));
    assert!(
        waiting.contains("none of its standbys is connected"),
        "{waiting}"
    );
}

/// Somebody who may change the server's tables changes an entry: a sidecar that copies it refuses
/// it.
#[test]
fn an_entry_that_was_changed_in_the_server_is_found() {
    let server = PostgresServer::start();
    let world = CopyWorld::beside(&server.create_database("gateway"));
    let home = world.home(false);
    home.prepare().unwrap();
    world.take(&home).unwrap();
    open_accounts(&world.open(&home).0);
    let sql = "ALTER TABLE model_gateway.entry DISABLE TRIGGER ALL;
        UPDATE model_gateway.entry SET d_paid = 9 WHERE seq = 2;
        UPDATE model_gateway.account SET paid = 7 WHERE id = 'acct_c'";
    server.psql("gateway", sql);
    let found = verify_postgres(&home, world.dir.path(), true).unwrap();
    assert_eq!(
        found.first().map(|finding| finding.seq),
        Some(2),
        "{found:?}"
    );
    let copy = CopyWorld::beside(&server.address("gateway"));
    let error = copy.take(&copy.home(false)).unwrap_err().to_string();
    assert!(
        error.contains("entry 2 in PostgreSQL is not chained"),
        "{error}"
    );
}
