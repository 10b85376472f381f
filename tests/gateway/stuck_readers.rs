//! Readers of the gateway's log and access log that stand still, or that never came: they hold up
//! neither a start nor a request nor the end.

use crate::client::{self, Request};
use crate::world::{SOON, binary, free_port, signal, wait_for};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::process::{Child, Command, Stdio};

const SHIPPED: &str = include_str!("../../conf/local.yaml");
/// A pipe holds 64 KiB, less what its pages have left at their ends.
const MIN_FULL_BYTES: u64 = 32_768;

/// A gateway whose log nobody can read here.
struct Gateway(Child);

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn readers_that_stand_still_hold_up_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (edge, sidecar, admin) = (free_port(), free_port(), free_port());
    let mut text = SHIPPED.to_owned();
    for (shipped, port) in [("8080", edge), ("8081", sidecar), ("9090", admin)] {
        text = text.replace(
            &format!("127.0.0.1:{shipped}"),
            &format!("127.0.0.1:{port}"),
        );
    }
    let (data, pipe) = (path("data"), path("access.pipe"));
    text = text.replace(r#""data""#, &format!("{:?}", data.display().to_string()));
    text = text
        .lines()
        .filter(|line| !line.starts_with("access_log:"))
        .map(|line| format!("{line}\n"))
        .collect();
    text += &format!("access_log: {:?}\n", pipe.display().to_string());
    std::fs::write(path("gateway.yaml"), text).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();

    let (unread, stderr) = std::io::pipe().unwrap();
    let writable = stderr.try_clone().unwrap();
    test_world::count_program();
    let started = Command::new(binary())
        .args(["run", "-c"])
        .arg(path("gateway.yaml"))
        .env("RUST_LOG", "trace")
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn();
    let mut gateway = Gateway(started.unwrap());
    wait_for("the gateway to be ready", SOON, || {
        let answer = client::try_ask(admin, &Request::get("/readyz"))?;
        (answer.status == 200).then_some(())
    });
    let works = || {
        assert_eq!(client::ask(edge, &Request::get("/healthz")).status, 200);
        assert_eq!(client::ask(edge, &Request::get("/v1/models")).status, 401);
    };
    let waiting = || rustix::io::ioctl_fionread(&unread).unwrap();
    // That it does not grow is not enough: on a busy machine the thread that writes may rest.
    let takes_more = || {
        let mut ends = [PollFd::new(&writable, PollFlags::OUT)];
        poll(&mut ends, Some(&Timespec::default())).unwrap() > 0
    };
    let full = wait_for("the pipe to be full", SOON, || {
        let before = waiting();
        (0..5).for_each(|_| works());
        (!takes_more() && waiting() == before && before >= MIN_FULL_BYTES).then_some(before)
    });
    (0..20).for_each(|_| works());
    signal(gateway.0.id(), "TERM");
    let status = wait_for("the gateway to end", SOON, || gateway.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
    assert_eq!(waiting(), full, "nobody has read it");
}
