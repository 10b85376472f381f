//! Starts real PostgreSQL servers for a test: a primary, and a standby that the primary waits for
//! with each commit. They end with the test.

use crate::ports::free_port;
use crate::{SOON, wait_until};
use std::io::Write;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const USER: &str = "gateway";

/// Settings of the server. They record the times of commits, for tests that measure them.
const SETTINGS: &str = "max_connections = 50\nshared_buffers = 32MB\ntrack_commit_timestamp = on\n";

/// A `postgres` process on a free port.
pub struct PostgresServer {
    pub port: u16,
    process: Option<Child>,
    dir: TempDir,
}

impl PostgresServer {
    /// Starts a server without a standby. Its files are in memory, because tests concern processes
    /// that die, not power cuts.
    pub fn start() -> Self {
        Self::start_in(&memory())
    }

    /// Starts a server without a standby, with its files in this folder.
    pub fn start_in(parent: &Path) -> Self {
        let dir = new_dir(parent);
        let data = data_dir(&dir);
        run(program("initdb")
            .args(["--username", USER, "--auth", "trust", "--encoding", "UTF8"])
            .args(["--no-locale", "--no-sync", "--data-checksums", "--pgdata"])
            .arg(&data));
        // `pg_rewind` also starts the server, and must use the same settings.
        let mut settings = std::fs::File::options()
            .append(true)
            .open(data.join("postgresql.conf"))
            .unwrap();
        settings.write_all(SETTINGS.as_bytes()).unwrap();
        Self::serve(free_port(), dir)
    }

    /// Starts a standby that follows the server, and makes the server wait for it.
    pub fn start_standby(&self) -> Self {
        self.start_standby_in(&memory())
    }

    /// Starts a standby like [`PostgresServer::start_standby`], with its files in this folder.
    pub fn start_standby_in(&self, parent: &Path) -> Self {
        let standby = self.follow("standby", parent);
        self.wait_for_standby_named("standby");
        wait_for("the standby to be synchronous", || {
            let state = self.psql("postgres", "SELECT sync_state FROM pg_stat_replication");
            state == "quorum" || state == "sync"
        });
        standby
    }

    /// Makes each commit wait for the standby with this name.
    pub fn wait_for_standby_named(&self, name: &str) {
        let set = format!("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 ({name})'");
        self.psql("postgres", &set);
        self.psql("postgres", "SELECT pg_reload_conf()");
    }

    /// Starts an asynchronous standby of this server.
    pub fn start_follower(&self, name: &str) -> Self {
        self.follow(name, &memory())
    }

    fn follow(&self, name: &str, parent: &Path) -> Self {
        self.follow_on(free_port(), name, parent)
    }

    fn follow_on(&self, port: u16, name: &str, parent: &Path) -> Self {
        let dir = new_dir(parent);
        let source = format!(
            "host=127.0.0.1 port={} user={USER} application_name={name}",
            self.port
        );
        run(program("pg_basebackup")
            .args([
                "--write-recovery-conf",
                "--checkpoint",
                "fast",
                "--no-sync",
                "--dbname",
                &source,
            ])
            .arg("--pgdata")
            .arg(data_dir(&dir)));
        Self::serve(port, dir)
    }

    fn serve(port: u16, dir: TempDir) -> Self {
        let mut server = Self {
            port,
            process: None,
            dir,
        };
        server.start_again();
        server
    }

    /// Starts the server again on its files.
    pub fn start_again(&mut self) {
        let data = data_dir(&self.dir);
        wait_for("postgres to start", || {
            let mut child = program("postgres")
                .arg("-D")
                .arg(&data)
                .args(["-p", &self.port.to_string()])
                .args([
                    "-c",
                    "listen_addresses=127.0.0.1",
                    "-c",
                    "unix_socket_directories=",
                ])
                .stdout(Stdio::null())
                .stderr(std::fs::File::create(self.dir.path().join("log")).unwrap())
                .spawn()
                .unwrap();
            // After SIGKILL, processes of the previous server may still be ending.
            loop {
                if self.answers() {
                    self.process = Some(child);
                    return true;
                }
                if child.try_wait().unwrap().is_some() {
                    return false;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
    }

    /// Returns whether the server has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        let process = self.process.as_mut();
        process.is_none_or(|process| process.try_wait().unwrap().is_some())
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn answers(&self) -> bool {
        let ready = Command::new(bin_dir().join("pg_isready"))
            .args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()])
            .status();
        ready.is_ok_and(|status| status.success())
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Sends a signal such as `STOP` or `CONT` to the server.
    pub fn signal(&self, name: &str) {
        crate::signal(self.process.as_ref().unwrap().id(), name);
    }

    /// Makes a standby the primary.
    pub fn promote(&self) {
        self.psql("postgres", "SELECT pg_promote()");
    }

    /// Makes a server that was killed follow `primary`, which was its standby.
    pub fn rejoin(&mut self, primary: &Self, name: &str) {
        let source = format!(
            "host=127.0.0.1 port={} user={USER} dbname=postgres application_name={name}",
            primary.port
        );
        // Before its first checkpoint, a promoted server does not report the start of its timeline.
        primary.psql("postgres", "CHECKPOINT");
        let mut rewind = program("pg_rewind");
        rewind
            .args(["--write-recovery-conf", "--no-sync", "--source-server"])
            .arg(&source)
            .arg("--target-pgdata")
            .arg(data_dir(&self.dir));
        // After SIGKILL, the processes of the server may still be ending.
        let began = Instant::now();
        while !rewind.output().unwrap().status.success() {
            if began.elapsed() > Duration::from_secs(3) {
                *self = primary.follow_on(self.port, name, &memory());
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        self.start_again();
    }

    pub fn create_database(&self, name: &str) -> String {
        self.psql("postgres", &format!("CREATE DATABASE {name}"));
        self.address(name)
    }

    pub fn address(&self, database: &str) -> String {
        format!(
            "postgres://{USER}@127.0.0.1:{}/{database}?sslmode=disable",
            self.port
        )
    }

    /// Runs a statement and returns its output.
    pub fn psql(&self, database: &str, sql: &str) -> String {
        let output = self.try_psql(database, sql);
        assert!(
            output.status.success(),
            "{sql}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub fn try_psql(&self, database: &str, sql: &str) -> Output {
        Command::new(bin_dir().join("psql"))
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", USER])
            .args(["-d", database, "-qtAX", "-v", "ON_ERROR_STOP=1", "-c", sql])
            .output()
            .unwrap()
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the folder of the server's programs, which is not in the search path.
fn bin_dir() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("is postgresql installed?");
    let newest = versions
        .map(|version| version.unwrap().path().join("bin"))
        .max();
    newest.expect("is postgresql installed?")
}

/// Returns a command for a program of the server, which refuses to run as root.
fn program(name: &str) -> Command {
    let path = bin_dir().join(name);
    if !rustix::process::geteuid().is_root() {
        return Command::new(path);
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=postgres", "--regid=postgres", "--clear-groups"])
        .arg(path)
        .current_dir("/");
    command
}

/// Memory in bytes that several servers need.
const MEMORY_BYTES: u64 = 2 << 30;

fn memory() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let has_room = rustix::fs::statvfs(&memory)
        .is_ok_and(|state| state.f_bavail.saturating_mul(state.f_frsize) >= MEMORY_BYTES);
    match has_room {
        true => memory,
        false => std::env::temp_dir(),
    }
}

fn new_dir(parent: &Path) -> TempDir {
    let dir = tempfile::tempdir_in(parent).unwrap();
    if rustix::process::geteuid().is_root() {
        let id = |flag: &str| -> u32 {
            let output = Command::new("id")
                .args([flag, "postgres"])
                .output()
                .unwrap();
            String::from_utf8(output.stdout)
                .unwrap()
                .trim()
                .parse()
                .unwrap()
        };
        chown(dir.path(), Some(id("-u")), Some(id("-g"))).unwrap();
    }
    dir
}

fn data_dir(dir: &TempDir) -> PathBuf {
    dir.path().join("data")
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn wait_for(what: &str, condition: impl FnMut() -> bool) {
    wait_until(what, SOON, condition);
}
