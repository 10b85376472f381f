//! The world of one test: a gateway and its simulated vendors as processes, on ports and in a
//! directory of their own.
//!
//! It must not know what a test is about. `crates/accounts/src/lib.rs` reads accounts and the
//! ledger.

use crate::administrator::{self, AdminApi};
use crate::client::{self, Request};
use crate::config_file::shipped;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use test_world::redis::Server;
pub use test_world::{SOON, SettableClock, faketime, free_port, signal, wait_for, wait_until};

/// The program under test: `$MODEL_GATEWAY_BIN`, else the one that cargo built with the tests.
pub fn binary() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| {
        std::env::var("MODEL_GATEWAY_BIN")
            .unwrap_or_else(|_| env!("CARGO_BIN_EXE_model-gateway").to_owned())
    })
}

const SHIPPED_ENDPOINTS: &str = r#"endpoints: [{url: "http://127.0.0.1:9100"}]"#;
/// Whether the simulated vendors speak HTTP/2 over TLS, as the real ones do
/// (`GATEWAY_TEST_VENDORS=h2`). Otherwise they speak HTTP/1.1 without TLS.
pub fn has_h2_vendors() -> bool {
    static ASKED: OnceLock<bool> = OnceLock::new();
    *ASKED.get_or_init(|| match std::env::var("GATEWAY_TEST_VENDORS").as_deref() {
        Ok("h2") => true,
        Err(_) | Ok("" | "h1") => false,
        Ok(other) => panic!("GATEWAY_TEST_VENDORS is {other:?}, neither \"h1\" nor \"h2\""),
    })
}

/// The certificates of all simulators that speak TLS. The first simulator creates them.
const TLS_DIR: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/simulator-tls");

/// The environment variable that makes a gateway trust the simulators.
pub fn trust() -> Option<(&'static str, PathBuf)> {
    has_h2_vendors().then(|| ("SSL_CERT_FILE", Path::new(TLS_DIR).join("ca.pem")))
}

/// Ports of all current and earlier simulators that speak TLS.
static TLS_PORTS: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// The URL of the vendor at a port, for an endpoint's config.
pub fn vendor_url(port: u16) -> String {
    let scheme = if TLS_PORTS.lock().unwrap().contains(&port) {
        "https"
    } else {
        "http"
    };
    format!("{scheme}://127.0.0.1:{port}")
}

pub struct Simulator {
    process: Child,
    pub port: u16,
}

impl Simulator {
    /// Starts a simulator. `fault` is the value of `simulate --fault`.
    pub fn start(fault: Option<&str>) -> Self {
        Self::start_on(free_port(), fault)
    }

    /// Starts a simulator on a port that an earlier one used.
    pub fn start_on(port: u16, fault: Option<&str>) -> Self {
        Self::start_as(port, fault, has_h2_vendors())
    }

    /// Starts a simulator that speaks HTTP/1.1 without TLS, whatever the others speak.
    pub fn start_in_the_clear(fault: Option<&str>) -> Self {
        Self::start_as(free_port(), fault, false)
    }

    fn start_as(port: u16, fault: Option<&str>, tls: bool) -> Self {
        test_world::count_program();
        let mut command = Command::new(binary());
        command
            .args(["simulate", "--listen", &format!("127.0.0.1:{port}")])
            .stdout(Stdio::piped());
        if let Some(fault) = fault {
            command.args(["--fault", fault]);
        }
        if tls {
            command.args(["--tls-dir", TLS_DIR]);
            TLS_PORTS.lock().unwrap().insert(port);
        }
        let mut process = command.spawn().expect("start a simulator");
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.contains("listening"), "the simulator said {line:?}");
        Self { process, port }
    }

    fn page(&self, request: Request) -> Value {
        let answer = client::ask(self.port, &request);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    pub fn stats(&self) -> Value {
        self.page(Request::get("/_sim/stats"))
    }

    /// Number of calls that it has received.
    pub fn calls(&self) -> u64 {
        self.stats()["requests"].as_u64().unwrap()
    }

    /// The last call, with its headers and body.
    pub fn last(&self) -> Value {
        self.page(Request::get("/_sim/requests?last=1"))[0].clone()
    }

    /// The last calls, oldest first, each with the result of its answer.
    pub fn requests(&self) -> Value {
        self.page(Request::get("/_sim/requests"))
    }

    /// Lets the answers go on that wait at the `hold` of their markers.
    pub fn release(&self) {
        self.page(Request::post("/_sim/release", ""));
    }

    /// Waits until at least `count` requests are in flight.
    pub fn wait_busy(&self, count: u64) {
        wait_until("the vendor to be busy", SOON, || {
            self.stats()["in_flight"].as_u64() >= Some(count)
        });
    }

    /// Waits until no request is in flight.
    pub fn wait_idle(&self) {
        wait_until("the vendor to be idle", SOON, || {
            self.stats()["in_flight"] == 0
        });
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// How a world's config differs from `conf/local.yaml`.
pub struct Plan {
    role: &'static str,
    sidecar: Option<u16>,
    limits: String,
    signup: Option<String>,
    alpha: Vec<String>,
    beta: Vec<String>,
    takes_turns: bool,
    edits: Vec<(&'static str, String)>,
    environment: Vec<(&'static str, OsString)>,
    data: Option<PathBuf>,
    shared: bool,
    open_files: Option<u64>,
    has_administrator: bool,
}

impl Default for Plan {
    fn default() -> Self {
        let (limits, signup, alpha, beta) = (String::new(), None, Vec::new(), Vec::new());
        let (role, edits, environment, takes_turns) = ("run", Vec::new(), Vec::new(), false);
        let (sidecar, data, shared, open_files) = (None, None, false, None);
        Self {
            role,
            sidecar,
            limits,
            signup,
            alpha,
            beta,
            takes_turns,
            edits,
            environment,
            data,
            shared,
            open_files,
            has_administrator: true,
        }
    }
}

impl Plan {
    /// Runs only one role instead of the whole service: `edge` or `sidecar`.
    pub fn role(mut self, role: &'static str) -> Self {
        self.role = role;
        self
    }

    /// Port of the sidecar, if it is another process.
    pub fn sidecar(mut self, port: u16) -> Self {
        self.sidecar = Some(port);
        self
    }

    pub fn limit(mut self, key: &str, value: u64) -> Self {
        self.limits.push_str(&format!("  {key}: {value}\n"));
        self
    }

    /// Length of the trial in days, as a decimal.
    pub fn trial_days(mut self, days: &str) -> Self {
        self.signup = Some(format!(
            "{{mode: open, trial_credits: \"300\", trial_days: {days}}}"
        ));
        self
    }

    /// The endpoints of both vendors, by port.
    pub fn endpoints(mut self, ports: &[u16]) -> Self {
        self.alpha = ports
            .iter()
            .map(|port| format!("{{url: \"{}\"}}", vendor_url(*port)))
            .collect();
        self.beta.clone_from(&self.alpha);
        self
    }

    /// The endpoints of each vendor, by port.
    pub fn endpoints_of(mut self, alpha: &[u16], beta: &[u16]) -> Self {
        let list = |ports: &[u16]| {
            ports
                .iter()
                .map(|port| format!("{{url: \"{}\"}}", vendor_url(*port)))
                .collect()
        };
        (self.alpha, self.beta) = (list(alpha), list(beta));
        self
    }

    /// The endpoints of both vendors, as YAML for the config file.
    pub fn endpoints_as(mut self, endpoints: &[String]) -> Self {
        self.alpha = endpoints.to_vec();
        self.beta.clone_from(&self.alpha);
        self
    }

    /// Endpoints take turns, whatever conversation a request belongs to.
    pub fn turns(mut self) -> Self {
        self.takes_turns = true;
        self
    }

    /// Replaces a text of the shipped config file.
    pub fn edit(mut self, shipped: &'static str, text: &str) -> Self {
        self.edits.push((shipped, text.to_owned()));
        self
    }

    /// Sets a variable in the gateway's environment.
    pub fn environment(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Lets the gateway's wall clock be this one.
    pub fn clock(self, clock: &SettableClock) -> Self {
        let variables = clock.environment().into_iter();
        variables.fold(self, |plan, (name, value)| plan.environment(name, value))
    }

    /// Sets the data folder.
    pub fn data(mut self, dir: &Path) -> Self {
        self.data = Some(dir.to_owned());
        self
    }

    /// Runs an edge with a sidecar and a Redis of its own, instead of the whole service.
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Starts with an empty installation: no data folder, and no administrator. All accounts are
    /// then created and read by commands.
    pub fn without_administrator(mut self) -> Self {
        self.has_administrator = false;
        self
    }

    /// Whether the world can begin with a prepared data folder. An edge has no accounts. The
    /// folder's ledger must not meet another one in PostgreSQL.
    fn can_have_administrator(&self) -> bool {
        let is_in_postgres = self.edits.iter().any(|(_, text)| text.contains("postgres"));
        self.has_administrator && self.data.is_none() && self.role != "edge" && !is_in_postgres
    }

    /// Starts the gateway with this limit on open files.
    pub fn open_files(mut self, files: u64) -> Self {
        self.open_files = Some(files);
        self
    }

    /// Starts the gateway without waiting until it is ready.
    pub fn begin(self) -> World {
        let mut world = World::prepare(&self);
        world.begin_gateway(None);
        world
    }

    pub fn start(self) -> World {
        if !self.shared {
            let mut world = World::prepare(&self);
            world.start_gateway();
            return world;
        }
        let redis = Server::start();
        let store = format!(
            "store: {{kind: redis, url: \"redis://127.0.0.1:{}\", reply_timeout_ms: 1000}}",
            redis.port
        );
        let sidecar = Plan::default()
            .role("sidecar")
            .edit(EMBEDDED, &store)
            .start();
        let edge = Self {
            role: "edge",
            sidecar: Some(sidecar.sidecar),
            ..self
        }
        .edit(EMBEDDED, &store);
        let mut world = World::prepare(&edge);
        world.start_gateway();
        world.beside = Some(Box::new(Beside {
            sidecar,
            _redis: redis,
        }));
        world
    }
}

pub const EMBEDDED: &str = "store: {kind: embedded}";

/// The other processes that an edge needs.
pub struct Beside {
    /// The process that has the ledger.
    pub sidecar: World,
    /// Redis is stopped when this is dropped.
    _redis: Server,
}

pub struct World {
    pub dir: TempDir,
    pub config: PathBuf,
    pub edge: u16,
    pub sidecar: u16,
    pub admin: u16,
    pub vendor: Simulator,
    data: PathBuf,
    environment: Vec<(&'static str, OsString)>,
    role: &'static str,
    open_files: Option<u64>,
    gateway: Option<Child>,
    is_closed: bool,
    /// Key of the administrator with whom the world began.
    admin_key: Option<String>,
    /// Set if the gateway is an edge.
    pub beside: Option<Box<Beside>>,
}

impl World {
    /// A world with the shipped config, except for ports and data.
    pub fn new() -> Self {
        Plan::default().start()
    }

    fn prepare(plan: &Plan) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("gateway.yaml");
        let vendor = Simulator::start(None);
        let (edge, sidecar, admin) = (
            free_port(),
            plan.sidecar.unwrap_or_else(free_port),
            free_port(),
        );
        let data = plan.data.clone().unwrap_or_else(|| dir.path().join("data"));
        let role = plan.role;
        let environment = plan.environment.clone();
        let open_files = plan.open_files;
        let admin_key = plan
            .can_have_administrator()
            .then(|| administrator::create_data_dir(&data));
        let (gateway, is_closed, beside) = (None, false, None);
        let world = Self {
            dir,
            config,
            edge,
            sidecar,
            admin,
            vendor,
            data,
            environment,
            role,
            open_files,
            gateway,
            is_closed,
            admin_key,
            beside,
        };
        std::fs::write(&world.config, world.config_text(plan)).unwrap();
        world
    }

    fn config_text(&self, plan: &Plan) -> String {
        let own = [format!("{{url: \"{}\"}}", vendor_url(self.vendor.port))];
        let list = |given: &[String]| {
            let endpoints = if given.is_empty() { &own } else { given };
            let sticky = if plan.takes_turns {
                "\n    sticky: false"
            } else {
                ""
            };
            format!("endpoints: [{}]{sticky}", endpoints.join(", "))
        };
        let data = &self.data;
        let shipped = shipped();
        let (alpha, beta) = shipped
            .split_once("  beta:")
            .expect("the shipped file's vendor beta");
        let alpha = replace(alpha, SHIPPED_ENDPOINTS, &list(&plan.alpha));
        let beta = replace(beta, SHIPPED_ENDPOINTS, &list(&plan.beta));
        let mut text = format!("{alpha}  beta:{beta}");
        for (shipped, port) in [
            ("8080", self.edge),
            ("8081", self.sidecar),
            ("9090", self.admin),
        ] {
            text = replace(
                &text,
                &format!("127.0.0.1:{shipped}"),
                &format!("127.0.0.1:{port}"),
            );
        }
        text = replace(
            &text,
            r#"data_dir: "data""#,
            &format!("data_dir: {:?}", data.display().to_string()),
        );
        if let Some(signup) = &plan.signup {
            let shipped = text
                .lines()
                .find(|line| line.starts_with("signup:"))
                .unwrap()
                .to_owned();
            text = replace(&text, &shipped, &format!("signup: {signup}"));
        }
        for (shipped, instead) in &plan.edits {
            text = replace(&text, shipped, instead);
        }
        if !plan.limits.is_empty() {
            text.push_str(&format!("limits:\n{}", plan.limits));
        }
        text
    }

    pub fn data_dir(&self) -> PathBuf {
        self.data.clone()
    }

    fn spawn_gateway(&self, arguments: &[&str], point: Option<&str>) -> Child {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .unwrap();
        test_world::count_program();
        // `XFSZ` is ignored, so a write past the file size limit fails as on a full disk.
        let mut command = Command::new("sh");
        let limit = self
            .open_files
            .map_or_else(String::new, |files| format!("ulimit -n {files}; "));
        command
            .args([
                "-c",
                &format!("trap '' XFSZ; {limit}exec \"$@\""),
                "sh",
                binary(),
            ])
            .args(arguments)
            .arg("-c")
            .arg(&self.config);
        command.stdout(Stdio::null()).stderr(log);
        command.envs(point.map(|point| ("GW_FAIL", point)));
        command.envs(trust());
        command.envs(self.environment.iter().map(|(name, value)| (*name, value)));
        command.spawn().expect("start the gateway")
    }

    /// Upgrades the running process to a new one. Returns the old process, which finishes its work.
    pub fn upgrade(&mut self) -> Child {
        let successor = self.begin_successor();
        self.hand_over_to(successor)
    }

    /// Starts a process that waits for this gateway to hand over.
    pub fn begin_successor(&self) -> Child {
        // Earlier upgrades may have logged this line as well.
        let waited = self.said("waiting for the running gateway");
        let successor = self.spawn_gateway(&[self.role, "--upgrade"], None);
        wait_until("the successor to wait", SOON, || {
            self.said("waiting for the running gateway") > waited
        });
        successor
    }

    /// Whether the gateway has a thread of this name.
    pub fn has_thread(&self, name: &str) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let name_of =
            |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm"));
        let mut names = threads.flatten().filter_map(|thread| name_of(thread).ok());
        names.any(|of_thread| of_thread.trim_end() == name)
    }

    /// Makes the gateway hand over to a waiting process. Returns the old process, which finishes
    /// its work.
    pub fn hand_over_to(&mut self, successor: Child) -> Child {
        self.hand_over_by(successor, |world| world.signal("QUIT"))
    }

    /// Like [`World::hand_over_to`], but `tell` triggers the handover.
    pub fn hand_over_by(&mut self, successor: Child, tell: impl FnOnce(&Self)) -> Child {
        let listened = self.said("listening on");
        tell(self);
        wait_until("the successor to listen", SOON, || {
            self.said("listening on") > listened
        });
        self.gateway.replace(successor).expect("a running gateway")
    }

    /// How many times the log contains `text`.
    fn said(&self, text: &str) -> usize {
        self.log().matches(text).count()
    }

    /// Sets variables in the environment of the gateways that start from now on.
    pub fn set_environment(&mut self, variables: &[(&'static str, String)]) {
        for (name, value) in variables {
            self.environment.retain(|(known, _)| known != name);
            self.environment.push((name, value.into()));
        }
    }

    /// Starts the gateway and waits until it is ready. Returns the time this took.
    pub fn start_gateway(&mut self) -> Duration {
        self.start_failing(None)
    }

    /// Like [`World::start_gateway`], but the gateway kills itself at the fail point.
    pub fn start_failing(&mut self, point: Option<&str>) -> Duration {
        let began = Instant::now();
        self.begin_gateway(point);
        wait_for("the gateway to be ready", SOON, || {
            let died = self.gateway.as_mut().unwrap().try_wait().unwrap();
            assert!(
                died.is_none(),
                "the gateway ended at its start: {died:?}\n{}",
                self.log()
            );
            self.is_ready().then_some(())
        });
        began.elapsed()
    }

    /// Starts the gateway with `--accept-older-ledger`.
    pub fn start_accepting(&mut self) {
        self.gateway = Some(self.spawn_gateway(&[self.role, "--accept-older-ledger"], None));
        wait_until("the gateway to be ready", SOON, || self.is_ready());
    }

    /// Starts the gateway, which may kill itself at a fail point, without waiting.
    pub fn begin_gateway(&mut self, point: Option<&str>) {
        assert!(self.gateway.is_none(), "one gateway at a time");
        self.gateway = Some(self.spawn_gateway(&[self.role], point));
    }

    /// Whether the gateway has ended by itself. If so, another one can be started.
    pub fn has_ended(&mut self) -> bool {
        let ended = self
            .gateway
            .as_mut()
            .is_none_or(|gateway| gateway.try_wait().unwrap().is_some());
        if ended {
            self.gateway = None;
        }
        ended
    }

    /// Waits until the gateway has killed itself.
    #[track_caller]
    pub fn wait_killed(&mut self) {
        let mut gateway = self.gateway.take().expect("a running gateway");
        let status = wait_for("the gateway to be killed", SOON, || {
            gateway.try_wait().unwrap()
        });
        assert_eq!(status.signal(), Some(9), "{status}");
    }

    pub fn is_ready(&self) -> bool {
        client::try_ask(self.admin, &Request::get("/readyz"))
            .is_some_and(|answer| answer.status == 200)
    }

    /// Whether this sidecar says that it holds the ledger in PostgreSQL.
    pub fn holds_ledger(&self) -> bool {
        client::try_ask(self.admin, &Request::get("/metrics"))
            .is_some_and(|answer| answer.has("\ngateway_ledger_held 1\n"))
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("gateway.log")
    }

    /// The log so far. A thread of the gateway writes it, and sleeps once all is written.
    pub fn log(&self) -> String {
        if let Some(gateway) = &self.gateway {
            wait_until("the log to be written", SOON, || {
                !is_thread_busy(gateway.id(), "log")
            });
        }
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    pub fn pid(&self) -> u32 {
        self.gateway.as_ref().expect("a running gateway").id()
    }

    /// Sends the gateway a signal: `TERM`, `HUP`, …
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Number of files and sockets that the gateway has open.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .unwrap()
            .count()
    }

    /// Number of sockets that the gateway has open. Unlike [`World::open_files`], it does not
    /// change when a busy thread opens one more connection to a database.
    pub fn open_sockets(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .unwrap()
            .filter_map(|file| std::fs::read_link(file.unwrap().path()).ok())
            .filter(|target| target.to_string_lossy().starts_with("socket:"))
            .count()
    }

    /// Limits the number of files that the gateway may open.
    pub fn limit_open_files(&self, files: usize) {
        let mut command = Command::new("prlimit");
        command.args([
            "--pid",
            &self.pid().to_string(),
            &format!("--nofile={files}:"),
        ]);
        assert!(command.status().unwrap().success());
    }

    /// Limits the size of files that the gateway may write, or removes the limit.
    pub fn limit_file_size(&self, bytes: Option<u64>) {
        let pid = self
            .gateway
            .as_ref()
            .expect("a running gateway")
            .id()
            .to_string();
        let soft = bytes.map_or_else(|| "unlimited".into(), |bytes| bytes.to_string());
        let mut command = Command::new("prlimit");
        assert!(
            command
                .args(["--pid", &pid, &format!("--fsize={soft}:unlimited")])
                .status()
                .unwrap()
                .success()
        );
    }

    /// Kills the gateway with SIGKILL and waits until the process has ended.
    pub fn kill(&mut self) {
        let mut gateway = self.gateway.take().expect("a running gateway");
        gateway.kill().unwrap();
        gateway.wait().unwrap();
    }

    /// Status and JSON body of `/readyz` on the admin listener.
    pub fn readiness(&self) -> (u16, Value) {
        let answer = client::ask(
            self.admin,
            &Request::get("/readyz").header("accept", "application/json"),
        );
        (answer.status, answer.json())
    }

    /// Waits until the gateway has ended by itself. Returns its exit code.
    pub fn wait_end(&mut self, limit: Duration) -> i32 {
        let mut gateway = self.gateway.take().expect("a running gateway");
        let status = wait_for("the gateway to end", limit, || gateway.try_wait().unwrap());
        status.code().unwrap_or(-1)
    }

    /// Runs `model-gateway ARGS -c CONFIG`. If the world has a sidecar, its config is used.
    pub fn command(&self, args: &[&str]) -> Output {
        let books = self.beside.as_ref().map_or(self, |beside| &beside.sidecar);
        command_on(&books.config, args)
    }

    /// Like [`World::command`], with `--json`. The command must succeed.
    pub fn json(&self, args: &[&str]) -> Value {
        let output = self.command(&[args, &["--json"]].concat());
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "{args:?}: {out}{err}");
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{args:?}: {error}: {out}"))
    }

    /// The admin API of the process that has the ledger. `None` if that process does not run, or if
    /// the world began without an administrator: then only commands reach the ledger.
    pub fn admin_api(&self) -> Option<AdminApi<'_>> {
        let ledger = self.beside.as_ref().map_or(self, |beside| &beside.sidecar);
        let key = ledger.admin_key.as_deref()?;
        let gateway = ledger.gateway.as_ref()?;
        is_running(gateway.id()).then(|| AdminApi::new(ledger.admin, key))
    }

    pub fn metrics(&self) -> String {
        client::ask(self.admin, &Request::get("/metrics")).text()
    }

    /// Waits until the sum that [`World::metric`] returns is this one.
    #[track_caller]
    pub fn wait_metric(&self, family: &str, labels: &[&str], sum: f64) {
        let what = format!("{family} {labels:?} to be {sum}");
        wait_until(&what, SOON, || self.metric(family, labels) == sum);
    }

    /// Checks the sum that [`World::metric`] returns.
    #[track_caller]
    pub fn has_metric(&self, family: &str, labels: &[&str], sum: f64) {
        assert_eq!(self.metric(family, labels), sum, "{family} {labels:?}");
    }

    /// Waits until the log has this text.
    #[track_caller]
    pub fn wait_log(&self, text: &str) {
        wait_until(text, SOON, || self.log().contains(text));
    }

    /// The sum of a metric family's samples whose labels contain all of `labels`.
    pub fn metric(&self, family: &str, labels: &[&str]) -> f64 {
        let text = self.metrics();
        let samples = text.lines().filter(|line| {
            let rest = line.strip_prefix(family);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
                && labels.iter().all(|label| line.contains(label))
        });
        samples
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum()
    }

    /// Ends the world before its test, to look at what it left behind.
    pub fn close(self) {
        drop(self);
    }

    /// Ends a world: nothing may be held or running, the gateway must exit with 0, and the ledger
    /// must pass its checks. The ledger of an edge is in another process, whose world checks it.
    fn check(&mut self) {
        if self.role == "edge" {
            return self.leave();
        }
        self.become_idle();
        let accounts = crate::account::accounts(self);
        self.end();
        match accounts {
            Some(accounts) => crate::account::audit_with(self, &accounts),
            None => crate::account::audit(self),
        }
    }

    /// Skips the checks for a gateway that never served.
    pub fn forget(&mut self) {
        self.is_closed = true;
    }

    /// Ends the gateway as the end of its world does, without checking the ledger.
    pub fn leave(&mut self) {
        self.become_idle();
        self.end();
    }

    /// Waits until nothing is running or held.
    fn become_idle(&self) {
        self.vendor.wait_idle();
        if has_h2_vendors() {
            let requests = self.vendor.requests();
            let over_h1 = requests
                .as_array()
                .unwrap()
                .iter()
                .find(|request| request["http"] != "2");
            assert!(over_h1.is_none(), "a request over HTTP/1.1: {over_h1:?}");
        }
        wait_until("all holds to be gone", SOON, || {
            self.metric("gateway_open_holds", &[]) == 0.0
        });
    }

    /// Ends the gateway, which must exit with 0.
    fn end(&mut self) {
        assert!(!self.log().contains("panicked"), "a panic:\n{}", self.log());
        self.signal("TERM");
        assert_eq!(self.wait_end(SOON), 0);
        self.is_closed = true;
    }
}

impl Drop for World {
    /// Checks the world, unless its test failed or ended the gateway itself.
    fn drop(&mut self) {
        let is_checked = !std::thread::panicking() && !self.is_closed && self.gateway.is_some();
        let checks = is_checked.then(|| catch_unwind(AssertUnwindSafe(|| self.check())));
        let failure = checks.and_then(Result::err);
        if let Some(mut gateway) = self.gateway.take() {
            let _ = gateway.kill();
            let _ = gateway.wait();
        }
        if std::thread::panicking() || failure.is_some() {
            let log = self.log();
            let start = log.len().saturating_sub(4_000);
            eprintln!(
                "--- the gateway's log ---\n{}",
                log.get(start..).unwrap_or(&log)
            );
        }
        if let Some(failure) = failure {
            resume_unwind(failure);
        }
    }
}

/// Whether a child process runs. One that has ended stays a zombie until its exit status is read.
fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// Runs `model-gateway ARGS -c CONFIG` without a world.
pub fn command_on(config: &Path, args: &[&str]) -> Output {
    test_world::count_program();
    Command::new(binary())
        .args(args)
        .arg("-c")
        .arg(config)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn replace(text: &str, from: &str, to: &str) -> String {
    assert!(
        text.contains(from),
        "conf/local.yaml has no {from:?} any more"
    );
    text.replace(from, to)
}

/// Whether the thread of this name runs, or waits for a core or a disk.
fn is_thread_busy(process: u32, thread: &str) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    let mut stats = threads.into_iter().flatten().flatten().filter_map(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
        Some((name.to_owned(), rest.starts_with(['R', 'D'])))
    });
    stats.any(|(name, runs)| name == thread && runs)
}
