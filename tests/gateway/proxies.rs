//! The gateway behind the reverse proxies that docs/operating.md shows, each with exactly the lines
//! that stand there.

use crate::client::{self, Connection, Request};
use crate::surface::{BOTH, Chat, Messages};
use crate::world::{Plan, SOON, World, binary, free_port, wait_for};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const GUIDE: &str = include_str!("../../docs/operating.md");
const NGINX: &str = "/usr/sbin/nginx";
const HAPROXY: &str = "/usr/sbin/haproxy";
const CADDY: &str = "/usr/bin/caddy";
/// Address of the clients, which no proxy has.
const CLIENT: &str = "127.0.0.6";
/// Address that a client claims to have.
const LIE: &str = "203.0.113.9";

/// A block of the guide in this language, with the gateway's port.
fn block(language: &str, world: &World) -> String {
    let (_, block) = GUIDE.split_once(&format!("\n```{language}\n")).unwrap();
    let (block, _) = block.split_once("```\n").unwrap();
    let gateway = "127.0.0.1:8080";
    assert!(block.contains(gateway), "{block}");
    block.replace(gateway, &format!("127.0.0.1:{}", world.edge))
}

/// A proxy in front of the gateway.
struct Proxy {
    name: &'static str,
    process: Child,
    port: u16,
}

impl Proxy {
    /// Starts a program that takes a config file behind its arguments.
    fn start(
        (name, program): (&'static str, &str),
        arguments: &[&str],
        (dir, config): (&Path, String),
        port: u16,
    ) -> Self {
        let file = dir.join(name);
        std::fs::write(&file, config).unwrap();
        test_world::count_program();
        let mut command = Command::new(program);
        command.args(arguments).arg(&file).current_dir(dir);
        command.env("HOME", dir).stdin(Stdio::null());
        let process = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut proxy = Self {
            name,
            process,
            port,
        };
        wait_for(name, SOON, || {
            let ended = proxy.process.try_wait().unwrap();
            assert!(ended.is_none(), "{name}: {ended:?}");
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        proxy
    }

    /// nginx with these lines in a server.
    fn nginx(name: &'static str, lines: &str, dir: &Path) -> Self {
        let port = free_port();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary = temporary.map(|kind| format!("{kind}_temp_path {kind};"));
        let config = format!(
            "daemon off; master_process off; pid {name}.pid; events {{}} http {{ {} access_log off; \
             server {{ listen 127.0.0.1:{port}; {lines} }} }}",
            temporary.concat()
        );
        let prefix = dir.to_str().unwrap();
        let arguments = ["-p", prefix, "-e", "stderr", "-c"];
        Self::start((name, NGINX), &arguments, (dir, config), port)
    }

    fn haproxy(lines: &str, dir: &Path) -> Self {
        let port = free_port();
        let config = format!(
            "{lines}\nfrontend clients\n    bind 127.0.0.1:{port}\n    default_backend gateway\n"
        );
        let arguments = ["-db", "-f"];
        Self::start(("haproxy", HAPROXY), &arguments, (dir, config), port)
    }

    fn caddy(lines: &str, dir: &Path) -> Self {
        let port = free_port();
        let site = "gw.example {";
        assert!(lines.starts_with(site), "{lines}");
        let lines = lines.replace(site, &format!("http://:{port} {{\nbind 127.0.0.1\n"));
        let config = format!("{{\nadmin off\nlog {{\nlevel ERROR\n}}\n}}\n{lines}");
        let arguments = ["run", "--adapter", "caddyfile", "--config"];
        Self::start(("caddy", CADDY), &arguments, (dir, config), port)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A proxy passes on whole answers and errors, and streams each event as it comes.
fn passes_on(world: &World, key: &str, proxy: &Proxy) {
    let Proxy { name, port, .. } = *proxy;
    for surface in BOTH {
        let answer = client::ask(port, &surface.whole(key, "input=10 output=10"));
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        let mut connection = Connection::open(port);
        connection.send(&surface.stream(key, "events=20 hold=5 output=40").bytes());
        let mut answer = connection.begin();
        connection.until(&mut answer, "data: {");
        world.vendor.wait_busy(1);
        world.vendor.release();
        connection.finish(&mut answer);
        assert!(surface.is_complete(&answer), "{name}: {}", answer.text());
    }
    let unknown = json!({"model": "none", "messages": []});
    let answer = client::ask(port, &Messages.request(key, &unknown));
    Messages.failure(&answer, 404, "not_found_error", Some("model_not_found"));
    let answer = client::ask(port, &Chat.whole(key, "status=500"));
    Chat.failure(&answer, 502, "server_error", Some("upstream_error"));
    let mut connection = Connection::open(port);
    connection.send(&Request::new("HEAD", "/v1/models").bearer(key).bytes());
    let head = connection.head().unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{name}: {head}");
    let page = client::ask(port, &Request::get("/dashboard/sign-in"));
    assert_eq!(page.status, 200, "{name}");
    // More than a proxy keeps in its buffers, from a client that reads only then.
    let upload = Request::form("/dashboard/sign-in", &"x".repeat(900_000));
    for _ in 0..10 {
        assert_eq!(client::ask(port, &upload).status, 413, "{name}");
    }
}

/// The addresses in the access log.
fn clients(log: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines = text.lines().map(serde_json::from_str::<Value>);
    let clients = lines.map(|line| line.unwrap()["client"].as_str().unwrap().to_owned());
    clients.collect()
}

#[test]
fn an_http_1_0_client_gets_a_stream_without_chunks() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        let request = surface.stream(&account.key, "events=3 input=10 output=40");
        let request = String::from_utf8(request.bytes()).unwrap();
        let mut stream = TcpStream::connect(("127.0.0.1", world.edge)).unwrap();
        stream
            .write_all(request.replace(" HTTP/1.1", " HTTP/1.0").as_bytes())
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let head = head.to_lowercase();
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        assert!(head.contains("\r\nconnection: close"), "{head}");
        assert!(!head.contains("transfer-encoding"), "{head}");
        let begin = if surface == Chat { "data: " } else { "event: " };
        assert!(body.starts_with(begin), "{body}");
        assert!(body.contains(surface.terminal()), "{body}");
    }
}

#[test]
fn the_proxies_of_the_guide_pass_on_what_clients_and_the_gateway_send() {
    for program in [NGINX, HAPROXY, CADDY] {
        if !Path::new(program).exists() {
            return test_world::skip(&format!("{program} is missing"));
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("access.log");
    let store = "store: {kind: embedded}";
    let access_log = format!("{store}\naccess_log: {:?}", log.display().to_string());
    let (world, account) = Plan::default()
        .edit(store, &access_log)
        .edit("listen:\n", "listen:\n  trust_proxy: [\"127.0.0.1\"]\n")
        .with_account();
    let key = &account.key;
    let dir = dir.path();
    // The control: nginx as it is shipped speaks HTTP/1.0, and takes bodies of a megabyte.
    let plain = format!(
        "location / {{ proxy_pass http://127.0.0.1:{}; }}",
        world.edge
    );
    passes_on(&world, key, &Proxy::nginx("plain", &plain, dir));
    let proxies = [
        Proxy::nginx("nginx", &block("nginx", &world), dir),
        Proxy::haproxy(&block("haproxy", &world), dir),
        Proxy::caddy(&block("caddyfile", &world), dir),
    ];
    for (large_bodies, proxy) in (1..).zip(proxies) {
        passes_on(&world, key, &proxy);
        let Proxy { name, port, .. } = proxy;
        let mut large = Chat.body("input=10 output=10", false, 1_000);
        large["user"] = "x".repeat(1_200_000).into();
        // curl asks for a 100 before it sends so much.
        let file = dir.join("large");
        std::fs::write(&file, large.to_string()).unwrap();
        let output = Command::new("curl")
            .args(["--silent", "--max-time", "60", "--interface", CLIENT])
            .args(["--noproxy", "*", "--header", &format!("x-api-key: {key}")])
            .args(["--header", &format!("x-forwarded-for: {LIE}")])
            .args(["--output", "/dev/null", "--write-out", "%{http_code}"])
            .arg("--data-binary")
            .arg(format!("@{}", file.display()))
            .arg(format!("http://127.0.0.1:{port}{}", Chat.path()))
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "200", "{name}");
        wait_for("the access log", SOON, || {
            let clients = clients(&log);
            assert!(!clients.iter().any(|client| client == LIE), "{name}");
            let from_client = clients.iter().filter(|client| *client == CLIENT);
            (from_client.count() == large_bodies).then_some(())
        });
    }
}

/// A proxy that closes a connection after the gateway has closed it loses the request that it has
/// just sent.
#[test]
fn an_idle_connection_outlives_those_of_the_usual_load_balancers() {
    let schema = Command::new(binary()).arg("schema").output().unwrap();
    let schema: Value = serde_json::from_slice(&schema.stdout).unwrap();
    let limit = &schema["$defs"]["Limits"]["properties"]["keepalive_seconds"];
    assert!(limit["default"].as_u64() > Some(60), "{limit}");
}
