//! Who is measured: started, pinned to the second core, and looked at from outside. Must not load anybody.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SHIPPED: &str = include_str!("../../conf/local.yaml");
/// How long a process may take to do what takes an instant.
const SOON: Duration = Duration::from_secs(60);
/// One tick of `/proc/PID/stat`: USER_HZ is 100 wherever Linux shows it to a program.
const TICK_US: f64 = 10_000.0;
const PAGE_BYTES: f64 = 4_096.0;
/// The core of whoever is measured; the vendor and the load have the first.
const CORE: &str = "1";
const LOAD_CORE: &str = "0";

/// A process that ends with its owner.
pub struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct System {
    pub name: &'static str,
    pub port: u16,
    pub key: String,
    pub process: Option<Process>,
    /// From its start to its first answer.
    pub started_in: Duration,
    /// Where it tells what it has not settled.
    admin: Option<u16>,
    is_gateway: bool,
    _dir: Option<TempDir>,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn pinned(core: &str, program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", core]).arg(program);
    command
}

/// A simulated vendor of both protocols on the load's core, and this process beside it.
pub fn simulator(program: &Path) -> (u16, Process) {
    let own = std::process::id().to_string();
    let status = Command::new("taskset").args(["-a", "-p", "-c", LOAD_CORE, &own]).stdout(Stdio::null()).status();
    assert!(status.expect("taskset").success(), "this process cannot be pinned");
    let port = free_port();
    let mut command = pinned(LOAD_CORE, program);
    command.args(["simulate", "--listen", &format!("127.0.0.1:{port}")]).stdout(Stdio::piped());
    let mut process = Process(command.spawn().expect("start the simulated vendor"));
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("listening"), "the simulated vendor said {line:?}");
    (port, process)
}

/// A GET's status and body, where somebody answers.
fn get(port: u16, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let status = text.split(' ').nth(1)?.parse().ok()?;
    Some((status, text.split_once("\r\n\r\n")?.1.to_owned()))
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < SOON, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
    began.elapsed()
}

impl System {
    fn plain(name: &'static str, port: u16, process: Option<Process>, dir: Option<TempDir>) -> Self {
        let started_in = wait_for(name, || get(port, "/").is_some());
        let (key, admin, is_gateway) = (String::from("sim"), None, false);
        Self { name, port, key, process, started_in, admin, is_gateway, _dir: dir }
    }

    /// Nobody between the load and the vendor.
    pub fn direct(vendor: u16) -> Self {
        Self::plain("direct", vendor, None, None)
    }

    pub fn nginx(program: &str, vendor: u16) -> Self {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let conf = format!(
            "daemon off; master_process off; error_log stderr error; pid nginx.pid; worker_rlimit_nofile 16384;
            events {{ worker_connections 8192; multi_accept on; }}
            http {{
              access_log off; tcp_nodelay on; keepalive_requests 100000000; keepalive_timeout 300s;
              client_max_body_size 0; client_body_buffer_size 2m;
              client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
              upstream vendor {{ server 127.0.0.1:{vendor}; keepalive 2048; keepalive_requests 100000000; }}
              server {{
                listen 127.0.0.1:{port} backlog=4096;
                location / {{
                  proxy_pass http://vendor; proxy_http_version 1.1; proxy_set_header Connection \"\";
                  proxy_buffering off; proxy_read_timeout 300s;
                }}
              }}
            }}"
        );
        std::fs::write(dir.path().join("nginx.conf"), conf).unwrap();
        let mut command = pinned(CORE, Path::new(program));
        command.arg("-p").arg(dir.path()).args(["-c", "nginx.conf"]).stderr(Stdio::null());
        let process = Process(command.spawn().expect("start nginx"));
        Self::plain("nginx", port, Some(process), Some(dir))
    }

    pub fn bare(program: &Path, vendor: u16) -> Self {
        let port = free_port();
        let mut command = pinned(CORE, program);
        command.args([format!("127.0.0.1:{port}"), format!("127.0.0.1:{vendor}")]).env("RUST_LOG", "off");
        let process = Process(command.spawn().expect("start the bare proxy"));
        Self::plain("bare", port, Some(process), None)
    }

    /// With everything on, the access log among it, and an account that can pay.
    pub fn gateway(program: &Path, vendor: u16) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (edge, sidecar, admin) = (free_port(), free_port(), free_port());
        let path = |name: &str| dir.path().join(name).display().to_string();
        let mut config = SHIPPED.replace("data_dir: \"data\"", &format!("data_dir: {:?}", path("data")));
        for (shipped, port) in [("8080", edge), ("8081", sidecar), ("9090", admin), ("9100", vendor)] {
            config = config.replace(&format!("127.0.0.1:{shipped}"), &format!("127.0.0.1:{port}"));
        }
        config
            .push_str(&format!("access_log: {:?}\nlimits: {{open_requests_per_account: 4096}}\n", path("access.log")));
        let file = path("gateway.yaml");
        std::fs::write(&file, config).unwrap();
        let mut command = pinned(CORE, program);
        let process = Process(command.args(["run", "-c", &file]).env("RUST_LOG", "error").spawn().expect("a gateway"));
        let started_in = wait_for("the gateway", || get(admin, "/readyz").is_some_and(|(status, _)| status == 200));
        let run = |args: &[&str]| -> Value {
            let output = Command::new(program).args(args).args(["--json", "-c", &file]).output().unwrap();
            assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
            serde_json::from_slice(&output.stdout).unwrap()
        };
        run(&["account", "create", "--email", "bench@example.test", "--no-trial"]);
        run(&["account", "grant", "bench@example.test", "9000000000", "--ref", "bench"]);
        let made = run(&["key", "create", "--account", "bench@example.test", "--name", "bench"]);
        let key = made["key"].as_str().unwrap().to_owned();
        let (process, admin, dir) = (Some(process), Some(admin), Some(dir));
        Self { name: "gateway", port: edge, key, process, started_in, admin, is_gateway: true, _dir: dir }
    }

    pub fn takes(&self, translated: bool) -> bool {
        self.is_gateway || !translated
    }

    fn stat(&self) -> Option<Vec<String>> {
        let id = self.process.as_ref()?.0.id();
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // After the name, which ends with the last bracket, the third field stands first.
        Some(stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
    }

    /// CPU time of the process so far, all threads; 0 where there is none.
    pub fn cpu_us(&self) -> f64 {
        let of = |fields: &[String], index: usize| fields[index].parse::<f64>().unwrap();
        self.stat().map_or(0.0, |fields| (of(&fields, 11) + of(&fields, 12)) * TICK_US)
    }

    pub fn rss_mb(&self) -> f64 {
        let pages = self.stat().map_or(0.0, |fields| fields[21].parse::<f64>().unwrap());
        pages * PAGE_BYTES / 1_048_576.0
    }

    /// Waits until what was answered is in the books: that is part of its cost.
    pub fn settle(&self) {
        let Some(admin) = self.admin else { return };
        wait_for("the gateway to settle", || {
            get(admin, "/metrics").is_some_and(|(_, text)| text.lines().any(|line| line == "gateway_journal_pending 0"))
        });
    }
}
