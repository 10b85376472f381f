//! Processes that are measured: started in front of a simulated vendor, looked at from outside,
//! ended with their owner. Must not load them, nor say what their figures mean.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SHIPPED: &str = include_str!("../conf/local.yaml");
/// How long a process may take to do what takes an instant.
const SOON: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(1);
/// One tick of `/proc/PID/stat`: USER_HZ is 100 wherever Linux shows it to a program.
const TICK_NS: u64 = 10_000_000;

/// A process that ends with its owner.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// CPU time so far, all threads.
    pub fn cpu_ns(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        // After the name, which ends with the last bracket: state, ten more, then user and system
        // time.
        let fields: Vec<_> = stat
            .rsplit_once(')')
            .unwrap()
            .1
            .split_whitespace()
            .collect();
        (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * TICK_NS
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

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// Waits, and says for how long.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < SOON, "it takes too long {what}");
        std::thread::sleep(LOOK);
    }
    began.elapsed()
}

/// A simulated vendor of both protocols; `program`, with what is to stand before its arguments, and
/// further ones.
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

/// `conf/local.yaml` with data and ports of its own: for the edge, the sidecar, the private
/// listener and the vendor. One model has a vendor that speaks responses.
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
    text.replace(NAME, &format!("{NAME}    upstream_protocol: responses\n"))
}

/// What a command of the program says.
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

/// The key of a new account that has so much credit.
pub fn funded_key(program: &Path, config: &Path, email: &str, credits: &str) -> String {
    let run = |args: &[&str]| command(program, config, args);
    run(&["account", "create", "--email", email, "--no-trial"]);
    run(&["account", "grant", email, credits, "--ref", email]);
    run(&["key", "create", "--account", email, "--name", "bench"])["key"]
        .as_str()
        .unwrap()
        .to_owned()
}
