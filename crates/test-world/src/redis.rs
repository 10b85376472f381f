//! Starts real Redis servers for a test: a single server, a server with Sentinels, or a cluster of
//! three. They end with the test.

use crate::ports::free_port;
use crate::wait_until;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// A `redis-server` process on a free port.
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
        Self {
            port,
            process,
            options,
            dir,
        }
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Sends a signal such as `STOP` or `CONT` to the server.
    pub fn signal(&self, name: &str) {
        crate::signal(self.process.id(), name);
    }

    /// Restarts the server with slow loading, so that clients connect while it loads its data.
    pub fn begin_again_slowly(&mut self, micros_per_key: u32) {
        let slowly = ["--key-load-delay".to_owned(), micros_per_key.to_string()];
        let options = [&self.options[..], &slowly[..]].concat();
        self.process = begin(self.port, &options, self.dir.path());
    }

    /// Restarts the server with the data on its disk.
    pub fn start_again(&mut self) {
        self.process = spawn(self.port, &self.options, self.dir.path());
    }

    pub fn kill_and_restart(&mut self) {
        self.kill();
        self.start_again();
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sends a command and returns the reply in the format of `redis-cli`. A command that begins
    /// with an option runs that program.
    pub fn cli(&self, command: &[&str]) -> String {
        redis_cli(self.port, command)
    }

    /// Starts a command without waiting for it.
    pub fn begin_cli(&self, command: &[&str]) -> Child {
        let mut cli = Command::new("redis-cli");
        cli.args(["-p", &self.port.to_string()])
            .args(command)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Name of the primary in the Sentinels' configuration.
pub const MASTER: &str = "gateway";
/// Time in ms without an answer after which a Sentinel considers a server down.
const DOWN_AFTER_MS: u32 = 500;
/// Time in ms until a failed failover is retried, and until a replica of the wrong server is
/// reconfigured.
const FAILOVER_MS: u32 = 3_000;

/// A primary, a replica and three Sentinels.
pub struct Watched {
    pub servers: Vec<Server>,
    sentinels: Vec<(u16, Child)>,
    _dir: TempDir,
}

impl Watched {
    pub fn start() -> Self {
        let primary = Server::start();
        let replica = Server::start_with(&["--replicaof", "127.0.0.1", &primary.port.to_string()]);
        let dir = tempfile::tempdir().unwrap();
        let sentinels = (0..3)
            .map(|_| start_sentinel(free_port(), primary.port, dir.path()))
            .collect();
        let watched = Self {
            servers: vec![primary, replica],
            sentinels,
            _dir: dir,
        };
        watched.wait_ready();
        watched
    }

    /// Returns the value of `store` for the config file.
    pub fn store(&self) -> String {
        let nodes: Vec<_> = self
            .sentinels
            .iter()
            .map(|(port, _)| format!("\"redis://127.0.0.1:{port}\""))
            .collect();
        format!(
            "{{kind: redis, sentinel: {{master: {MASTER}, nodes: [{}]}}}}",
            nodes.join(", ")
        )
    }

    fn sentinel(&self, index: usize, command: &[&str]) -> String {
        redis_cli(self.sentinels[index].0, command)
    }

    /// Returns the index of the server that all Sentinels consider the primary; `None` if they
    /// disagree.
    pub fn primary(&self) -> Option<usize> {
        let named = |index| self.sentinel(index, &["sentinel", "get-master-addr-by-name", MASTER]);
        let port: u16 = named(0).lines().nth(1)?.parse().ok()?;
        let agree = (1..3).all(|index| named(index) == named(0));
        self.servers
            .iter()
            .position(|server| server.port == port)
            .filter(|_| agree)
    }

    /// Waits until a failover is possible. Then the replica is up to date, and each Sentinel has
    /// found the replica and the other Sentinels.
    pub fn wait_ready(&self) {
        wait_for(
            "the Sentinels to know each other and a replica in step",
            || {
                (0..3).all(|index| {
                    let master = self.sentinel(index, &["sentinel", "master", MASTER]);
                    let field = |text: &str, name: &str| {
                        let mut lines = text.lines().skip_while(|line| *line != name).skip(1);
                        lines.next().unwrap_or_default().to_owned()
                    };
                    let replicas = self.sentinel(index, &["sentinel", "replicas", MASTER]);
                    field(&master, "flags") == "master"
                        && field(&master, "num-other-sentinels") == "2"
                        && field(&replicas, "flags") == "slave"
                        && field(&replicas, "master-link-status") == "ok"
                })
            },
        );
    }

    /// Sets the time after which a server is considered down. A replica that has been disconnected
    /// from its primary for ten times as long is not promoted.
    pub fn set_down_after(&self, ms: u32) {
        for index in 0..self.sentinels.len() {
            let set = [
                "sentinel",
                "set",
                MASTER,
                "down-after-milliseconds",
                &ms.to_string(),
            ];
            assert_eq!(self.sentinel(index, &set), "OK");
        }
    }

    /// Disconnects the replica from its primary, which keeps running. The replica can still be
    /// promoted.
    pub fn cut_off(&self, replica: usize) {
        let nobody = free_port().to_string();
        assert_eq!(
            self.servers[replica].cli(&["replicaof", "127.0.0.1", &nobody]),
            "OK"
        );
    }

    /// Restarts a killed server as a replica of the server `of`.
    pub fn start_as_replica(&mut self, index: usize, of: usize) {
        let port = self.servers[of].port.to_string();
        let server = &mut self.servers[index];
        server.options = vec!["--replicaof".into(), "127.0.0.1".into(), port];
        server.start_again();
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        for (_, sentinel) in &mut self.sentinels {
            let _ = sentinel.kill();
            let _ = sentinel.wait();
        }
    }
}

fn start_sentinel(port: u16, primary: u16, dir: &Path) -> (u16, Child) {
    let file = dir.join(format!("{port}.conf"));
    let text = format!(
        "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {MASTER} 127.0.0.1 {primary} 2\n\
         sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\nsentinel failover-timeout {MASTER} {FAILOVER_MS}\n",
        dir.display()
    );
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new("redis-sentinel");
    let process = command
        .arg(&file)
        .stdout(Stdio::null())
        .spawn()
        .expect("start redis-sentinel: is it installed?");
    wait_for("a Sentinel to listen", || answers(port).unwrap_or(false));
    (port, process)
}

/// A cluster of three nodes without replicas.
pub struct Cluster(pub Vec<Server>);

impl Cluster {
    pub fn start() -> Self {
        let nodes: Vec<_> = (0..3)
            .map(|_| {
                // A node's cluster bus uses a second port, which must be free as well.
                let bus = free_port().to_string();
                let options = [
                    "--cluster-enabled",
                    "yes",
                    "--cluster-port",
                    &bus,
                    "--cluster-node-timeout",
                    "2000",
                ];
                Server::start_with(&options)
            })
            .collect();
        let addresses = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port));
        let made = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(addresses)
            .args(["--cluster-replicas", "0", "--cluster-yes"])
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stdout)
        );
        for node in &nodes {
            wait_for("the cluster to be formed", || {
                node.cli(&["cluster", "info"]).contains("cluster_state:ok")
            });
        }
        Self(nodes)
    }

    /// Returns the value of `store` for the config file.
    pub fn store(&self) -> String {
        let nodes: Vec<_> = self
            .0
            .iter()
            .map(|node| format!("\"redis://127.0.0.1:{}\"", node.port))
            .collect();
        format!("{{kind: redis, cluster: [{}]}}", nodes.join(", "))
    }

    /// Returns the keys of each node that match a pattern.
    pub fn keys(&self, pattern: &str) -> Vec<Vec<String>> {
        let keys = |node: &Server| node.cli(&["--scan", "--pattern", pattern]);
        let lines = |text: String| text.lines().map(str::to_owned).collect();
        self.0.iter().map(|node| lines(keys(node))).collect()
    }

    /// Moves the slot of `key` with all its keys to the next node, like an operator's tool.
    pub fn move_slot(&self, key: &str) {
        let slot = self.0[0].cli(&["cluster", "keyslot", key]);
        let from = self
            .0
            .iter()
            .position(|node| !node.cli(&["exists", key]).starts_with("MOVED"))
            .unwrap();
        let to = (from + 1) % 3;
        let id = |node: usize| self.0[node].cli(&["cluster", "myid"]);
        let set = |node: usize, word: &str, other: usize| {
            assert_eq!(
                self.0[node].cli(&["cluster", "setslot", &slot, word, &id(other)]),
                "OK"
            );
        };
        set(to, "importing", from);
        set(from, "migrating", to);
        let port = self.0[to].port.to_string();
        loop {
            let keys = self.0[from].cli(&["cluster", "getkeysinslot", &slot, "1000"]);
            let keys: Vec<_> = keys.lines().filter(|key| !key.is_empty()).collect();
            if keys.is_empty() {
                break;
            }
            self.0[from].cli(
                &[
                    &["migrate", "127.0.0.1", &port, "", "0", "5000", "keys"],
                    &keys[..],
                ]
                .concat(),
            );
        }
        [to, from, (from + 2) % 3]
            .into_iter()
            .for_each(|node| set(node, "node", to));
    }

    pub fn urls(&self) -> Vec<String> {
        self.0.iter().map(Server::url).collect()
    }
}

fn begin(port: u16, options: &[String], dir: &Path) -> Child {
    Command::new("redis-server")
        .args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "yes",
            // With `everysec`, a busy disk delays acknowledged writes, and SIGKILL loses them.
            // Without syncs, the kernel has each write before the reply.
            "--appendfsync",
            "no",
        ])
        .args(options)
        .arg("--dir")
        .arg(dir)
        .stdout(Stdio::null())
        .spawn()
        .expect("start redis-server: is it installed?")
}

fn spawn(port: u16, options: &[String], dir: &Path) -> Child {
    let process = begin(port, options, dir);
    wait_for("redis-server to have read its files", || {
        answers(port).unwrap_or(false)
    });
    process
}

/// Sends a command and returns the reply in the format of `redis-cli`, with a line for each element
/// of an array. Without a server, the text is empty.
fn redis_cli(port: u16, command: &[&str]) -> String {
    if command[0].starts_with('-') {
        // An option selects a function of the program, such as scanning or following a cluster's
        // redirects.
        let output = Command::new("redis-cli")
            .args(["-p", &port.to_string()])
            .args(command)
            .output()
            .unwrap();
        return String::from_utf8(output.stdout).unwrap().trim().to_owned();
    }
    let mut lines = Vec::new();
    // Like `redis-cli`, this function keeps the data that arrived before the connection broke.
    let _ = send_command(port, command, &mut lines);
    lines.join("\n").trim().to_owned()
}

fn send_command(port: u16, command: &[&str], lines: &mut Vec<String>) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    let mut request = format!("*{}\r\n", command.len());
    for word in command {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(request.as_bytes())?;
    read_reply(&mut BufReader::new(stream), lines)
}

/// Reads one reply of the Redis protocol (RESP2) and appends its lines.
fn read_reply(stream: &mut impl BufRead, lines: &mut Vec<String>) -> std::io::Result<()> {
    let mut head = String::new();
    stream.read_line(&mut head)?;
    let head = head.trim_end();
    let Some(kind) = head.chars().next() else {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    };
    let rest = &head[1..];
    // A null reply has the length -1.
    let length = || usize::try_from(rest.parse::<i64>().unwrap()).ok();
    match kind {
        '+' | '-' | ':' => lines.push(rest.to_owned()),
        '$' => {
            let mut text = String::new();
            if let Some(length) = length() {
                let mut bytes = vec![0; length + 2];
                stream.read_exact(&mut bytes)?;
                bytes.truncate(length);
                text = String::from_utf8(bytes).unwrap();
            }
            lines.push(text);
        }
        '*' => {
            for _ in 0..length().unwrap_or(0) {
                read_reply(stream, lines)?;
            }
        }
        _ => panic!("not a reply of Redis: {head:?}"),
    }
    Ok(())
}

/// Returns whether the server is ready. A server listens before it has loaded its files, and
/// refuses all commands until then.
fn answers(port: u16) -> std::io::Result<bool> {
    let mut connection = TcpStream::connect(("127.0.0.1", port))?;
    connection.write_all(b"PING\r\n")?;
    let mut answer = [0; 5];
    connection.read_exact(&mut answer)?;
    Ok(&answer == b"+PONG")
}

/// Timeout of a condition. Sentinels poll a server every ten seconds, and a primary waits five
/// seconds for further replicas before it starts a copy.
const SOON: Duration = Duration::from_secs(60);

fn wait_for(what: &str, condition: impl FnMut() -> bool) {
    wait_until(what, SOON, condition);
}

#[cfg(test)]
mod tests {
    use super::read_reply;

    fn lines_of(reply: &str) -> Vec<String> {
        let mut lines = Vec::new();
        read_reply(&mut reply.as_bytes(), &mut lines).unwrap();
        lines
    }

    #[test]
    fn a_reply_is_read_as_redis_cli_prints_it() {
        assert_eq!(lines_of("+OK\r\n"), ["OK"]);
        assert_eq!(lines_of("-MOVED 1 a:2\r\n"), ["MOVED 1 a:2"]);
        assert_eq!(lines_of(":-12\r\n"), ["-12"]);
        assert_eq!(lines_of("$4\r\na\r\nb\r\n"), ["a\r\nb"]);
        assert_eq!(lines_of("$-1\r\n"), [""]);
        assert_eq!(lines_of("$0\r\n\r\n"), [""]);
        assert_eq!(lines_of("*2\r\n*1\r\n$1\r\na\r\n:3\r\n"), ["a", "3"]);
        assert!(lines_of("*0\r\n").is_empty() && lines_of("*-1\r\n").is_empty());
        let cut = read_reply(&mut "*2\r\n$1\r\na\r\n".as_bytes(), &mut Vec::new());
        assert!(cut.is_err());
    }
}
