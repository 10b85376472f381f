//! The commands, configs and metrics that operators type, paste and watch are correct: in `docs/`,
//! `deploy/` and the shipped config.
//!
//! The tests run no containers. For `compose.yaml` they check that everything it refers to exists.

use crate::account::Account;
use crate::client::Request;
use crate::keys_of_edges::Edges;
use crate::surface::{BOTH, Chat};
use crate::world::{Plan, SOON, binary, wait_until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use test_world::redis::Server;

const GUIDE: &str = include_str!("../../docs/many-edges.md");
const SHIPPED: &str = include_str!("../../conf/local.yaml");
const DEPLOYED: &str = include_str!("../../deploy/gateway.yaml");
const COMPOSE: &str = include_str!("../../deploy/compose.yaml");
const MONITORING: &str = include_str!("../../deploy/compose.monitoring.yaml");
const SCRAPED: &str = include_str!("../../deploy/prometheus/compose.yml");
const DOCKERFILE: &str = include_str!("../../deploy/Dockerfile");
const DOCKERIGNORE: &str = include_str!("../../.dockerignore");
/// The worst exposure level that `systemd-analyze` may report, in tenths.
const EXPOSURE_MAX: &str = "20";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(dir: &str, ending: &str) -> Vec<PathBuf> {
    let found = std::fs::read_dir(root().join(dir))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let found: Vec<_> = found
        .filter(|path| path.to_str().unwrap().ends_with(ending))
        .collect();
    assert!(!found.is_empty(), "{dir} has nothing that ends in {ending}");
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// The texts between `open` and `close`.
fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(open)
        .skip(1)
        .filter_map(move |rest| rest.split_once(close))
        .map(|(inside, _)| inside)
}

/// The code of a page: each line of its code blocks, and each inline code span, even if it spans
/// two lines.
fn code(page: &str) -> Vec<String> {
    let (mut found, mut prose, mut in_block) = (Vec::new(), String::new(), false);
    for line in page.lines() {
        if line.starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            found.push(line.trim().to_owned());
        } else {
            prose.push_str(line.trim());
            prose.push(' ');
        }
    }
    found.extend(prose.split('`').skip(1).step_by(2).map(str::to_owned));
    found
}

fn is_known(arguments: &[&str]) -> Result<(), String> {
    // Placeholders get a value. `--help` prevents the command from running.
    let stands_for = |word: &str| match word {
        "KEY_ID" | "REQUEST_ID" | "DIR" | "FILE" => "given".to_owned(),
        "…" => "given".to_owned(),
        "[CREDITS]" => "1".to_owned(),
        word => word.trim_matches(['[', ']']).to_owned(),
    };
    let words: Vec<_> = arguments.iter().map(|word| stands_for(word)).collect();
    let output = Command::new(binary())
        .args(&words)
        .arg("--help")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let unknown = words
        .iter()
        .filter(|word| word.starts_with("--"))
        .find(|word| !help.contains(word.as_str()));
    let short = words.iter().any(|word| word == "-c") && !help.contains("-c, --config");
    match (unknown, short) {
        (Some(word), _) => Err(format!("{word} is not in its help")),
        (None, true) => Err("-c is not in its help".into()),
        (None, false) => Ok(()),
    }
}

#[test]
fn every_command_line_that_is_told_exists() {
    let mut told = Vec::new();
    for page in files("docs", ".md")
        .into_iter()
        .chain([root().join("README.md")])
    {
        told.extend(code(&read(&page)));
    }
    for unit in files("deploy/systemd", ".service") {
        let text = read(&unit);
        let runs = text.lines().filter_map(|line| {
            line.strip_prefix("ExecStart=")
                .or(line.strip_prefix("ExecStartPre="))
        });
        told.extend(runs.map(|line| line.replace("/usr/local/bin/", "")));
    }
    let list = |text: &str| text.replace(['"', '[', ']', ','], " ");
    told.extend(
        COMPOSE
            .lines()
            .filter_map(|line| line.trim().strip_prefix("command: [\""))
            .map(list)
            .filter_map(|line| {
                (!line.starts_with("redis-server")).then(|| format!("model-gateway {line}"))
            }),
    );
    told.extend(
        DOCKERFILE
            .lines()
            .filter_map(|line| line.strip_prefix("CMD "))
            .map(|line| format!("model-gateway {}", list(line))),
    );
    let commands: BTreeSet<_> = told
        .iter()
        .filter_map(|line| line.strip_prefix("model-gateway "))
        .map(|line| line.trim().to_owned())
        .collect();
    assert!(commands.len() > 15, "{commands:?}");
    for command in &commands {
        // A quoted argument counts as one word.
        let quoted: String = command
            .split('"')
            .enumerate()
            .map(|(index, part)| if index % 2 == 1 { "given" } else { part })
            .collect();
        let words: Vec<_> = quoted
            .split_whitespace()
            .take_while(|word| !word.contains(['(', '|', '>']))
            .collect();
        if let Err(error) = is_known(&words) {
            panic!("model-gateway {command}: {error}");
        }
    }
    assert!(
        is_known(&["edge", "--upgrde"]).is_err() && is_known(&["edges"]).is_err(),
        "this test can fail"
    );
}

/// Runs `check` on a config, after adding the shipped config's values for all keys that it lacks.
fn check(text: &str) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.yaml");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(binary());
    command
        .args(["check", "--no-files", "-c"])
        .arg(&file)
        .env("GATEWAY_REDIS", "redis://:x@127.0.0.1:6379")
        .env("ALPHA_API_KEY", "k");
    let output = command
        .env("BETA_API_KEY", "k")
        .env("SCW_SECRET_KEY", "k")
        .env("SMTP_PASSWORD", "k")
        .env("STRIPE_WEBHOOK_SECRET", "whsec_k")
        .output()
        .unwrap();
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// The shipped config, with the snippet's top-level keys replacing its own.
fn completed(snippet: &str) -> String {
    let keys: Vec<_> = snippet
        .lines()
        .filter(|line| !line.starts_with([' ', '#']))
        .collect();
    let keys: Vec<_> = keys
        .iter()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, _)| key)
        .collect();
    let mut kept = String::new();
    let mut is_replaced = false;
    for line in SHIPPED.lines() {
        if !line.starts_with([' ', '#']) && !line.is_empty() {
            is_replaced = keys.iter().any(|key| line.starts_with(&format!("{key}:")));
        }
        if !is_replaced {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept + snippet
}

#[test]
fn every_config_that_is_told_is_accepted() {
    let mut count = 0;
    for page in files("docs", ".md")
        .into_iter()
        .chain([root().join("README.md")])
    {
        for snippet in between(&read(&page), "```yaml\n", "```") {
            check(&completed(snippet))
                .unwrap_or_else(|error| panic!("{}: {error}\n{snippet}", page.display()));
            count += 1;
        }
    }
    assert!(count > 0);
    check(DEPLOYED).unwrap_or_else(|error| panic!("deploy/gateway.yaml: {error}"));
    assert!(
        check(&completed("store: {kind: redis, urls: \"redis://a\"}\n")).is_err(),
        "this test can fail"
    );
    // A limit that the guide names must be a key of the shipped config.
    let whole = read(&root().join("conf/gateway.yaml"));
    for key in code(GUIDE)
        .iter()
        .filter_map(|code| code.strip_prefix("limits."))
    {
        let key = key.split([' ', '=']).next().unwrap();
        assert!(whole.contains(&format!("  {key}:")), "limits.{key}");
    }
    for name in between(COMPOSE, "${", "}").map(|name| name.split(':').next().unwrap()) {
        let elsewhere = ["GATEWAY_REDIS_PASSWORD"];
        assert!(
            DEPLOYED.contains(&format!("${{{name}")) || elsewhere.contains(&name),
            "{name} of compose.yaml"
        );
    }
    for port in ["8080", "8081", "9090"] {
        assert!(
            DEPLOYED.contains(&format!(":{port}")) && COMPOSE.contains(port),
            "{port}"
        );
    }
}

#[test]
fn every_metric_that_is_told_is_told_by_the_program() {
    let world = Edges::new();
    let account = world.account();
    let edge = &world.edges[0];
    for surface in BOTH {
        edge.works(surface, &account.key);
    }
    edge.signal("HUP");
    wait_until("the reload", SOON, || {
        edge.metric("gateway_config_reloads_total", &[]) > 0.0
    });
    let told = [edge.metrics(), world.sidecar.metrics()].concat();
    // A family is not shown before its first sample. For families that count failures, the test
    // searches the source instead.
    let source = read(&root().join("crates/base/src/telemetry/metrics.rs"));
    let named: BTreeSet<_> = files("docs", ".md")
        .iter()
        .flat_map(|page| code(&read(page)))
        .flat_map(|code| {
            code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .filter(|word| word.starts_with("gateway_"))
        .collect();
    assert!(named.len() > 8, "{named:?}");
    for name in &named {
        let shown = told.contains(&format!("# TYPE {name} "));
        let counts_failures = name.ends_with("_total") && source.contains(&format!("\"{name}\""));
        assert!(shown || counts_failures, "{name}");
    }
}

/// The guide's line that defines the Redis user, split into arguments for `ACL SETUSER`.
fn acl() -> Vec<&'static str> {
    let line = GUIDE
        .lines()
        .find_map(|line| line.strip_prefix("user "))
        .expect("the user's line");
    line.split_whitespace().collect()
}

#[test]
fn the_user_of_the_guide_may_do_what_the_gateway_does_and_nothing_else() {
    let redis = Server::start();
    let acl = acl();
    let password = acl.iter().find_map(|word| word.strip_prefix('>')).unwrap();
    assert_eq!(redis.cli(&[&["ACL", "SETUSER"], &acl[..]].concat()), "OK");
    let store = format!(
        "store: {{kind: redis, url: \"redis://{}:{password}@127.0.0.1:{}\"}}",
        acl[0], redis.port
    );
    let plan = |role| {
        Plan::default()
            .role(role)
            .edit("store: {kind: embedded}", &store)
    };
    let sidecar = plan("sidecar").start();
    let mut edge = plan("edge")
        .sidecar(sidecar.sidecar)
        .endpoints(&[sidecar.vendor.port])
        .start();
    let account: Account = sidecar.account();
    let credits = Request::get("/v1/credits").bearer(&account.key);
    wait_until("the edge to know the key", SOON, || {
        edge.ask(&credits).status == 200
    });
    for surface in BOTH {
        edge.works(surface, &account.key);
        for stream in [false, true] {
            let body = surface.body("input=10 output=5", stream, 100);
            let request = surface
                .request(&account.key, &body)
                .header("idempotency-key", &format!("key-{stream}"));
            assert_eq!(
                [edge.ask(&request).status, edge.ask(&request).status],
                [200, 200]
            );
        }
    }
    let limits = [
        "--spend-limit",
        "10/day",
        "--requests-per-minute",
        "1000",
        "--tokens-per-minute",
        "1000000",
    ];
    let limited = sidecar.json(
        &[
            &[
                "key",
                "create",
                "--account",
                &account.id,
                "--name",
                "limited",
            ],
            &limits[..],
        ]
        .concat(),
    );
    let limited = Chat.whole(limited["key"].as_str().unwrap(), "input=1 output=1");
    wait_until("the key with limits to work", SOON, || {
        edge.ask(&limited).status == 200
    });
    sidecar.json(&["account", "grant", &account.id, "5", "--ref", "more"]);
    sidecar.json(&[
        "ledger",
        "adjust",
        &account.id,
        "-1",
        "--ref",
        "less",
        "--reason",
        "a test",
    ]);
    let (doomed_id, doomed) = sidecar.key(&account.id, "doomed");
    let asks = |key: &str| edge.ask(&Chat.whole(key, "input=1 output=1")).status;
    wait_until("the edge to know the key", SOON, || asks(&doomed) == 200);
    sidecar.json(&["key", "revoke", &doomed_id]);
    wait_until("the key to be refused", SOON, || asks(&doomed) == 401);
    // Redis loses everything, and the gateway restores it.
    redis.cli(&["FLUSHALL"]);
    wait_until("the account to be restored", SOON, || {
        asks(&account.key) == 200
    });
    edge.kill();
    edge.start_gateway();
    let asks = |key: &str| edge.ask(&Chat.whole(key, "input=1 output=1")).status;
    wait_until("the edge to know the key again", SOON, || {
        asks(&account.key) == 200
    });
    let log = redis.cli(&["ACL", "LOG"]);
    assert_eq!(log, "", "it was refused something");
    let as_user = |command: &[&str]| {
        redis.cli(
            &[
                &["--user", acl[0], "--pass", password, "--no-auth-warning"],
                command,
            ]
            .concat(),
        )
    };
    for forbidden in [
        &["FLUSHALL"][..],
        &["GET", "other"],
        &["CONFIG", "SET", "maxmemory", "1"],
        &["KEYS", "*"],
    ] {
        assert!(as_user(forbidden).contains("NOPERM"), "{forbidden:?}");
    }
    assert_eq!(as_user(&["PING"]), "PONG");
}

fn systemd_analyze(arguments: &[&str], unit: &Path) -> (bool, String) {
    let output = Command::new("systemd-analyze")
        .args(arguments)
        .arg(unit)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

#[test]
fn units_are_understood_and_give_away_little() {
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_err()
    {
        test_world::skip("systemd-analyze is not installed (Debian package systemd)");
        return;
    }
    for path in files("deploy/systemd", ".service") {
        let text = read(&path);
        for needed in [
            "User=model-gateway",
            "NoNewPrivileges=yes",
            "ProtectSystem=strict",
            "StateDirectory=",
            "LimitCORE=0",
        ] {
            assert!(text.contains(needed), "{}: {needed}", path.display());
        }
        // The unit names the installed program. The test replaces that path with its own binary.
        let dir = tempfile::tempdir().unwrap();
        let unit = dir.path().join(path.file_name().unwrap());
        std::fs::write(
            &unit,
            text.replace("/usr/local/bin/model-gateway", binary()),
        )
        .unwrap();
        let (is_good, said) = systemd_analyze(&["verify"], &unit);
        assert!(
            is_good && !said.contains(path.file_name().unwrap().to_str().unwrap()),
            "{said}"
        );
        let threshold = format!("--threshold={EXPOSURE_MAX}");
        let (is_good, said) = systemd_analyze(&["security", "--offline=true", &threshold], &unit);
        assert!(is_good, "{said}");
    }
}

#[test]
fn each_container_of_the_compose_file_has_what_it_names() {
    let file = root().join("deploy/compose.yaml");
    for path in between(COMPOSE, "dockerfile: ", "}").chain(["deploy/gateway.yaml"]) {
        assert!(root().join(path).exists(), "{path}");
    }
    // The image's builder gets what the Dockerfile copies, and neither data nor keys.
    let admitted: BTreeSet<_> = DOCKERIGNORE
        .lines()
        .filter_map(|line| line.strip_prefix('!'))
        .collect();
    assert!(DOCKERIGNORE.lines().any(|line| line == "*") && !admitted.contains("data"));
    for copied in DOCKERFILE
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "))
        .filter(|line| !line.starts_with("--"))
    {
        let words: Vec<_> = copied.split_whitespace().collect();
        for source in &words[..words.len() - 1] {
            assert!(
                root().join(source).exists(),
                "the Dockerfile copies {source}"
            );
            let part = source.split('/').next().unwrap();
            assert!(admitted.contains(part), ".dockerignore leaves out {part}");
        }
    }
    assert!(DOCKERFILE.contains("USER 10001"), "not as root");
    // Each address in the file belongs to a service.
    let given: BTreeSet<_> = between(COMPOSE, "ipv4_address: ", "}").collect();
    for address in
        between(COMPOSE, "172.30.8.", "\"").filter_map(|rest| rest.split([':', '/']).next())
    {
        let address = format!("172.30.8.{}", address.split('}').next().unwrap());
        assert!(
            given.contains(&*address) || address == "172.30.8.0",
            "{address} of {given:?}"
        );
    }
    // Parses the file with a YAML reader that supports anchors and merges.
    let script = "import json,sys,yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)";
    let parsed = Command::new("python3")
        .args(["-c", script])
        .arg(&file)
        .output()
        .ok()
        .filter(|out| out.status.success());
    let Some(parsed) = parsed else { return };
    let parsed: Value = serde_json::from_slice(&parsed.stdout).unwrap();
    let services = parsed["services"].as_object().unwrap();
    for (name, service) in services.iter().filter(|(name, _)| *name != "redis") {
        assert!(
            service["read_only"] == true && service["cap_drop"][0] == "ALL",
            "{name}: {service}"
        );
        let volumes: Vec<_> = service["volumes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|volume| volume.as_str().unwrap())
            .collect();
        let own = format!("{name}:/var/lib/model-gateway");
        assert!(
            volumes.contains(&own.as_str()) && parsed["volumes"][name].is_object(),
            "{name}: {volumes:?}"
        );
    }
}

/// The shipped deployments are safe as they are: no sign-up, no unlimited trials, and no public
/// metrics.
#[test]
fn what_deploy_and_the_image_start_is_closed() {
    let (_, image) = DOCKERFILE
        .split_once("\nENV ")
        .expect("the image's environment");
    let environment = |name: &str| {
        between(image, &format!("{name}="), "\n")
            .next()
            .map(str::to_owned)
    };
    let of_image: Vec<_> = ["GATEWAY_SIGNUP", "GATEWAY_TRIAL_BUDGET"]
        .map(|name| {
            (
                name,
                environment(name)
                    .unwrap()
                    .split(' ')
                    .next()
                    .unwrap()
                    .to_owned(),
            )
        })
        .into();
    assert!(DOCKERFILE.contains("COPY conf/gateway.yaml /etc/model-gateway/gateway.yaml"));
    let mut paths = files("deploy", ".yaml");
    paths.retain(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        !name.starts_with("compose.")
    });
    assert!(paths.len() >= 2);
    paths.push(root().join("conf/gateway.yaml"));
    for path in paths {
        let mut command = Command::new(binary());
        command
            .env_clear()
            .env("ALPHA_API_KEY", "sk-a")
            .env("BETA_API_KEY", "sk-b")
            .args(["check", "--no-files", "-c"])
            .arg(&path);
        command
            .env("GATEWAY_REDIS", "redis://127.0.0.1:6379")
            .envs(of_image.clone());
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{}: {}",
            path.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        // Uses the image's value, or else the default in the file.
        let mut text = read(&path);
        for (name, value) in &of_image {
            let written = between(&text.clone(), &format!("${{{name}"), "}")
                .next()
                .map(str::to_owned);
            if let Some(default) = written {
                text = text.replace(&format!("${{{name}{default}}}"), value);
            }
        }
        let config: Value = serde_saphyr::from_str(&text).unwrap();
        let shown = path.display();
        assert!(
            ["closed", "invite"].contains(&config["signup"]["mode"].as_str().unwrap()),
            "{shown}"
        );
        let budget = config["signup"]["trial_budget_per_day"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap();
        assert!(budget > 0, "{shown}");
        let admin = config["listen"]["admin"].as_str().unwrap();
        assert!(
            admin.contains("127.0.0.1:") && !admin.contains("0.0.0.0"),
            "{shown}: {admin}"
        );
        if config["store"]["kind"] == "redis" {
            assert!(
                config["limits"]["lame_duck_seconds"].as_u64().unwrap() >= 5,
                "{shown}: edges have a balancer"
            );
        }
    }
    // The composition publishes only the edges' port.
    let published: Vec<_> = between(COMPOSE, "ports: [\"", "\"]").collect();
    assert!(
        !published.is_empty() && published.iter().all(|ports| ports.ends_with(":8080")),
        "{published:?}"
    );
    // No service of the composition changes the admin listener or enables sign-up.
    assert!(!COMPOSE.contains("GATEWAY_ADMIN") && !COMPOSE.contains("GATEWAY_SIGNUP"));
}

/// The Prometheus beside the composition reaches every gateway process over a network that nothing
/// else has, and opens no admin listener anywhere else.
#[test]
fn the_monitoring_of_the_composition_opens_the_admin_listeners_to_prometheus_alone() {
    let file: Value = serde_saphyr::from_str(MONITORING).unwrap();
    let services = file["services"].as_object().unwrap();
    let monitoring = &file["networks"]["monitoring"];
    assert_eq!(monitoring["internal"], true, "no way in or out");
    let subnet = monitoring["ipam"]["config"][0]["subnet"].as_str().unwrap();
    let subnet = subnet.strip_suffix("0/24").unwrap();
    assert!(!COMPOSE.contains(subnet), "a network of its own");
    let scrape: Value = serde_saphyr::from_str(SCRAPED).unwrap();
    let targets = &scrape["scrape_configs"][0]["static_configs"][0]["targets"];
    let targets: BTreeSet<_> = targets
        .as_array()
        .unwrap()
        .iter()
        .map(|target| target.as_str().unwrap().strip_suffix(":9090").unwrap())
        .collect();
    let mut moved = BTreeSet::new();
    for (name, service) in services {
        if name == "prometheus" {
            assert_eq!(service["ports"], serde_json::json!(["127.0.0.1:9099:9090"]));
            let volumes = &service["volumes"][0];
            assert_eq!(volumes, "./prometheus:/etc/prometheus:ro");
            let flags = service["command"].to_string();
            assert!(flags.contains("--config.file=/etc/prometheus/compose.yml"));
            continue;
        }
        assert!(COMPOSE.contains(&format!("\n  {name}:\n")), "{name}");
        assert!(service["ports"].is_null(), "{name} publishes nothing more");
        let address = service["networks"]["monitoring"]["ipv4_address"]
            .as_str()
            .unwrap();
        assert!(address.starts_with(subnet), "{name}: {address}");
        let environment = &service["environment"];
        assert_eq!(environment["GATEWAY_ADMIN"], format!("{address}:9090"));
        assert_eq!(environment["GATEWAY_ADMIN_IP"], address);
        moved.insert(name.as_str());
    }
    assert_eq!(moved, targets);
    let gateways = between(COMPOSE, "command: [\"", "\"]");
    let gateways = gateways.filter(|command| ["edge", "sidecar"].contains(command));
    assert_eq!(moved.len(), gateways.count(), "every process is scraped");
}
