//! A disk that fills up while requests run, and then has room again: no completed answer is lost,
//! no new request begins, and no restart is needed.
//!
//! The data is on a small tmpfs, which refuses writes like any full disk. If the test cannot mount
//! one, it sets the kernel's limit on the size of a file instead (`prlimit`) and prints that.

use crate::account::{Account, micro, taken};
use crate::client::{self, Answer, Connection, Request};
use crate::crash::FUNDS;
use crate::failure_table::{Case, reaches_clients};
use crate::surface::{BOTH, LEDGER_UNAVAILABLE, Surface};
use crate::world::{Plan, SOON, World, wait_for, wait_until};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tempfile::TempDir;

/// In bytes. The ledger's write-ahead log alone may grow to 4 MiB before its checkpoint.
const DISK: usize = 24 << 20;
const OF_A_KIND: usize = 4;

/// A small disk of its own for one test.
pub struct Disk {
    pub dir: TempDir,
    pub is_mounted: bool,
}

impl Disk {
    fn new() -> Self {
        Self::of(DISK)
    }

    /// A disk of this size, in bytes. Each user may enter it, as PostgreSQL's must.
    pub fn of(bytes: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={bytes},mode=0755");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(dir.path());
        let is_mounted = mount.status().is_ok_and(|status| status.success());
        if !is_mounted {
            eprintln!(
                "no tmpfs can be mounted here: a limit on the size of files stands in for a full disk"
            );
        }
        Self { dir, is_mounted }
    }

    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn ballast(&self) -> PathBuf {
        self.dir.path().join("ballast")
    }

    /// Fills the disk until not even a page can be written.
    fn fill(&self, world: &World) {
        if !self.is_mounted {
            let active = boot_dir(&self.data()).join("000001.log");
            return world.limit_file_size(Some(std::fs::metadata(active).unwrap().len()));
        }
        self.fill_up();
    }

    /// Fills a disk that is mounted.
    pub fn fill_up(&self) {
        let mut ballast = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.ballast())
            .unwrap();
        for size in [1 << 20, 1 << 16, 1 << 12] {
            let piece = vec![b'x'; size];
            while ballast.write_all(&piece).is_ok() {}
        }
    }

    fn free(&self, world: &World) {
        match self.is_mounted {
            true => self.free_up(),
            false => world.limit_file_size(None),
        }
    }

    pub fn free_up(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = Command::new("umount")
                .arg("-l")
                .arg(self.dir.path())
                .status();
        }
    }
}

/// The folder of the only journal.
fn boot_dir(data: &Path) -> PathBuf {
    let mut folders = std::fs::read_dir(data.join("journal")).unwrap();
    folders
        .next()
        .expect("a running gateway's journal")
        .unwrap()
        .path()
}

/// A request in flight while the disk fills up.
struct InFlight {
    surface: Surface,
    stream: bool,
    request: Request,
    connection: Connection,
}

/// The answer that the client of such a request got.
struct Ended {
    surface: Surface,
    /// The request, if it was not streamed. Each of those has an idempotency key.
    keyed: Option<Request>,
    id: String,
    /// Otherwise the answer was an error in the surface's format.
    is_whole: bool,
}

impl InFlight {
    fn begin(
        world: &World,
        account: &Account,
        surface: Surface,
        stream: bool,
        index: usize,
    ) -> Self {
        let mut connection = world.connect();
        let request = match stream {
            true => surface.stream(&account.key, "events=8 gap_ms=500 input=10 output=5"),
            false => surface
                .whole(&account.key, "delay_ms=4000 input=10 output=5")
                .header("idempotency-key", &format!("key-{index}")),
        };
        assert!(connection.send(&request.bytes()));
        Self {
            surface,
            stream,
            request,
            connection,
        }
    }

    fn end(mut self) -> Ended {
        let answer = self.connection.answer();
        let is_whole = if self.stream {
            self.surface.is_complete(&answer)
        } else {
            answer.status == 200
        };
        if self.stream {
            assert!(
                is_whole || answer.has(self.surface.error_frame()),
                "{}",
                answer.text()
            );
        } else if !is_whole {
            refused(self.surface, &answer);
        }
        let keyed = (!self.stream).then_some(self.request);
        Ended {
            surface: self.surface,
            keyed,
            id: answer.request_id(),
            is_whole,
        }
    }
}

/// Asserts an error that says that there is no room, and asks the client to retry.
#[track_caller]
fn refused(surface: Surface, answer: &Answer) {
    surface.fails_as(answer, LEDGER_UNAVAILABLE);
    assert!(
        answer.header("retry-after").is_some(),
        "{:?}",
        answer.headers
    );
}

/// Fills the disk while requests run, waits for their ends, checks that the gateway refuses new
/// ones, and frees the disk. Returns the outcomes of the running requests.
fn fill_and_free(disk: &Disk, world: &World, account: &Account) -> Vec<Ended> {
    let root = world.account_with("root@example.test", &["--no-trial", "--admin"]);
    // Without a tmpfs, the limit on the size of a file is the length of the journal file. Make that
    // file longer than the data that the reserve has to hold, because the limit applies to both.
    BOTH.into_iter()
        .cycle()
        .take(30)
        .for_each(|surface| drop(world.works(surface, &account.key)));
    let calls = world.vendor.calls() + 4 * OF_A_KIND as u64;
    let kinds = BOTH
        .into_iter()
        .flat_map(|surface| [(surface, false), (surface, true)]);
    let running: Vec<_> = kinds
        .flat_map(|kind| std::iter::repeat_n(kind, OF_A_KIND))
        .enumerate()
        .map(|(index, (surface, stream))| InFlight::begin(world, account, surface, stream, index))
        .collect();
    wait_until("all calls", SOON, || world.vendor.calls() >= calls);
    let streams = || world.metric("gateway_streams_open", &[]) as usize;
    wait_until("all streams", SOON, || streams() == 2 * OF_A_KIND);
    disk.fill(world);
    let ends: Vec<_> = running.into_iter().map(InFlight::end).collect();
    for surface in BOTH {
        // The last page may still have room for a record or two.
        let answer = wait_for("new work to be refused", SOON, || {
            let answer = world.ask(&surface.whole(&account.key, "input=1 output=1"));
            (answer.status != 200).then_some(answer)
        });
        refused(surface, &answer);
        let keyed = surface
            .whole(&account.key, "input=1 output=1")
            .header("idempotency-key", "while-full");
        refused(surface, &world.ask(&keyed));
    }
    reaches_clients(world, &Case::of_bytes("LedgerUnavailable", &account.key, 0));
    wait_until("the gateway not to be ready", SOON, || !world.is_ready());
    assert_eq!(
        world
            .ask(&Request::get("/v1/credits").bearer(&account.key))
            .status,
        200,
        "what is read is told"
    );
    let grants = format!("/admin/v1/accounts/{}/grants", account.id);
    let grant = json!({"credits": "1", "ref": "while-full"}).to_string();
    let change = client::ask(
        world.admin,
        &Request::post(&grants, grant).bearer(&root.key),
    );
    assert_eq!(change.status, 503, "{}", change.text());
    assert_eq!(change.json()["error"]["code"], "storage");
    let freed = Instant::now();
    disk.free(world);
    wait_until("the gateway to be ready by itself", SOON, || {
        world.is_ready()
    });
    eprintln!("ready {:?} after there was room again", freed.elapsed());
    ends
}

/// Asserts that the ledger has every request once, with the outcome that its client saw, and that
/// the money is right.
#[track_caller]
fn settled_as_seen(world: &World, account: &Account, seen: &[Ended]) {
    wait_for("all to be in the ledger", SOON, || {
        let standing = world.standing(account);
        let endings = world.endings(account);
        let ids: Vec<_> = endings
            .iter()
            .filter_map(|ending| ending["request_id"].as_str())
            .collect();
        let all = seen.iter().all(|ended| ids.contains(&ended.id.as_str()));
        (all && standing.held == 0 && standing.balance == FUNDS - taken(&endings)).then_some(())
    });
    let endings = world.endings(account);
    for Ended { id, is_whole, .. } in seen {
        let of: Vec<_> = endings
            .iter()
            .filter(|ending| ending["request_id"] == id.as_str())
            .collect();
        assert_eq!(of.len(), 1, "{of:?}");
        assert_eq!(
            of[0]["outcome"],
            if *is_whole {
                "completed"
            } else {
                "interrupted"
            },
            "{}",
            of[0]
        );
        assert_eq!(micro(&of[0]["credits"]) > 0, *is_whole, "{}", of[0]);
    }
    let verdict = world.json(&["ledger", "verify"]);
    assert_eq!(verdict["findings"], json!([]), "{verdict}");
}

fn on(disk: &Disk) -> World {
    Plan::default()
        .data(&disk.data())
        .limit("journal_reserve_bytes", 65_536)
        .start()
}

/// The disk has room again: both surfaces work, each idempotency key has the state that its request
/// left, and a kill leaves no unreadable record.
fn works_again(mut world: World, account: &Account, seen: &[Ended]) {
    for surface in BOTH {
        world.works(surface, &account.key);
        let keyed = surface
            .whole(&account.key, "input=1 output=1")
            .header("idempotency-key", "after-full");
        world.expect(200, &keyed);
    }
    std::thread::scope(|scope| {
        for ended in seen {
            let (Some(request), world) = (&ended.keyed, &world) else {
                continue;
            };
            scope.spawn(move || {
                let again = wait_for("the end of a key's request", SOON, || {
                    let answer = world.ask(request);
                    (!answer.has("idempotency_running")).then_some(answer)
                });
                let is_replayed = again.header("x-gateway-replayed") == Some("true");
                let is_spent = is_replayed || again.has("idempotency_result_unavailable");
                assert_eq!(
                    is_spent,
                    ended.is_whole,
                    "{:?} {}: {}",
                    ended.surface,
                    again.status,
                    again.text()
                );
            });
        }
    });
    world.kill();
    world.start_gateway();
    settled_as_seen(&world, account, seen);
    let journal = std::fs::read_dir(world.data_dir().join("journal")).unwrap();
    let damaged = journal
        .flatten()
        .filter(|entry| entry.path().extension().is_some())
        .count();
    assert_eq!(
        damaged, 0,
        "a record was torn in a living process, and stayed"
    );
    world.close();
}

#[test]
fn what_runs_while_the_disk_fills_up_still_ends_whole_and_debited() {
    let disk = Disk::new();
    let world = on(&disk);
    let account = world.funded(FUNDS);
    let seen = fill_and_free(&disk, &world, &account);
    let withheld = seen.iter().filter(|ended| !ended.is_whole).count();
    assert_eq!(withheld, 0, "answers were withheld of {}", seen.len());
    settled_as_seen(&world, &account, &seen);
    works_again(world, &account, &seen);
}

/// Control: the same full disk without the reserve. If the gateway cannot journal an answer, it
/// withholds it, sends an error, and posts a void.
#[test]
fn without_the_reserve_answers_are_withheld_and_void() {
    let disk = Disk::new();
    if !disk.is_mounted {
        test_world::skip(
            "no tmpfs can be mounted here, and a limit on the size of files takes nothing from the reserve",
        );
        return;
    }
    let world = on(&disk);
    let account = world.funded(FUNDS);
    let reserve = std::fs::File::options()
        .write(true)
        .open(boot_dir(&disk.data()).join("reserve"))
        .unwrap();
    reserve
        .set_len(1)
        .and_then(|()| reserve.set_len(0))
        .unwrap();
    let seen = fill_and_free(&disk, &world, &account);
    let withheld = seen.iter().filter(|ended| !ended.is_whole).count();
    println!(
        "without the reserve {withheld} of {} answers were withheld",
        seen.len()
    );
    assert!(
        withheld > 0,
        "the disk was full, the reserve gone, and every answer was journalled"
    );
    assert_eq!(
        world.metric("gateway_upstream_breaker_opened_total", &[]),
        0.0,
        "the vendor has answered each time"
    );
    settled_as_seen(&world, &account, &seen);
    works_again(world, &account, &seen);
}

#[test]
fn a_gateway_that_starts_without_room_for_its_reserve_waits_for_it_and_then_serves() {
    let disk = Disk::new();
    if !disk.is_mounted {
        test_world::skip(
            "no tmpfs can be mounted here, and a limit on the size of files ends with its process",
        );
        return;
    }
    let mut world = Plan::default().data(&disk.data()).start();
    let account = world.funded(FUNDS);
    world.works(BOTH[0], &account.key);
    world.ended(&account, 1);
    world.signal("TERM");
    assert_eq!(world.wait_end(SOON), 0);
    disk.fill(&world);
    // Leaves room to open the databases, but not for the reserve.
    let ballast = std::fs::File::options()
        .write(true)
        .open(disk.ballast())
        .unwrap();
    ballast
        .set_len(ballast.metadata().unwrap().len() - (1 << 20))
        .unwrap();
    drop(ballast);
    world.begin_gateway(None);
    for surface in BOTH {
        let request = surface.whole(&account.key, "input=1 output=1");
        let answer = wait_for("an answer", SOON, || client::try_ask(world.edge, &request));
        refused(surface, &answer);
    }
    assert!(!world.is_ready());
    assert_eq!(world.vendor.calls(), 1);
    disk.free(&world);
    wait_until("the gateway to be ready by itself", SOON, || {
        world.is_ready()
    });
    world.works(BOTH[0], &account.key);
}
