//! Tests a successor that waits for the running gateway to hand over: how both react to signals,
//! which config the successor starts with, and that no other process shares the gateway's
//! addresses.

use crate::account::Account;
use crate::client::Request;
use crate::surface::{BOTH, Chat};
use crate::world::{Plan, SOON, World, binary, free_port, signal, wait_for};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

const STORE: &str = "store: {kind: embedded}";

impl World {
    fn all_work(&self, account: &Account) {
        for surface in BOTH {
            self.works(surface, &account.key);
        }
    }

    fn has(&self, account: &Account, model: &str) -> bool {
        self.ask(&Request::get(&format!("/v1/models/{model}")).bearer(&account.key))
            .status
            == 200
    }

    /// Changes a text of the config file.
    fn rewrite(&self, from: &str, to: &str) {
        let text = std::fs::read_to_string(&self.config).unwrap();
        assert!(text.contains(from), "{from:?} is not in the config file");
        std::fs::write(&self.config, text.replace(from, to)).unwrap();
    }
}

#[test]
fn a_reload_and_a_hand_over_that_it_is_told_of_too_early_do_it_no_harm() {
    let (mut world, account) = World::with_account();
    let mut successor = world.begin_successor();
    for name in ["HUP", "QUIT", "HUP"] {
        signal(successor.id(), name);
    }
    world.all_work(&account);
    assert_eq!(successor.try_wait().unwrap(), None, "it waits on");
    let mut old = world.hand_over_to(successor);
    let status = wait_for("the old gateway to end", SOON, || old.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
    world.all_work(&account);
    // The successor now handles the signals that it got while it waited, each once.
    world.wait_metric("gateway_config_reloads_total", &["\"ok\""], 1.0);
    world.wait_log("no successor waits");
}

#[test]
fn one_that_is_told_to_end_ends_at_once_and_the_running_one_serves_on() {
    let (mut world, account) = World::with_account();
    for (name, number) in [("TERM", 15), ("INT", 2)] {
        let mut successor = world.begin_successor();
        signal(successor.id(), name);
        let status = wait_for("the successor to end", SOON, || {
            successor.try_wait().unwrap()
        });
        assert_eq!(
            (status.code(), status.signal()),
            (None, Some(number)),
            "it served nothing yet"
        );
        world.all_work(&account);
        world.signal("QUIT");
        world.wait_log("no successor waits");
        world.all_work(&account);
    }
    // A later successor can take over.
    let mut old = world.upgrade();
    wait_for("the old gateway to end", SOON, || old.try_wait().unwrap());
    world.all_work(&account);
}

/// An operator who reads that the successor waits may send the signal at once.
#[test]
fn it_says_that_it_waits_only_once_it_can_be_handed_to() {
    let mut world = World::new();
    let mut successor = world.begin_successor();
    let second = world.command(&["run", "--upgrade"]);
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(
        second.status.code() == Some(1) && said.contains("another process already waits"),
        "{said}"
    );
    assert!(!said.contains("waiting for the running gateway"), "{said}");
    assert_eq!(successor.try_wait().unwrap(), None);
    let mut old = world.hand_over_to(successor);
    wait_for("the old gateway to end", SOON, || old.try_wait().unwrap());
}

/// The gateway waits up to a minute for the successor to ask for the sockets.
#[test]
fn a_gateway_whose_successor_does_not_come_is_told_to_end_all_the_same() {
    let (mut world, account) = World::with_account();
    let mut successor = world.begin_successor();
    signal(successor.id(), "STOP");
    world.signal("QUIT");
    world.wait_log("handing over");
    world.all_work(&account);
    world.signal("TERM");
    assert_eq!(world.wait_end(SOON), 0);
    successor.kill().unwrap();
    successor.wait().unwrap();
    world.start_gateway();
    world.all_work(&account);
}

/// The gateway has already released the ledger. Without the sockets the successor could not serve,
/// and nobody would.
#[test]
fn one_that_is_told_to_end_while_it_hands_over_hands_over_first() {
    let (mut world, account) = World::with_account();
    let successor = world.begin_successor();
    let waiting = successor.id();
    signal(waiting, "STOP");
    let mut old = world.hand_over_by(successor, |world| {
        world.signal("QUIT");
        world.wait_log("handing over");
        world.signal("TERM");
        signal(waiting, "CONT");
    });
    let status = wait_for("the old gateway to end", SOON, || old.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
    world.all_work(&account);
}

#[test]
fn it_serves_by_the_limits_of_that_moment_and_names_what_it_was_begun_with() {
    let plan = Plan::default()
        .limit("open_requests_per_account", 1)
        .limit("journal_pending", 2_048);
    let (mut world, account) = plan
        .edit(STORE, &format!("{STORE}\nauto_reload: false"))
        .with_account();
    let successor = world.begin_successor();
    world.rewrite(
        "open_requests_per_account: 1",
        "open_requests_per_account: 2",
    );
    world.rewrite("journal_pending: 2048", "journal_pending: 4096");
    let mut old = world.hand_over_to(successor);
    wait_for("the old gateway to end", SOON, || old.try_wait().unwrap());
    assert!(
        world.log().contains("limits.journal_pending was changed"),
        "{}",
        world.log()
    );
    assert_eq!(world.metric("gateway_config_keys_waiting", &[]), 1.0);
    let (mut running, mut answer) =
        world.begin_stream(&Chat.stream(&account.key, "events=8 hold=5 input=10 output=5"));
    world.expect(200, &Chat.whole(&account.key, "input=1 output=1"));
    world.vendor.release();
    running.finish(&mut answer);
}

/// A gateway that reads its config file at its start and on SIGHUP only.
fn without_auto_reload() -> (World, Account) {
    let (world, account) = Plan::default()
        .edit(STORE, &format!("{STORE}\nauto_reload: false"))
        .with_account();
    (world, account)
}

#[test]
fn it_begins_by_the_file_of_that_moment() {
    let (mut world, account) = without_auto_reload();
    let successor = world.begin_successor();
    world.rewrite("id: beta-5.5", "id: beta-6");
    let mut old = world.hand_over_to(successor);
    wait_for("the old gateway to end", SOON, || old.try_wait().unwrap());
    assert!(
        world.has(&account, "beta-6") && !world.has(&account, "beta-5.5"),
        "the file of its own start was used"
    );
    world.close();
}

#[test]
fn it_begins_by_the_file_before_where_that_of_the_moment_is_no_good() {
    let (mut world, account) = without_auto_reload();
    let successor = world.begin_successor();
    world.rewrite("id: beta-5.5", "colour: blue\n    id: beta-6");
    let mut old = world.hand_over_to(successor);
    wait_for("the old gateway to end", SOON, || old.try_wait().unwrap());
    assert!(
        world.has(&account, "beta-5.5") && world.log().contains("colour"),
        "{}",
        world.log()
    );
    world.rewrite("colour: blue\n    ", "");
    world.close();
}

/// The successor finds the running gateway by the data folder.
#[test]
fn it_begins_by_the_file_of_its_own_start_where_that_of_the_moment_has_another_folder() {
    let (mut world, account) = without_auto_reload();
    world.rewrite("id: beta-5.5", "id: beta-6");
    let successor = world.begin_successor();
    let data = format!("{:?}", world.data_dir().display().to_string());
    world.rewrite(&data, "\"elsewhere\"");
    let mut old = world.hand_over_to(successor);
    wait_for("the old gateway to end", SOON, || old.try_wait().unwrap());
    assert!(
        world.has(&account, "beta-6") && world.log().contains("data_dir was changed"),
        "{}",
        world.log()
    );
    world.rewrite("\"elsewhere\"", &data);
    world.close();
}

/// No two gateways share an address, also while one says that it takes over from another.
#[test]
fn a_gateway_of_other_data_does_not_share_an_address() {
    let world = World::new();
    let shipped = std::fs::read_to_string(&world.config).unwrap();
    let data = format!("{:?}", world.data_dir().display().to_string());
    let ports = [world.edge, world.sidecar, world.admin];
    let taken = [
        ("listen.edge", world.edge, "run"),
        ("listen.sidecar", world.sidecar, "run"),
        ("listen.admin", world.admin, "run"),
        ("listen.admin", world.admin, "run --upgrade"),
    ];
    let starts = taken.map(|(key, port, command)| {
        let folder = world.dir.path().join(format!("{key} {command}"));
        let mut text = shipped.replace(&data, &format!("{:?}", folder.display().to_string()));
        for free in ports.into_iter().filter(|free| *free != port) {
            text = text.replace(&format!(":{free}\""), &format!(":{}\"", free_port()));
        }
        assert!(text.contains(&format!(":{port}\"")));
        let config = world.dir.path().join(format!("{key} {command}.yaml"));
        std::fs::write(&config, text).unwrap();
        let run = move || {
            Command::new("timeout")
                .args(["40", binary()])
                .args(command.split(' '))
                .arg("-c")
                .arg(&config)
                .output()
                .unwrap()
        };
        (
            format!("listen on {key} 127.0.0.1:{port}"),
            std::thread::spawn(run),
        )
    });
    for (refusal, start) in starts {
        let output = start.join().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && said.contains(&refusal),
            "{refusal}: {said}"
        );
    }
    let account = world.account();
    world.ask(&Chat.whole(&account.key, "input=1 output=1"));
}
