//! The systems to measure: starts them, pins them to the second core, and reads their figures from
//! outside. Must not send load to them.

use crate::accounts::{self, Shape};
use crate::meter::Reading;
use crate::rig::{self, Process, free_port, wait_for};
use crate::ways::{PASSED, Way};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// The core of the measured system. The vendor and the load use the other core.
pub const CORE: &str = "1";
const LOAD_CORE: &str = "0";
pub const STARTS: usize = 3;
/// The accounts of a gateway that serves many, each with keys of its own.
const MANY: Shape = Shape {
    accounts: 1_000,
    keys: 5,
    conversations: 5_000,
    turns: 20,
};

/// What a system can do in the given time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Everything,
    /// A proxy passes on every surface.
    Untranslated,
    /// A gateway that is not ours: its configuration has one model, of the chat surface.
    Chat,
    /// The same, and too slow for anything but small requests.
    SmallChat,
}

/// The vendor behind a gateway.
#[derive(Clone, Copy)]
pub enum Vendor<'a> {
    Plain(u16),
    /// Behind TLS, with this HTTP version and this CA certificate.
    Tls(u16, u8, &'a Path),
}

pub struct System {
    pub name: &'static str,
    pub port: u16,
    /// Each request has one of these.
    pub keys: Vec<String>,
    pub process: Option<Process>,
    /// Time from the start to the first answer: the median of [`STARTS`]. The first start finds
    /// empty caches.
    pub started_in: Duration,
    /// Port of the metrics, which show the entries that the ledger does not have yet.
    admin: Option<u16>,
    scope: Scope,
    _dir: Option<TempDir>,
}

pub fn pinned(core: &str, program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", core]).arg(program);
    command
}

/// A simulated vendor of all protocols on the load's core. Pins this process to that core as well.
pub fn simulator(program: &Path) -> (u16, Process) {
    pin_load();
    rig::simulator(pinned(LOAD_CORE, program), &[])
}

/// Like [`simulator`], behind TLS. Its CA certificate is in `dir`.
pub fn tls_simulator(program: &Path, dir: &Path) -> (u16, Process) {
    pin_load();
    let dir = dir.display().to_string();
    rig::simulator(
        pinned(LOAD_CORE, program),
        &["--tls-dir", &dir, "--h2-streams", "1000"],
    )
}

fn pin_load() {
    let own = std::process::id().to_string();
    let status = Command::new("taskset")
        .args(["-a", "-p", "-c", LOAD_CORE, &own])
        .stdout(Stdio::null())
        .status();
    assert!(
        status.expect("taskset").success(),
        "this process cannot be pinned"
    );
}

/// Status and body of a GET request, or `None` if there is no answer.
fn get(port: u16, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n"
    )
    .ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let status = text.split(' ').nth(1)?.parse().ok()?;
    Some((status, text.split_once("\r\n\r\n")?.1.to_owned()))
}

/// Starts the program `starts` times, each time until it `is_up`, and leaves the last process
/// running. Returns it and the median start time.
fn started(
    what: &str,
    mut command: Command,
    starts: usize,
    is_up: impl Fn() -> bool,
) -> (Option<Process>, Duration) {
    let (mut process, mut took) = (None, Vec::new());
    for _ in 0..starts {
        // The earlier process must end first, because both use the same port.
        drop(process.take());
        process = Some(Process(
            command
                .spawn()
                .unwrap_or_else(|error| panic!("start {what}: {error}")),
        ));
        took.push(wait_for(what, &is_up));
    }
    took.sort_unstable();
    (process, took[starts / 2])
}

impl System {
    /// The key that the load sends to systems other than the gateway.
    pub const KEY: &str = "sk-sim";

    pub fn plain(
        name: &'static str,
        port: u16,
        command: Option<Command>,
        dir: Option<TempDir>,
    ) -> Self {
        let is_up = || get(port, "/").is_some();
        let (process, started_in) = match command {
            Some(command) => started(name, command, STARTS, is_up),
            None => (None, wait_for(name, is_up)),
        };
        Self {
            name,
            port,
            keys: vec![String::from(Self::KEY)],
            process,
            started_in,
            admin: None,
            scope: Scope::Untranslated,
            _dir: dir,
        }
    }

    /// No proxy between the load and the vendor.
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
        command
            .arg("-p")
            .arg(dir.path())
            .args(["-c", "nginx.conf"])
            .stderr(Stdio::null());
        Self::plain("nginx", port, Some(command), Some(dir))
    }

    pub fn bare(program: &Path, vendor: Vendor<'_>) -> Self {
        let port = free_port();
        let mut command = pinned(CORE, program);
        command
            .arg(format!("127.0.0.1:{port}"))
            .env("RUST_LOG", "off");
        match vendor {
            Vendor::Plain(vendor) => command.arg(format!("127.0.0.1:{vendor}")),
            Vendor::Tls(vendor, version, authority) => command
                .args([format!("127.0.0.1:{vendor}"), version.to_string()])
                .env("SSL_CERT_FILE", authority),
        };
        Self::plain("bare", port, Some(command), None)
    }

    /// A gateway with all features enabled, including the access log, and an account that can pay.
    pub fn gateway(program: &Path, vendor: Vendor<'_>) -> Self {
        Self::gateway_by(pinned(CORE, program), STARTS, program, vendor)
    }

    /// Like [`System::gateway`], but `command` runs the program, and the program is started
    /// `starts` times.
    pub fn gateway_by(command: Command, starts: usize, program: &Path, vendor: Vendor<'_>) -> Self {
        Self::gateway_with(command, &["run", "-c"], starts, vendor, |_, config| {
            vec![rig::funded_key(
                program,
                config,
                "bench@example.test",
                "9000000000",
            )]
        })
    }

    /// Like [`System::gateway`], with 1 000 accounts of five keys each.
    pub fn gateway_of_many(program: &Path, vendor: Vendor<'_>) -> Self {
        Self::of_many(program, &["run", "-c"], vendor).named("gateway, 1 000 accounts")
    }

    /// The same without holds, journal and ledger: `benches/unbilled.rs`.
    pub fn unbilled_of_many(program: &Path, vendor: Vendor<'_>) -> Self {
        Self::of_many(program, &[], vendor).named("unbilled, 1 000 accounts")
    }

    fn of_many(program: &Path, args: &[&str], vendor: Vendor<'_>) -> Self {
        Self::gateway_with(pinned(CORE, program), args, 1, vendor, |data, _| {
            accounts::open_accounts(data, &MANY)
                .into_iter()
                .flat_map(|holder| holder.keys)
                .map(|key| key.text)
                .collect()
        })
    }

    /// `keys` makes accounts that can pay, and their keys, from the data folder and the config
    /// file: before the gateway starts.
    fn gateway_with(
        mut command: Command,
        args: &[&str],
        starts: usize,
        vendor: Vendor<'_>,
        keys: impl Fn(&Path, &Path) -> Vec<String>,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (edge, sidecar, admin) = (free_port(), free_port(), free_port());
        let (file, log) = (
            dir.path().join("gateway.yaml"),
            dir.path().join("access.log").display().to_string(),
        );
        let data = dir.path().join("data");
        let (Vendor::Plain(vendor_port) | Vendor::Tls(vendor_port, ..)) = vendor;
        let mut config = rig::config(&data, [edge, sidecar, admin, vendor_port]);
        if let Vendor::Tls(port, version, authority) = vendor {
            let plain = format!("{{url: \"http://127.0.0.1:{port}\"}}");
            assert!(
                config.contains(&plain),
                "the shipped config's endpoints are written otherwise"
            );
            let tls = format!("{{url: \"https://127.0.0.1:{port}\", http_version: {version}}}");
            config = config.replace(&plain, &tls);
            command.env("SSL_CERT_FILE", authority);
        }
        let more = format!(
            "access_log: {log:?}\nlimits: {{open_requests_per_account: 4096, connections_per_address: 0}}\n"
        );
        std::fs::write(&file, config + &more).unwrap();
        let keys = keys(&data, &file);
        command.args(args).arg(&file).env("RUST_LOG", "error");
        let is_ready = || get(admin, "/readyz").is_some_and(|(status, _)| status == 200);
        let (process, started_in) = started("the gateway", command, starts, is_ready);
        Self {
            name: "gateway",
            port: edge,
            keys,
            process,
            started_in,
            admin: Some(admin),
            scope: Scope::Everything,
            _dir: Some(dir),
        }
    }

    pub fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// A gateway that is not ours.
    pub fn for_chat(self) -> Self {
        Self {
            scope: Scope::Chat,
            ..self
        }
    }

    pub fn for_small_chat(self) -> Self {
        Self {
            scope: Scope::SmallChat,
            ..self
        }
    }

    /// Whether the system supports this load and can handle it in the given time.
    pub fn supports(&self, way: Way, bytes: usize, streams: usize) -> bool {
        match self.scope {
            Scope::Everything => true,
            Scope::Untranslated => !way.translated,
            Scope::Chat => way == PASSED,
            Scope::SmallChat => way == PASSED && bytes <= 1_024 && streams == 0,
        }
    }

    /// CPU time so far, in µs, of all threads but the indexer; 0 if there is no process. The
    /// indexer works for tens of thousands of requests at once: see [`System::indexing_us`].
    pub fn cpu_us(&self) -> f64 {
        self.process.as_ref().map_or(0.0, |process| {
            let ns = process.cpu_ns().saturating_sub(indexer_ns(process));
            ns as f64 / 1_000.0
        })
    }

    /// CPU time of the indexer for one request, in µs, over all requests so far.
    pub fn indexing_us(&self) -> f64 {
        let metrics = self.admin.and_then(|admin| get(admin, "/metrics"));
        let text = metrics.map(|(_, text)| text).unwrap_or_default();
        let sum_of = |name: &str| -> f64 {
            text.lines()
                .filter(|line| line.starts_with(name))
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum()
        };
        let indexed = sum_of("gateway_requests_total{") - sum_of("gateway_index_lag_entries ");
        match &self.process {
            Some(process) if indexed > 0.0 => indexer_ns(process) as f64 / 1_000.0 / indexed,
            _ => 0.0,
        }
    }

    pub fn rss_mb(&self) -> f64 {
        self.process
            .as_ref()
            .map_or(0.0, |process| process.resident_kib() as f64 / 1_024.0)
    }

    /// Size of the program's file.
    pub fn program_mb(&self) -> f64 {
        let size = |process: &Process| {
            std::fs::metadata(format!("/proc/{}/exe", process.0.id()))
                .unwrap()
                .len()
        };
        self.process
            .as_ref()
            .map_or(0.0, |process| size(process) as f64 / 1_048_576.0)
    }

    /// Waits until the ledger has all entries, because this work is part of the cost. Returns how
    /// often it read the metrics for that.
    pub fn settle(&self) -> u32 {
        let Some(admin) = self.admin else { return 0 };
        let mut reads = 0;
        wait_for("the gateway to settle", || {
            reads += 1;
            get(admin, "/metrics").is_some_and(|(_, text)| {
                text.lines().any(|line| line == "gateway_journal_pending 0")
            })
        });
        reads
    }
}

fn indexer_ns(process: &Process) -> u64 {
    Reading::of(process.0.id()).indexer_ns
}
