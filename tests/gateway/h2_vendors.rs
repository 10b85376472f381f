//! Vendors behind HTTP/2 servers of other authors: nginx (which many vendors use), and Node.js.
//!
//! The simulator's HTTP/2 uses the gateway's own library, so both could have the same fault. This
//! module tests the main job only. It must not test rare faults: every other module does, over
//! HTTP/2.

use crate::account::micro;
use crate::client::{Answer, Request};
use crate::world::{Plan, SOON, Simulator, World, binary, free_port, wait_for};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use std::fs::{File, read_to_string, write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// The config line of the third model, after which the test sets its upstream protocol to
/// responses.
const DOOR: &str = "    upstream_model: gpt-5.5\n";
/// One model of each vendor protocol, with its prices of an input token and an output token in µc.
const MODELS: [(&str, i64, i64); 3] = [
    ("alpha-haiku-4-5-20251001", 100, 500),
    ("beta-5.2", 175, 1_400),
    ("beta-5.5", 500, 3_000),
];
const PATHS: [&str; 3] = ["/v1/chat/completions", "/v1/messages", "/v1/responses"];

/// An HTTP/2 server in front of a simulated vendor that does not use HTTP/2.
struct Front {
    process: Child,
    port: u16,
    dir: TempDir,
    vendor: Simulator,
}

impl Front {
    /// Starts a server. `command` builds its command line from its port, the vendor's port and a
    /// directory with certificates.
    fn start(command: impl FnOnce(u16, u16, &Path) -> Command) -> Self {
        let (dir, port, vendor) = (
            tempfile::tempdir().unwrap(),
            free_port(),
            Simulator::start_in_the_clear(None),
        );
        certify(dir.path());
        // Append mode, because nginx opens the file a second time.
        let log = File::options()
            .create(true)
            .append(true)
            .open(dir.path().join("front.log"))
            .unwrap();
        let mut command = command(port, vendor.port, dir.path());
        command
            .stdin(Stdio::null())
            .stderr(log.try_clone().unwrap())
            .stdout(log);
        let process = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut front = Self {
            process,
            port,
            dir,
            vendor,
        };
        wait_for("the server in front to listen", SOON, || {
            let ended = front.process.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", front.log());
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        front
    }

    fn log(&self) -> String {
        read_to_string(self.dir.path().join("front.log")).unwrap()
    }

    /// A gateway whose vendors are all behind this server.
    fn gateway(&self) -> World {
        let endpoint = format!("{{url: \"https://localhost:{}\"}}", self.port);
        let plan = Plan::default()
            .endpoints_as(&[endpoint])
            .environment("SSL_CERT_FILE", self.dir.path().join("ca.pem"));
        let plan = plan
            .limit("drain_after_client_seconds", 1)
            .limit("drain_reasoning_seconds", 1);
        plan.edit(DOOR, &format!("{DOOR}    upstream_protocol: responses\n"))
            .start()
    }

    /// Waits until the log has this number of requests. Asserts that each used HTTP/2.
    fn served_over_h2(&self, requests: usize) {
        let lines = wait_for("the log", SOON, || {
            let log = self.log();
            let lines: Vec<_> = log
                .lines()
                .filter(|line| line.contains(" POST /v1/"))
                .map(str::to_owned)
                .collect();
            (lines.len() >= requests).then_some(lines)
        });
        assert_eq!(lines.len(), requests, "{lines:?}");
        assert!(
            lines
                .iter()
                .all(|line| line.starts_with("2.0 ") || line.starts_with("HTTP/2.0 ")),
            "{lines:?}"
        );
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Writes a CA to `ca.pem`, and a certificate for `localhost` to `server.pem` with its key in
/// `server-key.pem`.
fn certify(dir: &Path) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = KeyPair::generate().unwrap();
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let server = server
        .signed_by(&key, &Issuer::from_params(&params, &authority))
        .unwrap();
    write(
        dir.join("ca.pem"),
        params.self_signed(&authority).unwrap().pem(),
    )
    .unwrap();
    write(dir.join("server.pem"), server.pem()).unwrap();
    write(dir.join("server-key.pem"), key.serialize_pem()).unwrap();
}

fn nginx(port: u16, vendor: u16, dir: &Path) -> Command {
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary: String = temporary
        .iter()
        .map(|kind| format!("  {kind}_temp_path {kind};\n"))
        .collect();
    let config = format!(
        "daemon off;\nmaster_process off;\npid nginx.pid;\nevents {{}}\nhttp {{\n{temporary}  \
         log_format versions '$server_protocol $request_method $uri';\n  \
         access_log front.log versions;\n  client_max_body_size 64m;\n  server {{\n    \
         listen 127.0.0.1:{port} ssl http2;\n    ssl_certificate server.pem;\n    ssl_certificate_key server-key.pem;\n    \
         location / {{\n      proxy_pass http://127.0.0.1:{vendor};\n      proxy_http_version 1.1;\n      \
         proxy_set_header connection \"\";\n      proxy_buffering off;\n      proxy_read_timeout 600;\n    }}\n  }}\n}}\n"
    );
    write(dir.join("nginx.conf"), config).unwrap();
    // Debian's path, which is not in every user's `PATH`.
    let program = Path::new("/usr/sbin/nginx");
    let mut command = Command::new(if program.exists() {
        program
    } else {
        Path::new("nginx")
    });
    command
        .arg("-p")
        .arg(dir)
        .arg("-c")
        .arg(dir.join("nginx.conf"))
        .arg("-e")
        .arg("stderr");
    command
}

fn node(port: u16, vendor: u16, dir: &Path) -> Command {
    let mut command = Command::new("node");
    command.arg(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/gateway/h2_vendors/proxy.mjs"
    ));
    command
        .args([port.to_string(), vendor.to_string()])
        .arg(dir.join("server.pem"))
        .arg(dir.join("server-key.pem"));
    command
}

fn request(path: &str, model: &str, key: &str, marker: &str, stream: bool) -> Request {
    let text = format!("[[sim {marker}]] hello");
    let mut body = json!({"model": model, "stream": stream});
    match path {
        "/v1/responses" => body["input"] = text.into(),
        _ => body["messages"] = json!([{"role": "user", "content": text}]),
    }
    let limit = match path {
        "/v1/chat/completions" => "max_completion_tokens",
        "/v1/messages" => "max_tokens",
        _ => "max_output_tokens",
    };
    body[limit] = 500.into();
    Request::post(path, body.to_string()).bearer(key)
}

/// Calls every model through every surface, whole and streamed. Asserts that each is answered,
/// billed to the µc, and sent over HTTP/2.
fn does_the_main_job(front: &Front) {
    let world = front.gateway();
    let account = world.account();
    let (mut balance, mut count) = (300_000_000, 0);
    for (model, input, output) in MODELS {
        for path in PATHS {
            for stream in [false, true] {
                let marker = "text=Heather events=1 input=1001 output=99";
                let answer = world.ask(&request(path, model, &account.key, marker, stream));
                assert_eq!(answer.status, 200, "{model} {path}: {}", answer.text());
                assert!(
                    answer.has("Heather"),
                    "{model} {path} {stream}: {}",
                    answer.text()
                );
                assert!(
                    !stream || answer.has(terminal(path)),
                    "{model} {path}: {}",
                    answer.text()
                );
                let cost = 1_001 * input + 99 * output;
                let receipt = world.receipt(&account, &answer.request_id());
                assert_eq!(
                    micro(&receipt["credits"]),
                    cost,
                    "{model} {path} {stream}: {receipt}"
                );
                balance -= cost;
                count += 1;
                assert_eq!(
                    (world.standing(&account).balance, front.vendor.calls()),
                    (balance, count)
                );
            }
        }
    }
    front.served_over_h2(usize::try_from(count).unwrap());
    world.ended(&account, usize::try_from(count).unwrap());
    assert!(
        front
            .vendor
            .requests()
            .as_array()
            .unwrap()
            .iter()
            .all(|request| request["http"] == "1.1")
    );
    assert_eq!(
        world.vendor.calls(),
        0,
        "all vendors are behind the other server"
    );
}

fn terminal(path: &str) -> &'static str {
    match path {
        "/v1/chat/completions" => "data: [DONE]\n\n",
        "/v1/messages" => "event: message_stop\n",
        _ => "event: response.completed\n",
    }
}

/// The client gets a vendor's refusal, and an error if an answer breaks off. If the client
/// disconnects, the gateway stops the vendor.
fn passes_on_what_goes_wrong(front: &Front) {
    let world = front.gateway();
    let account = world.account();
    let (path, model) = (PATHS[1], MODELS[0].0);
    let ask = |marker: &str| world.ask(&request(path, model, &account.key, marker, true));
    let refused = ask("status=400");
    assert_eq!(
        (refused.status, refused.json()["error"]["type"].as_str()),
        (400, Some("invalid_request_error"))
    );
    let cut: Answer = ask("events=9 cut=4");
    assert!(
        cut.status == 200 && cut.has("event: error\n"),
        "{}",
        cut.text()
    );
    let mut connection = world.connect();
    connection.send(&request(path, model, &account.key, "events=9 gap_ms=600000", true).bytes());
    front.vendor.wait_busy(1);
    drop(connection);
    front.vendor.wait_idle();
    assert_eq!(front.vendor.stats()["client_gone"], 1);
    let last: Value = world.ended(&account, 3);
    assert_eq!(last["model"], model, "{last}");
}

#[test]
fn nginx_in_front_of_the_vendors() {
    let front = Front::start(nginx);
    does_the_main_job(&front);
}

#[test]
fn failures_behind_nginx() {
    let front = Front::start(nginx);
    passes_on_what_goes_wrong(&front);
}

#[test]
fn node_in_front_of_the_vendors() {
    let front = Front::start(node);
    does_the_main_job(&front);
}

#[test]
fn failures_behind_node() {
    let front = Front::start(node);
    passes_on_what_goes_wrong(&front);
}

/// `vendors test` connects to a vendor as the gateway does, and prints the result: HTTP/2, or that
/// nobody listens.
#[test]
fn vendors_test_tells_what_a_server_speaks() {
    let mut front = Front::start(nginx);
    let world = front.gateway();
    let test = || {
        let mut command = Command::new(binary());
        command
            .args(["vendors", "test", "beta", "-c"])
            .arg(&world.config);
        command
            .env("SSL_CERT_FILE", front.dir.path().join("ca.pem"))
            .output()
            .unwrap()
    };
    let output = test();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        text.contains("HTTP/2") && text.contains("gpt-5.2: 200"),
        "{text}"
    );
    front.process.kill().unwrap();
    front.process.wait().unwrap();
    let output = test();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("refused"), "{text}");
}
