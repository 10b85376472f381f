//! Full disks of an installation whose ledger is in PostgreSQL, under load: the holder's, the
//! primary's, and its standby's. Nothing is lost or doubled, the log says what failed, and the
//! ledger continues by itself once there is room.
//!
//! The data is on a small tmpfs. If the test cannot mount one, it prints that it was skipped.

use crate::client::{self, Request};
use crate::crash;
use crate::disk::Disk;
use crate::standby::Installation;
use crate::world::{SOON, wait_until};
use test_world::postgres::PostgresServer;

/// In bytes: a new cluster of PostgreSQL takes some 40 MB, and as much for its log.
const SERVER_DISK: usize = 256 << 20;
/// In bytes. The write-ahead log of a copy alone may grow to 4 MiB before its checkpoint.
const HOLDER_DISK: usize = 24 << 20;
/// What a server says.
const NO_ROOM: &str = "No space left on device";
/// What the holder says first of what it cannot do.
const CANNOT_ENTER: &str = "cannot enter the shared store's events: ";

fn mounted(bytes: usize) -> Option<Disk> {
    let disk = Some(Disk::of(bytes)).filter(|disk| disk.is_mounted);
    if disk.is_none() {
        test_world::skip("no tmpfs can be mounted here");
    }
    disk
}

impl Installation {
    /// Starts servers and sidecars that have ended, as a supervisor does.
    fn supervise(&mut self) {
        for server in [&mut self.primary, &mut self.follower] {
            if server.has_ended() {
                server.start_again();
            }
        }
        for sidecar in [&mut self.fleet.sidecar, &mut self.standby] {
            if sidecar.has_ended() {
                sidecar.begin_gateway(None);
            }
        }
    }

    /// The holder is not ready, and says so with this reason.
    fn is_stopped_by(&self, reason: &str) -> bool {
        let ready = Request::get("/readyz").header("accept", "application/json");
        let ready = client::ask(self.fleet.sidecar.admin, &ready);
        ready.status == 503 && ready.has(reason)
    }

    /// Fills a disk under load until `is_noticed`, and frees it. Nothing may be lost.
    fn survives(&mut self, disk: &Disk, is_noticed: impl Fn(&Self) -> bool) {
        let account = self.fleet.funded(crash::FUNDS);
        let edges = [self.fleet.edges[0].edge, self.fleet.edges[1].edge];
        let habits = [crash::Habit::Whole, crash::Habit::Stream];
        let log = crash::under_load_at(edges, &account.key, &habits, || {
            crash::wait_for_calls(&self.fleet.sidecar.vendor, 100);
            disk.fill_up();
            wait_until("the full disk to be noticed", 3 * SOON, || is_noticed(self));
            crash::wait_for_calls(&self.fleet.sidecar.vendor, 50);
            disk.free_up();
            self.supervise();
            self.find_holder();
            crash::wait_for_calls(&self.fleet.sidecar.vendor, 50);
        });
        assert!(log.cut.is_empty(), "no answer depends on the ledger");
        self.find_holder();
        self.fleet.matches(&account, &log);
    }
}

#[test]
#[ignore = "long installation: a full disk under load, about half a minute"]
fn a_full_disk_of_the_holder_delays_debits_and_loses_none() {
    let Some(disk) = mounted(HOLDER_DISK) else {
        return;
    };
    let server = PostgresServer::start();
    let mut all = Installation::with(Some(&disk.data()), server, PostgresServer::start_standby);
    all.fleet.sidecar.signal("TERM");
    assert_eq!(all.fleet.sidecar.wait_end(SOON), 0);
    all.wait_taken_over();
    all.fleet.sidecar.start_gateway();
    all.swap();
    let says = format!("{CANNOT_ENTER}database or disk is full");
    all.survives(&disk, |all| all.is_stopped_by(&says));
    all.close();
}

#[test]
#[ignore = "long installation: a full disk under load, about half a minute"]
fn a_full_disk_of_the_primary_delays_debits_and_loses_none() {
    let Some(disk) = mounted(SERVER_DISK) else {
        return;
    };
    let server = PostgresServer::start_in(disk.dir.path());
    let mut all = Installation::with(None, server, PostgresServer::start_standby);
    all.survives(&disk, |all| {
        all.primary.log().contains(NO_ROOM) && all.is_stopped_by(CANNOT_ENTER)
    });
    all.close();
}

#[test]
#[ignore = "long installation: a full disk under load, about half a minute"]
fn a_full_disk_of_the_primarys_standby_delays_debits_and_loses_none() {
    let Some(disk) = mounted(SERVER_DISK) else {
        return;
    };
    let follow = |primary: &PostgresServer| primary.start_standby_in(disk.dir.path());
    let mut all = Installation::with(None, PostgresServer::start(), follow);
    // The first commit waits in vain; the next one waits for that one.
    let waits = "cannot wait for PostgreSQL's standby";
    let stays = "it may wait for a standby of PostgreSQL";
    all.survives(&disk, |all| {
        let is_said = all.is_stopped_by(waits) || all.is_stopped_by(stays);
        all.follower.log().contains(NO_ROOM) && is_said
    });
    all.close();
}
