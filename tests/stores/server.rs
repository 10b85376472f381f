//! Real Redis servers of a test's own: one alone, or a cluster of three. They end with the test.

use model_gateway::store::redis::Address;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// One `redis-server` process on a free port.
pub struct Server {
    pub port: u16,
    process: Child,
    options: Vec<String>,
    dir: TempDir,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(options: &[&str]) -> Self {
        Self::start_on(free_port(), options)
    }

    pub fn start_on(port: u16, options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options: Vec<_> = options.iter().map(|option| (*option).to_owned()).collect();
        let process = spawn(port, &options, dir.path());
        Self { port, process, options, dir }
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Sends it a signal: `STOP`, `CONT`, …
    pub fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    /// The same server with what it had on its disk.
    pub fn start_again(&mut self) {
        self.process = spawn(self.port, &self.options, self.dir.path());
    }

    /// Kills the process and starts another one on the same port and files.
    pub fn kill_and_restart(&mut self) {
        self.kill();
        self.start_again();
    }

    pub fn address(&self) -> Address {
        Address::One(format!("redis://127.0.0.1:{}", self.port))
    }

    /// What `redis-cli` says to a command.
    pub fn cli(&self, command: &[&str]) -> String {
        let output = Command::new("redis-cli").args(["-p", &self.port.to_string()]).args(command).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A cluster of three nodes without replicas.
pub struct Cluster(Vec<Server>);

impl Cluster {
    pub fn start() -> Self {
        let nodes: Vec<_> = (0..3)
            .map(|_| {
                // A node's bus listens on another port, which must be free as well.
                let bus = free_port().to_string();
                Server::start_with(&[
                    "--cluster-enabled",
                    "yes",
                    "--cluster-port",
                    &bus,
                    "--cluster-node-timeout",
                    "2000",
                ])
            })
            .collect();
        let addresses = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port));
        let made = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(addresses)
            .args(["--cluster-replicas", "0", "--cluster-yes"])
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
        for node in &nodes {
            wait_for("the cluster to be formed", || node.cli(&["cluster", "info"]).contains("cluster_state:ok"));
        }
        Self(nodes)
    }

    pub fn address(&self) -> Address {
        Address::Cluster(self.0.iter().map(|node| format!("redis://127.0.0.1:{}", node.port)).collect())
    }
}

fn spawn(port: u16, options: &[String], dir: &Path) -> Child {
    let process = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"])
        .args(options)
        .arg("--dir")
        .arg(dir)
        .stdout(Stdio::null())
        .spawn()
        .expect("start redis-server: is it installed?");
    wait_for("redis-server to have read its files", || answers(port).unwrap_or(false));
    process
}

/// It listens before it has read its files, and refuses everything until then.
fn answers(port: u16) -> std::io::Result<bool> {
    let mut connection = TcpStream::connect(("127.0.0.1", port))?;
    connection.write_all(b"PING\r\n")?;
    let mut answer = [0; 5];
    connection.read_exact(&mut answer)?;
    Ok(&answer == b"+PONG")
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(20), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
