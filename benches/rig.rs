//! Starts the processes to measure in front of a simulated vendor, reads their CPU time and memory,
//! and ends them with their owner. Must not send load to them or interpret the figures.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SHIPPED: &str = include_str!("../conf/local.yaml");
/// Timeout for everything that takes an instant on an idle machine.
const SOON: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(1);
/// Length of a tick in `/proc/PID/stat`: Linux always reports USER_HZ as 100.
const TICK_NS: u64 = 10_000_000;

/// A process that ends with its owner.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        // A program that counts for a compiler's profile writes it only if it ends by itself.
        if std::env::var_os("LLVM_PROFILE_FILE").is_some() {
            self.end();
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Asks the process to end, and waits for that. SIGINT: on SIGTERM a bare Pingora drains for
    /// minutes.
    fn end(&mut self) {
        let pid = self.0.id().try_into().ok();
        let Some(pid) = pid.and_then(Pid::from_raw) else {
            return;
        };
        if kill_process(pid, Signal::INT).is_ok() {
            let is_over = || !matches!(self.0.try_wait(), Ok(None));
            wait_for("to end a process", is_over);
        }
    }

    /// CPU time of all threads so far.
    pub fn cpu_ns(&self) -> u64 {
        cpu_ns(self.0.id())
    }

    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

/// CPU time of a process's threads so far, those that have ended included.
pub fn cpu_ns(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // The fields after the name, which ends with the last bracket, are the state, ten others,
    // then user and system time.
    let fields: Vec<_> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * TICK_NS
}

pub use test_world::free_port;

/// Waits until `is_so` holds. Returns how long this took.
pub fn wait_for(what: &str, is_so: impl FnMut() -> bool) -> Duration {
    wait_at_most(SOON, what, is_so)
}

/// Like [`wait_for`], for what takes long even on an idle machine.
pub fn wait_at_most(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < limit, "it takes too long {what}");
        std::thread::sleep(LOOK);
    }
    began.elapsed()
}

/// Starts a simulated vendor of all protocols. `program` may already have arguments, and `options`
/// are added at the end.
pub fn simulator(mut program: Command, options: &[&str]) -> (u16, Process) {
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    program
        .args(["simulate", "--listen", &listen])
        .args(options)
        .stdout(Stdio::piped());
    let mut process = Process(program.spawn().expect("start the simulated vendor"));
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(
        line.contains("listening"),
        "the simulated vendor said {line:?}"
    );
    (port, process)
}

/// `conf/local.yaml` with its own data folder and ports for the edge, the sidecar, the admin
/// listener and the vendor. One model uses the vendor's responses protocol, and one makes
/// embeddings.
pub fn config(data_dir: &Path, [edge, sidecar, admin, vendor]: [u16; 4]) -> String {
    let mut text = SHIPPED.replace(
        "data_dir: \"data\"",
        &format!("data_dir: {:?}", data_dir.display().to_string()),
    );
    for (shipped, port) in [
        ("8080", edge),
        ("8081", sidecar),
        ("9090", admin),
        ("9100", vendor),
    ] {
        text = text.replace(
            &format!("127.0.0.1:{shipped}"),
            &format!("127.0.0.1:{port}"),
        );
    }
    const NAME: &str = "    upstream_model: gpt-5.5\n";
    assert!(
        text.contains(NAME),
        "the shipped config has that model no more"
    );
    let text = text.replace(NAME, &format!("{NAME}    upstream_protocol: responses\n"));
    let embedding = "models:\n  - {id: beta-embed, vendor: beta, upstream_model: text-embedding-3-large, kind: embedding, \
                     context_tokens: 100000, price: {input: \"13\"}}\n";
    text.replacen("models:\n", embedding, 1)
}

/// The JSON output of a command of the program.
pub fn command(program: &Path, config: &Path, args: &[&str]) -> Value {
    let output = Command::new(program)
        .args(args)
        .arg("--json")
        .arg("-c")
        .arg(config)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The key of a new account with this credit.
pub fn funded_key(program: &Path, config: &Path, email: &str, credits: &str) -> String {
    let run = |args: &[&str]| command(program, config, args);
    run(&["account", "create", "--email", email, "--no-trial"]);
    run(&["account", "grant", email, credits, "--ref", email]);
    run(&["key", "create", "--account", email, "--name", "bench"])["key"]
        .as_str()
        .unwrap()
        .to_owned()
}
