//! Tests `vendors test`, `models import` and presets, which an operator uses before the first
//! client request.

use crate::client::Request;
use crate::world::{Plan, Simulator, World, command_on, free_port};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, Stream};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

/// The part of a config file before its vendors.
fn head() -> &'static str {
    include_str!("../../conf/local.yaml")
        .split("vendors:\n")
        .next()
        .unwrap()
}

/// Writes a config file with this vendor and one model.
fn file(dir: &Path, vendor: &str, upstream_model: &str) -> PathBuf {
    let file = dir.join("gateway.yaml");
    let model = format!(
        "models:\n  - {{id: m, vendor: v, upstream_model: {upstream_model}, context_tokens: 9000, \
         max_output_tokens: 900, price: {{input: \"1\", output: \"1\"}}}}\n"
    );
    let limits = "limits: {first_byte_seconds: 3}\n";
    std::fs::write(
        &file,
        format!("{}vendors:\n  v: {vendor}\n{model}{limits}", head()),
    )
    .unwrap();
    file
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// The report of `vendors test --json` on the only endpoint, and the exit code.
fn tested(file: &Path) -> (i32, Value) {
    let output = command_on(file, &["vendors", "test", "--json"]);
    let text = said(&output);
    assert!(!text.contains("CANARY"), "{text}");
    let value: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(value["endpoints"].as_array().unwrap().len(), 1, "{value}");
    (output.status.code().unwrap(), value["endpoints"][0].clone())
}

fn chat_at(url: &str) -> String {
    format!("{{protocol: chat, api_key: sk-CANARY-one, endpoints: [{{url: \"{url}\"}}]}}")
}

#[test]
fn a_vendor_that_works_is_shown_with_all_that_was_found() {
    let (vendor, dir) = (
        Simulator::start_in_the_clear(None),
        tempfile::tempdir().unwrap(),
    );
    let url = format!("http://127.0.0.1:{}", vendor.port);
    let config = file(dir.path(), &chat_at(&url), "sim-small");
    let (code, report) = tested(&config);
    assert_eq!(code, 0, "{report}");
    assert_eq!(report["url"], format!("{url}/v1/chat/completions"));
    assert_eq!(
        report["addresses"],
        json!([format!("127.0.0.1:{}", vendor.port)])
    );
    assert_eq!(
        (&report["tls"], &report["http"], &report["key"]),
        (&json!(null), &json!("HTTP/1.1"), &json!("accepted"))
    );
    assert_eq!(report["models"], json!({"count": 3, "unlisted": []}));
    let request = &report["requests"][0];
    assert_eq!(
        (&request["model"], &request["status"]),
        (&json!("sim-small"), &json!(200))
    );
    assert!(
        request["input"].as_u64() > Some(0) && request["output"].as_u64() > Some(0),
        "{report}"
    );
    assert_eq!(vendor.calls(), 2, "one list and one small request");
    let limit = vendor.last()["body"].to_string();
    assert!(limit.contains("16"), "a small output limit: {limit}");
    let table = command_on(&config, &["vendors", "test", "v"]);
    let text = said(&table);
    assert!(
        table.status.success() && text.lines().count() == 2,
        "{text}"
    );
    assert!(
        text.contains("VENDOR")
            && text.contains("sim-small: 200")
            && text.trim_end().ends_with("ok"),
        "{text}"
    );
    let config = file(
        dir.path(),
        &chat_at(&url).replace("chat", "messages").replace(
            "}]",
            "}], version_header: {name: anthropic-version, value: \"2023-06-01\"}",
        ),
        "unlisted-model",
    );
    let (code, report) = tested(&config);
    assert_eq!(
        (code, &report["models"]["unlisted"]),
        (0, &json!(["unlisted-model"])),
        "asked all the same: {report}"
    );
    let unknown = command_on(&config, &["vendors", "test", "w"]);
    assert!(
        unknown.status.code() == Some(1) && said(&unknown).contains("no vendor \"w\" is in use"),
        "{}",
        said(&unknown)
    );
}

/// A server with one path, where it answers with this body. Any other path is 404.
fn server_with(own: &'static str, body: Value) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = move |client: TcpStream| -> std::io::Result<()> {
        let mut request = BufReader::new(&client);
        let (mut line, mut length) = (String::new(), 0);
        request.read_line(&mut line)?;
        let is_own = line.starts_with(&format!("POST {own} "));
        while line.trim() != "" {
            line.clear();
            request.read_line(&mut line)?;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        request.read_exact(&mut vec![0; length])?;
        let (status, body) = match is_own {
            true => (200, body.clone()),
            false => (404, json!({"message": "no such path"})),
        };
        let body = body.to_string();
        let length = body.len();
        (&client).write_all(
            format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
                .as_bytes(),
        )
    };
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            answer(client).unwrap();
        }
    });
    port
}

#[test]
fn a_vendor_with_a_path_of_its_own_is_asked_there() {
    let dir = tempfile::tempdir().unwrap();
    let test = |port: u16, edits: &[(&str, &str)]| {
        let config = file(
            dir.path(),
            &chat_at(&format!("http://127.0.0.1:{port}")),
            "e",
        );
        let mut text = std::fs::read_to_string(&config).unwrap();
        for (old, new) in edits {
            text = text.replace(old, new);
        }
        std::fs::write(&config, text).unwrap();
        tested(&config)
    };
    let embedding = &[
        ("max_output_tokens: 900", "kind: embedding"),
        (", output: \"1\"", ""),
    ][..];
    let text = &[("900,", "900, capabilities: {completions: text},")][..];
    let fim = &[("900,", "900, capabilities: {completions: fim},")][..];
    let vectors = json!({"embeddings": {"float": [[0.5]]},
        "meta": {"billed_units": {"input_tokens": 1.0}}});
    let words = json!({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}});
    for (path, answer, model, output) in [
        ("/v2/embed", vectors.clone(), embedding, json!(null)),
        ("/v1/completions", words.clone(), text, json!(2)),
        ("/v1/fim/completions", words.clone(), fim, json!(2)),
    ] {
        let (code, report) = test(server_with(path, answer), model);
        let request = &report["requests"][0];
        assert_eq!((code, &request["status"]), (0, &json!(200)), "{report}");
        assert_eq!(
            (&request["input"], &request["output"]),
            (&json!(1), &output),
            "{report}"
        );
    }
    // A vendor that has none of the paths is reported with the common one.
    for (path, answer, model, common) in [
        ("/none", vectors, embedding, "/v1/embeddings"),
        ("/v1/fim/completions", words, text, "/v1/chat/completions"),
    ] {
        let (code, report) = test(server_with(path, answer), model);
        let fault = report["faults"][0].as_str().unwrap();
        assert!(code == 1 && fault.contains(common), "{report}");
    }
}

#[test]
fn each_fault_is_one_line_in_plain_words_and_the_key_is_never_printed() {
    let dir = tempfile::tempdir().unwrap();
    let vendor = Simulator::start_in_the_clear(None);
    let broken = Simulator::start_in_the_clear(Some("status=429"));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().port();
    let at = |port: u16| format!("http://127.0.0.1:{port}");
    for (entry, fault) in [
        (chat_at(&at(free_port())), "nothing listens at 127.0.0.1:"),
        (
            chat_at("http://nobody.invalid"),
            "cannot resolve the name nobody.invalid",
        ),
        (
            chat_at(&at(vendor.port)).replace("sk-CANARY-one", "gw-CANARY-one"),
            "the vendor refused the key (401)",
        ),
        (
            chat_at(&at(broken.port)),
            "the vendor refused a request to sim-small (429)",
        ),
        (
            chat_at(&format!("{}/elsewhere", at(vendor.port))),
            "the vendor does not know",
        ),
        (chat_at(&at(silent)), "sim-small did not answer: "),
    ] {
        let config = file(dir.path(), &entry, "sim-small");
        let (code, report) = tested(&config);
        let faults = report["faults"].as_array().unwrap();
        assert!(code == 1 && faults.len() == 1, "{report}");
        let text = faults[0].as_str().unwrap();
        assert!(text.contains(fault) && !text.contains('\n'), "{report}");
        let table = command_on(&config, &["vendors", "test"]);
        let text = said(&table);
        assert!(
            table.status.code() == Some(1) && text.lines().count() == 2 && !text.contains("CANARY"),
            "{text}"
        );
        assert!(text.contains("FAULT: "), "{text}");
    }
}

/// A chat completions server behind TLS that speaks HTTP/1.1. It answers requests for a list, and
/// requests that end in `}`.
fn tls_server(authority: &(CertificateParams, KeyPair), host: &str) -> u16 {
    let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = params
        .signed_by(&key, &Issuer::from_params(&authority.0, &authority.1))
        .unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let mut config = builder
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // The thread ends with the test process, and the test does not wait for it.
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let config = Arc::clone(&config);
            std::thread::spawn(move || {
                let mut connection = ServerConnection::new(config).unwrap();
                let mut stream = Stream::new(&mut connection, &mut socket);
                let (mut got, mut piece) = (Vec::new(), [0; 4_096]);
                while let Ok(length @ 1..) = stream.read(&mut piece) {
                    got.extend_from_slice(&piece[..length]);
                    let body = match got.starts_with(b"GET") {
                        true if got.ends_with(b"\r\n\r\n") => r#"{"data":[{"id":"models/up"}]}"#,
                        false if got.ends_with(b"}") => {
                            r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#
                        }
                        _ => continue,
                    };
                    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
                    let _ = write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len());
                    got.clear();
                }
            });
        }
    });
    port
}

#[test]
fn tls_and_its_faults_are_those_of_the_gateway() {
    let dir = tempfile::tempdir().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = (params, KeyPair::generate().unwrap());
    let believed = dir.path().join("authority.pem");
    std::fs::write(
        &believed,
        authority.0.self_signed(&authority.1).unwrap().pem(),
    )
    .unwrap();
    let test = |config: &Path| {
        let mut command = Command::new(crate::world::binary());
        command
            .args(["vendors", "test", "--json", "-c"])
            .arg(config)
            .env("SSL_CERT_FILE", &believed);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let value: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)));
        (output.status.code().unwrap(), value["endpoints"][0].clone())
    };
    let good = tls_server(&authority, "localhost");
    let (code, report) = test(&file(
        dir.path(),
        &chat_at(&format!("https://localhost:{good}/v1")),
        "up",
    ));
    assert_eq!(code, 0, "{report}");
    assert_eq!(
        (&report["tls"], &report["http"]),
        (&json!("TLSv1.3"), &json!("HTTP/1.1")),
        "{report}"
    );
    assert_eq!(
        report["models"],
        json!({"count": 1, "unlisted": []}),
        "a name with its kind before it is the name"
    );
    let other = tls_server(&authority, "elsewhere.example");
    let (code, report) = test(&file(
        dir.path(),
        &chat_at(&format!("https://localhost:{other}")),
        "up",
    ));
    let fault = report["faults"][0].as_str().unwrap();
    assert!(
        code == 1 && fault.contains("localhost") && fault.contains("certificate"),
        "{report}"
    );
    assert_eq!(
        (&report["http"], &report["requests"]),
        (&json!(null), &json!([])),
        "nothing was asked: {report}"
    );
    let h2 = chat_at(&format!("https://localhost:{good}")).replace("}]", ", http_version: 2}]");
    let (code, report) = test(&file(dir.path(), &h2, "up"));
    assert_eq!(
        code, 1,
        "a server of HTTP/1.1 alone, where HTTP/2 is wanted: {report}"
    );
}

/// The vendor is another gateway, which speaks HTTP/2 without TLS.
#[test]
fn http_2_by_prior_knowledge_is_tried_as_it_is_configured() {
    let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
    let account = world.account();
    let entry = |version: &str| {
        let url = format!("http://127.0.0.1:{}/v1/", world.edge);
        format!(
            "{{protocol: chat, api_key: {}, http_version: {version}, endpoints: [{{url: \"{url}\"}}]}}",
            account.key
        )
    };
    for (version, http) in [("2", "HTTP/2"), ("1", "HTTP/1.1"), ("auto", "HTTP/1.1")] {
        let (code, report) = tested(&file(dir.path(), &entry(version), "beta-5.2"));
        assert_eq!((code, &report["http"]), (0, &json!(http)), "{report}");
        assert_eq!(report["models"], json!({"count": 5, "unlisted": []}));
    }
    world.close();
}

#[test]
fn four_kinds_of_server_take_six_lines_each_at_most() {
    let entries = [
        (
            "openai",
            "  mine:\n    preset: openai\n    api_key: \"${OPENAI_API_KEY}\"\n",
            "POST https://api.openai.com/v1/chat/completions (chat, key in authorization, HTTP/2 or HTTP/1.1)",
        ),
        (
            "anthropic",
            "  mine:\n    preset: anthropic\n    api_key: \"${ANTHROPIC_API_KEY}\"\n",
            "POST https://api.anthropic.com/v1/messages (messages, key in x-api-key, HTTP/2 or HTTP/1.1)",
        ),
        (
            "gemini",
            "  mine:\n    preset: gemini\n    api_key: \"${GEMINI_API_KEY}\"\n",
            "POST https://generativelanguage.googleapis.com/v1beta/openai/chat/completions (chat, key in authorization, HTTP/2 or HTTP/1.1)",
        ),
        (
            "vllm",
            "  mine:\n    preset: vllm\n    endpoints: [{url: \"http://10.0.0.5:8000\"}]\n",
            "POST http://10.0.0.5:8000/v1/chat/completions (chat, no key, HTTP/1.1)",
        ),
        (
            "azure",
            "  mine:\n    preset: azure-openai\n    endpoints: [{url: \"https://NAME.openai.azure.com\"}]\n    api_key: \"${AZURE}\"\n",
            "POST https://NAME.openai.azure.com/openai/v1/chat/completions (chat, key in api-key, HTTP/2 or HTTP/1.1)",
        ),
        (
            "azure with deployments",
            "  mine:\n    preset: azure-openai\n    endpoints: [{url: \"https://n.openai.azure.com\"}]\n    path: /openai/deployments/gpt/chat/completions\n    query: {api-version: \"2024-10-21\"}\n    api_key: \"${AZURE}\"\n",
            "POST https://n.openai.azure.com/openai/deployments/gpt/chat/completions?api-version=2024-10-21 (chat, key in api-key, HTTP/2 or HTTP/1.1)",
        ),
        (
            "a whole address",
            "  mine:\n    preset: azure-openai\n    endpoints: [{url: \"https://n.openai.azure.com/openai/v1/\"}]\n    api_key: \"${AZURE}\"\n",
            "POST https://n.openai.azure.com/openai/v1/chat/completions (chat, key in api-key, HTTP/2 or HTTP/1.1)",
        ),
        (
            "vllm with a key",
            "  mine:\n    preset: vllm\n    api_key: \"${VLLM}\"\n",
            "POST http://127.0.0.1:8000/v1/chat/completions (chat, key in authorization, HTTP/1.1)",
        ),
        (
            "vllm that continues prompts",
            "  mine:\n    preset: vllm\n",
            "POST http://127.0.0.1:8000/v1/completions (chat, no key, HTTP/1.1)",
        ),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (what, entry, call) in entries {
        let lines = entry.lines().count() - 1;
        assert!(lines <= 6, "{what}: {lines} lines");
        let model = "models:\n  - {id: m, vendor: mine, upstream_model: m, context_tokens: 9, max_output_tokens: 9, price: {input: 1, output: 1}}\n";
        let config = dir.path().join("gateway.yaml");
        std::fs::write(&config, format!("{}vendors:\n{entry}{model}", head())).unwrap();
        let mut check = Command::new(crate::world::binary());
        check.args(["check", "-c"]).arg(&config);
        for variable in [
            "OPENAI_API_KEY",
            "ANTHROPIC_API_KEY",
            "GEMINI_API_KEY",
            "AZURE",
            "VLLM",
        ] {
            check.env(variable, "sk-CANARY");
        }
        let output = check.output().unwrap();
        let text = said(&output);
        assert!(
            output.status.success() && text.contains(call) && !text.contains("CANARY"),
            "{what}: {text}"
        );
    }
}

#[test]
fn import_prints_what_is_not_in_the_file_yet_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let config = file(
        dir.path(),
        "{preset: openai, api_key: \"${UNSET_HERE}\"}",
        "gpt-5.2",
    );
    let before = std::fs::read(&config).unwrap();
    let print = |arguments: &[&str]| {
        let output = command_on(&config, &[&["models", "import"], arguments].concat());
        (output.status.code().unwrap(), said(&output))
    };
    let (code, text) = print(&["anthropic"]);
    assert_eq!(code, 0, "{text}");
    for part in [
        "    preset: anthropic\n",
        "${ANTHROPIC_API_KEY:-}",
        "upstream_model: claude-haiku-4-5\n",
        "# 2026-",
        "https://",
    ] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    let (code, text) = print(&["openai", "--vendor", "v"]);
    assert!(
        code == 0 && !text.contains("vendors:\n") && text.contains("    vendor: v\n"),
        "{text}"
    );
    assert!(
        text.contains("already has the model \"gpt-5.2\"") && !text.contains("- id: gpt-5.2\n"),
        "{text}"
    );
    for (name, why) in [("opnai", "Did you mean \"openai\"?"), ("vertex", "OAuth")] {
        let (code, text) = print(&[name]);
        assert!(code == 1 && text.contains(why), "{name}: {text}");
    }
    assert_eq!(std::fs::read(&config).unwrap(), before);
}

/// A model gets its capabilities from the preset. Capabilities in the config override them.
#[test]
fn a_models_known_capabilities_come_from_the_preset() {
    let plan = |capabilities: &str| {
        let entry = |port: u16| {
            format!(
                "vendors:\n  known: {{preset: openai, api_key: sk-1, endpoints: [{{url: \"http://127.0.0.1:{port}\"}}]}}\n"
            )
        };
        let vendor = Simulator::start(None);
        let models = format!(
            "models:\n  - {{id: mine, vendor: known, upstream_model: gpt-5.2, context_tokens: 90000, \
             max_output_tokens: 9000, price: {{input: \"1\", output: \"1\"}}{capabilities}}}\n"
        );
        (
            Plan::default()
                .edit("vendors:\n", &entry(vendor.port))
                .edit("models:\n", &models)
                .start(),
            vendor,
        )
    };
    let described = |capabilities: &str| {
        let (world, _vendor) = plan(capabilities);
        let account = world.account();
        let model = world
            .ask(&Request::get("/v1/models/mine").bearer(&account.key))
            .json();
        world.close();
        model["capabilities"].clone()
    };
    let known = described("");
    assert_eq!(
        (&known["reasoning"], &known["temperature"]),
        (&json!(true), &json!(false)),
        "{known}"
    );
    assert_eq!(
        known["reasoning_efforts"],
        json!(["none", "low", "medium", "high", "xhigh"])
    );
    let written = described(", capabilities: {sampling: true, effort_values: [low]}");
    assert_eq!(
        (&written["reasoning"], &written["temperature"]),
        (&json!(true), &json!(true)),
        "{written}"
    );
    assert_eq!(written["reasoning_efforts"], json!(["low"]));
}

/// The stand-in is as strict as the vendor, and the gateway has no profile of it: what is learnt
/// makes a loop of tools succeed that fails without it.
#[test]
fn a_learnt_profile_makes_an_unknown_vendor_usable() {
    let dir = tempfile::tempdir().unwrap();
    let vendor = Simulator::start_in_the_clear(None);
    for (stand_in, key, learnt) in [
        (
            "gemini",
            "api_key: sk-CANARY-one",
            vec![
                "request: [extra_content, frequency_penalty, \"n\", parallel_tool_calls, presence_penalty, seed, stream_options]",
                "strict: true",
                "system: anywhere",
                "developer: refused (400",
                "state: [extra_content.google.thought_signature]",
                "state_placeholder: skip_thought_signature_validator",
                "#   turn without its state: refused (400: Function call is missing a thought_signature",
            ],
        ),
        (
            "deepseek",
            "api_key: sk-CANARY-one",
            vec![
                "later system message: refused (400",
                "off\": {thinking: {type: disabled}}",
                "state: [reasoning_content]",
                "state_placeholder: \"\"",
                "capabilities: {output_limit_field: max_tokens, reasoning_replay: reasoning_content}",
                "reasoning unasked: taken (200, reasoning in /choices/0/message/reasoning_content, usage in /usage",
            ],
        ),
        (
            "openrouter",
            "api_key: sk-CANARY-one",
            vec![
                "state: [reasoning_details]",
                "usage of a stream unasked: unknown (200, no usage",
            ],
        ),
        (
            "groq",
            "api_key: sk-CANARY-one",
            vec!["usage of a stream unasked: taken (200, usage in /x_groq/usage"],
        ),
    ] {
        let url = format!("http://127.0.0.1:{}/as/{stand_in}/v1", vendor.port);
        let endpoints = format!("endpoints: [{{url: \"{url}\"}}]");
        let entry = format!("{{protocol: chat, {key}, {endpoints}}}");
        let config = file(dir.path(), &entry, "any-model");
        let (code, unknown) = {
            let output = command_on(&config, &["vendors", "test", "--tools", "--json"]);
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            (output.status.code(), report["endpoints"][0].clone())
        };
        let fails = matches!(stand_in, "gemini" | "deepseek");
        assert_eq!(code, Some(i32::from(fails)), "{stand_in}: {unknown}");
        let before = vendor.calls();
        let output = command_on(&config, &["vendors", "learn", "v", "--write"]);
        let text = said(&output);
        assert!(
            output.status.success() && !text.contains("CANARY"),
            "{text}"
        );
        assert!(vendor.calls() - before <= 40, "{text}");
        assert!(
            text.contains("At most 40 requests to any-model cost at most "),
            "{text}"
        );
        for part in learnt {
            assert!(text.contains(part), "{stand_in}: no {part} in {text}");
        }
        let written = dir.path().join("v.profile.yaml");
        let profile = std::fs::read_to_string(&written).unwrap();
        assert!(
            String::from_utf8_lossy(&output.stdout) == profile.as_str(),
            "{text}"
        );
        let again = command_on(&config, &["vendors", "learn", "v", "--write"]);
        assert!(
            !again.status.success() && said(&again).contains("v.profile.yaml exists"),
            "{}",
            said(&again)
        );
        assert!(vendor.calls() - before <= 40, "nothing was asked");
        std::fs::remove_file(written).unwrap();
        let known = std::fs::read_to_string(&config).unwrap();
        let entry = format!("vendors:\n  v: {entry}\n");
        assert!(known.contains(&entry));
        let rest = format!("{profile}    protocol: chat\n    {key}\n    {endpoints}\n");
        let mark = "#    capabilities: ";
        let capabilities = profile
            .lines()
            .find_map(|line| line.strip_prefix(mark))
            .unwrap();
        let model = format!("upstream_model: any-model, capabilities: {capabilities}");
        let known = known.replace(&entry, &rest);
        let known = known.replace("upstream_model: any-model", &model);
        std::fs::write(&config, known).unwrap();
        let output = command_on(&config, &["vendors", "test", "--tools", "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let loops = &report["endpoints"][0]["tool_loops"];
        assert!(output.status.success(), "{stand_in}: {report}");
        for (at, streamed) in [false, true].into_iter().enumerate() {
            assert_eq!(
                loops[at],
                json!({"model": "any-model", "streamed": streamed, "steps": 2, "refused": [], "lost": loops[at]["lost"], "fault": null}),
                "{stand_in}"
            );
            let lost = loops[at]["lost"].as_array().unwrap();
            assert!(!lost.contains(&json!("usage")), "{stand_in}: {lost:?}");
        }
    }
}

#[test]
fn learning_stops_before_it_would_cost_more_and_says_what_it_does_not_know() {
    let dir = tempfile::tempdir().unwrap();
    let vendor = Simulator::start_in_the_clear(None);
    let entry = chat_at(&format!("http://127.0.0.1:{}/as/mistral", vendor.port));
    let config = file(dir.path(), &entry, "mistral-small-latest");
    let learn = |credits: &str| {
        let before = vendor.calls();
        let arguments = ["vendors", "learn", "v", "--json", "--max-credits", credits];
        let output = command_on(&config, &arguments);
        (vendor.calls() - before, said(&output), output)
    };
    let (calls, text, output) = learn("0.000001");
    assert!(calls == 0 && !output.status.success(), "{text}");
    assert!(text.contains("it could cost "), "{text}");
    let (calls, text, output) = learn("0.0006");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!((1..20).contains(&calls), "{text}");
    assert_eq!(report["requests"], json!(calls), "{text}");
    let credits: f64 = report["credits"].as_str().unwrap().parse().unwrap();
    assert!(credits <= 0.0006, "{text}");
    let unknown = report["findings"].as_array().unwrap().iter();
    assert!(
        unknown
            .filter(|finding| finding["verdict"] == "not_asked")
            .count()
            > 5
    );
    let refused =
        chat_at(&format!("http://127.0.0.1:{}", vendor.port)).replace("sk-CANARY", "gw-CANARY");
    let config = file(dir.path(), &refused, "sim-small");
    let output = command_on(&config, &["vendors", "learn", "v"]);
    let text = said(&output);
    assert!(
        !output.status.success()
            && text.contains("the vendor refused the key (401)")
            && !text.contains("CANARY"),
        "{text}"
    );
}

/// A server that ignores members that it does not know, and reads those that it knows.
fn lenient_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // The thread ends with the test process, and the test does not wait for it.
    std::thread::spawn(move || {
        let mut was_busy = false;
        for mut socket in listener.incoming().flatten() {
            let (mut got, mut piece) = (Vec::new(), [0; 65_536]);
            let body = loop {
                let Ok(length @ 1..) = socket.read(&mut piece) else {
                    break Value::Null;
                };
                got.extend_from_slice(&piece[..length]);
                let text = String::from_utf8_lossy(&got);
                let Some((_, body)) = text.split_once("\r\n\r\n") else {
                    continue;
                };
                if let Ok(body) = serde_json::from_str(body) {
                    break body;
                }
            };
            let content = body["messages"][0]["content"].as_str();
            let is_developer = body["messages"][0]["role"] == "developer";
            let is_long = content.is_some_and(|content| content.len() > 9_000);
            let (status, answer) = match &body {
                body if body["seed"].is_object() || body["top_k"].is_object() => (
                    422,
                    json!({"detail": [{"loc": ["body", "seed"], "msg": "not an integer"}, {"loc": ["body", "top_k"], "msg": "not an integer"}]}),
                ),
                _ if is_long => (
                    400,
                    json!({"object": "error", "message": "This model's maximum context length is 9000 tokens. However, you requested 10125 tokens."}),
                ),
                // From here on, the vendor answers without doing what the request asked for.
                _ if is_developer && !was_busy => (429, json!({"error": {"message": "slow down"}})),
                _ if body["prediction"].is_object() => (400, json!({"oops": 1})),
                _ => (
                    200,
                    json!({"choices": [{"message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
                        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}}),
                ),
            };
            was_busy |= status == 429;
            let answer = answer.to_string();
            let _ = write!(
                socket,
                "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nx-ratelimit-limit-requests: 60\r\nretry-after: 0\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{answer}",
                answer.len()
            );
        }
    });
    port
}

#[test]
fn a_server_that_ignores_members_is_known_by_its_complaints_about_values() {
    let dir = tempfile::tempdir().unwrap();
    let entry = chat_at(&format!("http://127.0.0.1:{}", lenient_server()));
    let config = file(dir.path(), &entry, "any-model");
    let output = command_on(&config, &["vendors", "learn", "v", "--json"]);
    let text = said(&output);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{text}"));
    assert_eq!(
        report["profile"],
        json!({"request": ["seed", "stream_options", "top_k"], "drop": ["prediction"],
            "roles": {"system": "anywhere", "developer": true}}),
        "{report}"
    );
    assert_eq!(
        report["header_limits"],
        json!({"x-ratelimit-limit-requests": "60"})
    );
    let verdict = |probe: &str| {
        let all = report["findings"].as_array().unwrap();
        let finding = all
            .iter()
            .find(|finding| finding["probe"] == probe)
            .unwrap();
        let words = finding["evidence"].as_str().unwrap();
        format!("{}: {words}", finding["verdict"].as_str().unwrap())
    };
    assert!(verdict("full context").starts_with("refused: 400, as a full context: "));
    assert!(verdict("prefix").starts_with("not_asked: since \"unknown member\" is taken"));
    assert!(verdict("turn as it came").contains("the model called no tool"));
    assert!(verdict("prediction").contains("400, in a form that the gateway does not know"));
}
