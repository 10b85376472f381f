//! The gateway reloads the config file and the files that it names after a change, without a
//! signal. An invalid or incomplete file changes nothing.

use crate::account::Account;
use crate::client::Request;
use crate::surface::Chat;
use crate::world::{Plan, SOON, World, wait_until};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longer than the gateway needs to notice a change: it polls every quarter of a second, and a file
/// must be unchanged for one second.
const UNSEEN: Duration = Duration::from_secs(4);

impl World {
    fn reloads(&self, result: &str) -> f64 {
        self.metric(
            "gateway_config_reloads_total",
            &[&format!("result=\"{result}\"")],
        )
    }

    /// Waits until exactly this many files have been taken up and refused. A file is counted soon
    /// after it is taken up.
    #[track_caller]
    fn wait_reloads(&self, ok: f64, refused: f64) {
        wait_until("reloads to be counted", SOON, || {
            (self.reloads("ok"), self.reloads("refused")) == (ok, refused)
        });
    }

    fn config_file(&self) -> String {
        std::fs::read_to_string(&self.config).unwrap()
    }

    fn sells(&self, account: &Account, model: &str) -> bool {
        self.ask(&Request::get(&format!("/v1/models/{model}")).bearer(&account.key))
            .status
            == 200
    }

    fn wait_sold(&self, account: &Account, model: &str) {
        wait_until(&format!("{model} to be sold"), SOON, || {
            self.sells(account, model)
        });
    }
}

/// The shipped config file with another id for its last model.
fn selling(shipped: &str, model: &str) -> String {
    let text = shipped.replace("id: beta-5.5", &format!("id: {model}"));
    assert_ne!(text, shipped);
    text
}

#[test]
fn a_changed_file_is_taken_up_and_a_bad_one_changes_nothing_and_is_told_once() {
    let (world, account) = World::with_account();
    let shipped = world.config_file();
    std::fs::write(&world.config, selling(&shipped, "beta-6")).unwrap();
    world.wait_sold(&account, "beta-6");
    world.wait_reloads(1.0, 0.0);

    std::fs::write(&world.config, format!("{shipped}colour: blue\n")).unwrap();
    wait_until("the refusal", SOON, || world.reloads("refused") > 0.0);
    assert!(world.sells(&account, "beta-6") && !world.sells(&account, "beta-5.5"));
    let began = Instant::now();
    while began.elapsed() < UNSEEN {
        assert_eq!(
            (world.reloads("ok"), world.reloads("refused")),
            (1.0, 1.0),
            "one change is tried once"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(
        world.log().matches("cannot reload the config file").count(),
        1
    );
    assert!(world.log().contains("colour"), "{}", world.log());

    // Some editors write a second file and rename it. Between the two steps the config file does
    // not exist.
    std::fs::remove_file(&world.config).unwrap();
    let beside = world.dir.path().join("gateway.yaml~");
    std::fs::write(&beside, selling(&shipped, "beta-7")).unwrap();
    std::fs::rename(&beside, &world.config).unwrap();
    world.wait_sold(&account, "beta-7");
    world.wait_reloads(2.0, 1.0);
    // After a reload by signal the gateway does not load the same change a second time.
    std::fs::write(&world.config, &shipped).unwrap();
    world.signal("HUP");
    world.wait_sold(&account, "beta-5.5");
    std::thread::sleep(UNSEEN);
    world.wait_reloads(3.0, 1.0);
}

/// Longest time between two writes of a file that counts as being written, below the time for which
/// a file must be unchanged.
const STEADY: Duration = Duration::from_millis(800);

#[test]
fn a_file_that_is_being_written_is_not_read_half() {
    let deadline = Instant::now() + 4 * SOON;
    while !is_written_steadily() {
        assert!(
            Instant::now() < deadline,
            "this machine pauses all the time"
        );
    }
}

/// Returns `false` if the machine paused this test between two writes, so that the gateway could
/// take the file for a whole one.
fn is_written_steadily() -> bool {
    let (world, account) = World::with_account();
    let whole = selling(&world.config_file(), "beta-6");
    // The part before the last model is a valid file too, with fewer models.
    let (first, last) = whole.split_at(whole.find("  - id: beta-5.2").unwrap());
    std::fs::write(&world.config, first).unwrap();
    let began = Instant::now();
    let (mut written, mut written_at) = (first.to_owned(), began);
    for line in last.lines() {
        std::thread::sleep(Duration::from_millis(300));
        written.push_str(line);
        written.push('\n');
        std::fs::write(&world.config, &written).unwrap();
        if written_at.elapsed() > STEADY {
            world.close();
            return false;
        }
        written_at = Instant::now();
        assert!(
            world.sells(&account, "beta-5.2"),
            "half a file was read after {:?}",
            began.elapsed()
        );
    }
    assert!(
        began.elapsed() > Duration::from_secs(3),
        "this was to take longer than one look"
    );
    world.wait_sold(&account, "beta-6");
    world.wait_reloads(1.0, 0.0);
    world.close();
    true
}

/// A folder as Kubernetes mounts a ConfigMap: the files are symlinks through `..data`, which
/// Kubernetes switches in one step.
fn turn(folder: &Path, version: &str, files: &[(&str, &str)]) {
    let of_version = folder.join(version);
    std::fs::create_dir(&of_version).unwrap();
    for (name, text) in files {
        std::fs::write(of_version.join(name), text).unwrap();
        let link = folder.join(name);
        if std::fs::symlink_metadata(&link).is_err() {
            symlink(PathBuf::from("..data").join(name), &link).unwrap();
        }
    }
    symlink(version, folder.join("..next")).unwrap();
    std::fs::rename(folder.join("..next"), folder.join("..data")).unwrap();
}

#[test]
fn links_that_are_turned_bring_new_settings_and_new_secrets() {
    let mounted = tempfile::tempdir().unwrap();
    let folder = mounted.path();
    let secret = format!("api_key: \"file:{}\"", folder.join("beta.key").display());
    let world = Plan::default().edit("api_key: \"sim-beta-key\"", &secret);
    turn(folder, "..1", &[("beta.key", "key-of-yesterday\n")]);
    let (mut world, account) = world.with_account();
    let sent = |world: &World| {
        world.expect(200, &Chat.whole(&account.key, "input=1 output=1"));
        let headers = world.vendor.last()["headers"].clone();
        let sent = headers
            .as_array()
            .unwrap()
            .iter()
            .find(|header| header[0] == "authorization")
            .cloned();
        sent.expect("the vendor's key")[1]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(sent(&world), "Bearer key-of-yesterday");
    turn(folder, "..2", &[("beta.key", "key-of-today\n")]);
    wait_until("the new key", SOON, || {
        sent(&world) == "Bearer key-of-today"
    });

    // The config file itself is mounted in the same way.
    let shipped = world.config_file();
    world.signal("TERM");
    assert_eq!(world.wait_end(SOON), 0);
    turn(
        folder,
        "..3",
        &[("beta.key", "key-of-today\n"), ("gateway.yaml", &shipped)],
    );
    world.config = folder.join("gateway.yaml");
    world.start_gateway();
    let next = selling(&shipped, "beta-6");
    turn(
        folder,
        "..4",
        &[("beta.key", "key-of-tomorrow\n"), ("gateway.yaml", &next)],
    );
    world.wait_sold(&account, "beta-6");
    assert_eq!(sent(&world), "Bearer key-of-tomorrow");
    // Both at once.
    world.wait_reloads(1.0, 0.0);
    // The gateway refuses an empty or missing secret and keeps the previous one. The log does not
    // contain the secret.
    std::fs::write(folder.join("beta.key"), "").unwrap();
    wait_until("the refusal", SOON, || world.reloads("refused") > 0.0);
    assert_eq!(sent(&world), "Bearer key-of-tomorrow");
    std::fs::remove_file(folder.join("beta.key")).unwrap();
    wait_until("the second refusal", SOON, || {
        world.reloads("refused") > 1.0
    });
    assert_eq!(sent(&world), "Bearer key-of-tomorrow");
    assert!(!world.log().contains("key-of-"), "{}", world.log());
    turn(
        folder,
        "..5",
        &[
            ("beta.key", "key-of-the-day-after\n"),
            ("gateway.yaml", &next),
        ],
    );
    wait_until("the secret that is back", SOON, || {
        sent(&world) == "Bearer key-of-the-day-after"
    });
}

#[test]
fn who_does_not_want_it_has_the_signal_alone_and_hears_what_only_a_restart_takes() {
    let store = "store: {kind: embedded}";
    let (world, account) = Plan::default()
        .edit(store, &format!("{store}\nauto_reload: false"))
        .with_account();
    let shipped = world.config_file();
    std::fs::write(&world.config, selling(&shipped, "beta-6")).unwrap();
    std::thread::sleep(UNSEEN);
    assert_eq!(
        (world.reloads("ok"), world.sells(&account, "beta-6")),
        (0.0, false)
    );
    world.signal("HUP");
    world.wait_sold(&account, "beta-6");
    assert!(!world.log().contains("was changed"), "{}", world.log());
    let moved = shipped.replace(
        &format!("admin: \"127.0.0.1:{}\"", world.admin),
        "admin: \"127.0.0.1:1\"",
    );
    assert_ne!(moved, shipped);
    let (before, after) = moved.split_once("sidecar: \"127.0.0.1:").unwrap();
    let (_, after) = after.split_once('"').unwrap();
    let moved = format!("{before}sidecar: \"127.0.0.1:2\"{after}");
    std::fs::write(&world.config, moved).unwrap();
    world.signal("HUP");
    world.wait_log("listen.admin was changed");
    assert_eq!(
        world.log().matches("was changed").count(),
        2,
        "{}",
        world.log()
    );
    world.wait_sold(&account, "beta-5.5");
    // The sidecar still listens at its old address.
    world.expect(200, &Request::get("/dashboard/sign-in"));
}

#[test]
fn the_sidecar_of_many_edges_looks_too() {
    let world = Plan::default().shared().start();
    let sidecar = &world.beside.as_ref().unwrap().sidecar;
    let catalog = || crate::client::ask(sidecar.sidecar, &Request::get("/docs")).text();
    assert!(!catalog().contains("beta-6"));
    std::fs::write(&sidecar.config, selling(&sidecar.config_file(), "beta-6")).unwrap();
    wait_until("the catalog's new model", SOON, || {
        catalog().contains("beta-6")
    });
    sidecar.wait_reloads(1.0, 0.0);
    assert_eq!(
        world.reloads("ok"),
        0.0,
        "the edge's own file was left alone"
    );
}
