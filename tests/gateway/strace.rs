//! Watches the system calls of a running gateway, or lets its disk stand still: `strace` holds up
//! each thread that writes to a file of the data directory.
//!
//! It must not know what a test is about.

use crate::world::{SOON, World, wait_for};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Calls that read a file, change it, or open one.
const FILE_CALLS: &str = "open,openat,creat,read,readv,pread64,preadv,preadv2,write,writev,pwrite64,pwritev,pwritev2,fsync,fdatasync,sync_file_range,ftruncate,fallocate,rename,renameat,renameat2,unlink,unlinkat";
/// Calls at which a thread waits for a disk that does not answer.
const BLOCKING_CALLS: &str = "write,writev,pwrite64,pwritev,pwritev2,fsync,fdatasync";

/// A `strace` that is attached to a gateway.
struct Tracer(Child);

impl Tracer {
    /// Attaches to every thread of the gateway, also to those that begin later. Returns `None` and
    /// skips the test if this machine does not allow that.
    fn attach(world: &World, output: &Path, options: &[String]) -> Option<Self> {
        let tracer = Command::new("strace")
            .args(["-f", "-p", &world.pid().to_string(), "-o"])
            .arg(output)
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

/// Records which thread of a gateway reads or writes which file.
pub struct FileCalls {
    tracer: Tracer,
    dir: TempDir,
}

/// One system call: the thread's name, and the call as strace prints it.
#[derive(Debug, Clone)]
pub struct FileCall {
    pub thread: String,
    pub call: String,
}

impl FileCalls {
    pub fn record(world: &World) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        // The names of threads, and the paths of descriptors.
        let options = ["-Y", "-y", "-s", "24", "-e"].map(str::to_owned);
        let options = [&options[..], &[format!("trace={FILE_CALLS}")]].concat();
        let tracer = Tracer::attach(world, &dir.path().join("calls"), &options)?;
        Some(Self { tracer, dir })
    }

    /// Ends the recording. Returns the calls that are about a file, the standard output or the
    /// standard error.
    pub fn end(self) -> Vec<FileCall> {
        let path = self.dir.path().join("calls");
        drop(self.tracer);
        let text = String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
        text.lines().filter_map(parse_call).collect()
    }
}

/// Parses a line such as `71<edge> write(9</data/a.log>, "\n", 1) = 1`.
fn parse_call(line: &str) -> Option<FileCall> {
    let (thread, call) = line.split_once("> ")?;
    let thread = thread.split_once('<')?.1.to_owned();
    let (name, arguments) = call.trim_start().split_once('(')?;
    let opens_or_names = name.starts_with("open") || name.contains("link") || name.contains("name");
    let descriptor = arguments.split_once('<');
    let is_file = descriptor.is_some_and(|(number, path)| {
        let is_standard = matches!(number, "1" | "2");
        is_standard || path.starts_with('/') && !path.starts_with("/proc/")
    });
    (opens_or_names || is_file).then(|| FileCall {
        thread,
        call: call.trim_start().to_owned(),
    })
}

/// A disk that does not answer while this lives.
pub struct FrozenDisk(#[expect(dead_code, reason = "ends the freeze when it is dropped")] Tracer);

impl FrozenDisk {
    /// Holds up every thread that writes to a file that is in the data directory now.
    pub fn freeze(world: &World) -> Option<Self> {
        Self::hold_up(world, &files_in(&world.data_dir()), BLOCKING_CALLS)
    }

    /// Holds up every thread that writes to the database `name`.
    pub fn freeze_writes_of(world: &World, name: &str) -> Option<Self> {
        Self::hold_up(world, &databases_in(world, name), BLOCKING_CALLS)
    }

    /// Holds up every thread that begins to read a database whose name ends with `name`.
    pub fn freeze_reads(world: &World, name: &str) -> Option<Self> {
        Self::hold_up(world, &databases_in(world, name), "fcntl,pread64")
    }

    /// Holds up every thread that reads a page of the database `name`, or its log. What is in
    /// memory can be read.
    pub fn freeze_pages(world: &World, name: &str) -> Option<Self> {
        let mut files = databases_in(world, name);
        files.retain(|file| !file.to_str().unwrap().ends_with("-shm"));
        Self::hold_up(world, &files, "pread64")
    }

    /// Holds up every thread that checks a database for writes of other processes.
    pub fn freeze_checks(world: &World) -> Option<Self> {
        let mut files = files_in(&world.data_dir());
        files.retain(|file| file.to_str().unwrap().ends_with("-shm"));
        assert!(!files.is_empty(), "no database is open");
        Self::hold_up(world, &files, "pread64")
    }

    fn hold_up(world: &World, files: &[PathBuf], calls: &str) -> Option<Self> {
        let fault = format!("inject={calls}:delay_enter=1000000000");
        let options = options_of(files, calls, fault);
        Tracer::attach(world, Path::new("/dev/null"), &options).map(Self)
    }
}

/// Files that refuse every write while this lives.
pub struct RefusingFiles(
    #[expect(dead_code, reason = "ends the faults when it is dropped")] Tracer,
);

impl RefusingFiles {
    /// Lets writes to the files of the data directory whose path contains `name` fail with this
    /// error.
    pub fn begin(world: &World, name: &str, error: &str) -> Option<Self> {
        let data_dir = world.data_dir();
        let mut files = files_in(&data_dir);
        files.retain(|file| {
            let path = file.strip_prefix(&data_dir).unwrap().to_str().unwrap();
            path.contains(name) && !path.ends_with("-shm")
        });
        assert!(!files.is_empty(), "no file {name} in the data directory");
        let fault = format!("inject={BLOCKING_CALLS}:error={error}");
        let options = options_of(&files, BLOCKING_CALLS, fault);
        Tracer::attach(world, Path::new("/dev/null"), &options).map(Self)
    }
}

/// Returns the options of a fault in these calls on these files.
fn options_of(files: &[PathBuf], calls: &str, fault: String) -> Vec<String> {
    let of_file = |file: &PathBuf| ["-P".to_owned(), file.display().to_string()];
    let mut options: Vec<_> = files.iter().flat_map(of_file).collect();
    options.extend(["-e".to_owned(), format!("trace={calls}")]);
    options.extend(["-e".to_owned(), fault]);
    options
}

/// The files of the databases whose name ends with `name`.
fn databases_in(world: &World, name: &str) -> Vec<PathBuf> {
    let mut files = files_in(&world.data_dir());
    files.retain(|file| {
        let file = file.to_str().unwrap();
        let file = file.trim_end_matches("-shm").trim_end_matches("-wal");
        file.ends_with(name)
    });
    files
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
