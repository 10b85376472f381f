//! Starts other proxies and gateways that are installed: each on one core, in front of the same
//! vendor, with as few features enabled as possible. Must not send load to them.

use super::system::{CORE, System, pinned};
use crate::rig::free_port;
use crate::ways::PASSED;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// All peers that are found on the PATH. Says which are not.
pub fn installed(vendor: u16) -> Vec<System> {
    let known: [(&str, Start); 4] = [
        ("haproxy", haproxy),
        ("envoy", envoy),
        ("aisix", aisix),
        ("litellm", litellm),
    ];
    let mut found = Vec::new();
    for (name, start) in known {
        match program(name) {
            Some(program) => found.push(start(&program, vendor)),
            None => println!("without {name}: it is not on the PATH"),
        }
    }
    found
}

type Start = fn(&Path, u16) -> System;

fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// `files`: what the program needs in its folder. The first is its last argument.
fn start(
    name: &'static str,
    program: &Path,
    files: &[(&str, String)],
    port: u16,
    args: &[&str],
) -> System {
    let dir = tempfile::tempdir().unwrap();
    for (file, text) in files {
        std::fs::write(dir.path().join(file), text).unwrap();
    }
    let mut command = pinned(CORE, program);
    command
        .current_dir(dir.path())
        .args(args)
        .arg(files[0].0)
        // AISIX reads the key of its clients there.
        .env("BENCH_KEY", System::KEY)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    System::plain(name, port, Some(command), Some(dir))
}

fn haproxy(program: &Path, vendor: u16) -> System {
    let port = free_port();
    let conf = format!(
        "global\n  nbthread 1\n  maxconn 8000\n\
         defaults\n  mode http\n  timeout connect 5s\n  timeout client 300s\n  timeout server 300s\n\
         \x20 option http-no-delay\n  http-reuse always\n\
         frontend f\n  bind 127.0.0.1:{port} backlog 4096\n  default_backend b\n\
         backend b\n  server s 127.0.0.1:{vendor} pool-max-conn 4000 maxconn 8000\n"
    );
    let files = [("haproxy.cfg", conf)];
    start("haproxy", program, &files, port, &["-db", "-f"])
}

fn envoy(program: &Path, vendor: u16) -> System {
    let port = free_port();
    let types = "type.googleapis.com/envoy.extensions.filters";
    let socket =
        |port| format!("{{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}");
    let (front, back) = (socket(port), socket(vendor));
    let conf = format!(
        "static_resources:
  listeners:
  - name: l
    address: {front}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          \"@type\": {types}.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          stream_idle_timeout: 300s
          route_config:
            virtual_hosts:
            - name: all
              domains: [\"*\"]
              routes: [{{ match: {{ prefix: / }}, route: {{ cluster: vendor, timeout: 0s }} }}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{ \"@type\": {types}.http.router.v3.Router }}
  clusters:
  - name: vendor
    type: STATIC
    connect_timeout: 5s
    circuit_breakers: {{ thresholds: [{{ max_connections: 20000, max_pending_requests: 20000, max_requests: 20000 }}] }}
    load_assignment:
      cluster_name: vendor
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {back} }} }}] }}]
"
    );
    let args = ["--concurrency", "1", "-l", "off", "-c"];
    start("envoy", program, &[("envoy.yaml", conf)], port, &args)
}

/// A gateway on hyper (<https://github.com/api7/aisix>), as it ships: one thread with its own
/// listener and connections. Its open version has no budgets.
fn aisix(program: &Path, vendor: u16) -> System {
    let (port, admin) = (free_port(), free_port());
    let conf = format!(
        "resources_file: resources.yaml
proxy: {{addr: \"127.0.0.1:{port}\", workers: 1}}
admin: {{addr: \"127.0.0.1:{admin}\", admin_keys: [bench-admin]}}
"
    );
    let resources = format!(
        "_format_version: \"1\"
provider_keys:
- {{display_name: vendor, provider: openai, adapter: openai, api_base: \"http://127.0.0.1:{vendor}/v1\", api_key: sim}}
models:
- {{display_name: {model}, provider: openai, model_name: {model}, provider_key: vendor}}
api_keys:
- {{display_name: bench, key_env: BENCH_KEY, allowed_models: [\"*\"]}}
",
        model = PASSED.model
    );
    let files = [("aisix.yaml", conf), ("resources.yaml", resources)];
    start("aisix", program, &files, port, &["--config"]).for_chat()
}

/// Its master key is the key that the load sends.
fn litellm(program: &Path, vendor: u16) -> System {
    let port = free_port();
    let conf = format!(
        "model_list:
  - model_name: beta-5.2
    litellm_params: {{ model: openai/beta-5.2, api_base: \"http://127.0.0.1:{vendor}/v1\", api_key: sim }}
general_settings: {{ master_key: {}, disable_spend_logs: true }}
litellm_settings: {{ telemetry: false, num_retries: 0, request_timeout: 300, set_verbose: false }}
router_settings: {{ num_retries: 0, disable_cooldowns: true }}
",
        System::KEY
    );
    let port_text = port.to_string();
    let args = [
        "--host",
        "127.0.0.1",
        "--port",
        &port_text,
        "--num_workers",
        "1",
        "--config",
    ];
    let files = [("litellm.yaml", conf)];
    start("litellm", program, &files, port, &args).for_small_chat()
}
