//! Lets the disk of a running gateway stand still: `strace` holds up each thread that writes to a
//! file of the data directory.
//!
//! It must not know what a test is about.

use crate::world::{SOON, World, wait_for};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Calls at which a thread waits for a disk that does not answer.
const BLOCKING_CALLS: &str = "write,writev,pwrite64,pwritev,pwritev2,fsync,fdatasync";

/// A `strace` that is attached to a gateway.
struct Tracer(Child);

impl Tracer {
    /// Attaches to every thread of the gateway, also to those that begin later. Returns `None` and
    /// skips the test if this machine does not allow that.
    fn attach(world: &World, options: &[String]) -> Option<Self> {
        let tracer = Command::new("strace")
            .args(["-f", "-p", &world.pid().to_string(), "-o", "/dev/null"])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(tracer) = tracer else {
            test_world::skip("there is no strace");
            return None;
        };
        let mut tracer = Self(tracer);
        let is_attached = wait_for("strace to attach or to end", SOON, || {
            if tracer.0.try_wait().unwrap().is_some() {
                return Some(false);
            }
            let threads = std::fs::read_dir(format!("/proc/{}/task", world.pid())).unwrap();
            let untraced = threads.flatten().any(|thread| {
                std::fs::read_to_string(thread.path().join("status"))
                    .is_ok_and(|status| status.contains("TracerPid:\t0\n"))
            });
            (!untraced).then_some(true)
        });
        if !is_attached {
            test_world::skip("strace may not attach to a process here");
            return None;
        }
        Some(tracer)
    }
}

impl Drop for Tracer {
    /// The kernel detaches a tracer that is killed, and the threads go on.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A disk that does not answer while this lives.
pub struct FrozenDisk(#[expect(dead_code, reason = "ends the freeze when it is dropped")] Tracer);

impl FrozenDisk {
    /// Holds up every thread that writes to a file that is in the data directory now and whose name
    /// `is_frozen`.
    pub fn freeze(world: &World, is_frozen: impl Fn(&str) -> bool) -> Option<Self> {
        let mut options = Vec::new();
        let named = |file: &PathBuf| is_frozen(&file.file_name().unwrap().to_string_lossy());
        for file in files_in(&world.data_dir()).into_iter().filter(named) {
            options.extend(["-P".to_owned(), file.display().to_string()]);
        }
        options.extend([
            "-e".to_owned(),
            format!("trace={BLOCKING_CALLS}"),
            "-e".to_owned(),
            format!("inject={BLOCKING_CALLS}:delay_enter=1000000000"),
        ]);
        Tracer::attach(world, &options).map(Self)
    }
}

fn files_in(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files.extend(files_in(&entry.path())),
            Ok(kind) if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    files
}
