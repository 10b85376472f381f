//! The operator's pages, used as an operator uses them: their commands run unchanged, and the
//! output that they announce exists.

use crate::world::{
    SOON, Simulator, World, binary, command_on, free_port, trust, vendor_url, wait_until,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

const ONE: &str = include_str!("../../docs/operating.md");
const MANY: &str = include_str!("../../docs/many-edges.md");
const ALERTS: &str = include_str!("../../deploy/prometheus/alerts.yaml");
/// The time limit for all commands of a page together, in seconds.
const LIMIT: &str = "300";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The page's `sh` blocks, joined in order.
fn script(page: &str) -> String {
    let blocks = page
        .split("```sh\n")
        .skip(1)
        .map(|rest| rest.split_once("```").unwrap().0);
    blocks.collect::<Vec<_>>().join("\n")
}

/// Runs a page's commands in a folder with the repository's files that the page needs. Returns
/// whether they succeeded, and their output.
fn run(page: &str, vendor: &Simulator) -> (bool, String) {
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(binary(), bin.join("model-gateway")).unwrap();
    std::os::unix::fs::symlink(root().join("deploy"), dir.path().join("deploy")).unwrap();
    // No process that the script starts outlives it.
    let text = format!(
        "set -euo pipefail\ntrap 'kill -9 $(jobs -p) 2>/dev/null || true' EXIT\n{}",
        script(page)
    );
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=5", LIMIT, "bash", "-c", &text])
        .current_dir(dir.path())
        .stdin(Stdio::null());
    command.env("PATH", path).env("NO_PROXY", "*");
    for name in [
        "GATEWAY_CONFIG",
        "GATEWAY_DATA",
        "GATEWAY_BASE_URL",
        "ALPHA_API_KEY",
        "BETA_API_KEY",
        "RUST_LOG",
    ] {
        command.env_remove(name);
    }
    for name in [
        "GATEWAY_LISTEN",
        "GATEWAY_SIDECAR",
        "GATEWAY_ADMIN",
        "SIDECAR_ADMIN",
        "EDGE_ADMIN",
    ] {
        command.env(name, format!("127.0.0.1:{}", free_port()));
    }
    command.env("REDIS_PORT", free_port().to_string());
    for name in ["ALPHA_URL", "BETA_URL"] {
        command.env(name, vendor_url(vendor.port));
    }
    command.envs(trust());
    let output = command.output().unwrap();
    let mut said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "log") {
            said += &format!(
                "\n--- {}\n{}",
                path.display(),
                std::fs::read_to_string(&path).unwrap()
            );
        }
    }
    (output.status.success(), said)
}

/// The keys with which the gateway called the vendor, in order.
fn keys(vendor: &Simulator) -> Vec<String> {
    let requests = vendor.requests();
    let key = |request: &serde_json::Value| {
        let headers = request["headers"].as_array().unwrap();
        let header = headers
            .iter()
            .find(|header| header[0] == "authorization")
            .unwrap();
        header[1].as_str().unwrap().to_owned()
    };
    requests.as_array().unwrap().iter().map(key).collect()
}

#[test]
fn the_commands_for_one_machine_work_as_they_stand_there() {
    let vendor = Simulator::start(None);
    let (ended_well, said) = run(ONE, &vendor);
    assert!(ended_well, "{said}");
    assert_eq!(
        keys(&vendor),
        ["Bearer sk-of-the-vendor", "Bearer sk-of-the-vendor-anew"]
    );
    // Three checks: on the running gateway, on the restored copy, and at the end.
    assert_eq!(said.matches("0 findings").count(), 3, "{said}");
    assert_eq!(said.matches(" 2 debits").count(), 3, "{said}");
    for expected in [
        "handing over to a successor",
        "reloaded ",
        "ada@example.com",
        "copied accounts, ledger",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    // Pingora's successor asks for the sockets shortly before the old process offers them.
    let errors = said
        .lines()
        .filter(|line| line.contains("ERROR") && !line.contains("No incoming socket transfer"));
    assert!(!said.contains("panicked") && errors.count() == 0, "{said}");
}

#[test]
fn the_commands_for_many_edges_work_as_they_stand_there() {
    let vendor = Simulator::start(None);
    let (ended_well, said) = run(MANY, &vendor);
    assert!(ended_well, "{said}");
    assert_eq!(keys(&vendor), ["Bearer sk-of-the-vendor"; 2]);
    assert!(
        said.contains("0 findings") && said.contains(" 2 debits"),
        "{said}"
    );
    assert!(!said.contains("panicked"), "{said}");
}

/// A control for `run`: it reports a failed command.
#[test]
fn a_page_with_a_command_that_fails_is_told() {
    let vendor = Simulator::start(None);
    let page = "```sh\nmodel-gateway account show nobody@example.com\n```\n```sh\necho never\n```";
    let (ended_well, said) = run(page, &vendor);
    assert!(!ended_well && !said.contains("never"), "{said}");
}

/// Appends the source code and the tables of the whole folder.
fn source(folder: &Path, into: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            source(&path, into);
        } else if path
            .extension()
            .is_some_and(|end| end == "rs" || end == "txt")
        {
            into.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// The rows of the table under a heading, without the table's head.
fn rows<'a>(page: &'a str, heading: &str) -> Vec<&'a str> {
    let section = page
        .split_once(heading)
        .unwrap_or_else(|| panic!("no {heading:?}"))
        .1;
    let section = section.split("\n## ").next().unwrap();
    section
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(1)
        .collect()
}

#[test]
fn what_the_incident_table_says_that_one_sees_exists() {
    let rows = rows(ONE, "## What you see, what it means, what to do");
    assert!(rows.len() >= 20, "{}", rows.len());
    let mut program = String::new();
    source(&root().join("src"), &mut program);
    source(&root().join("crates"), &mut program);
    for row in &rows {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").collect();
        assert_eq!(cells.len(), 3, "{row}");
        let (seen, quoted) = (cells[0], cells[0].split('"').skip(1).step_by(2));
        for text in quoted.filter(|_| !seen.contains("from one address")) {
            assert!(
                program.contains(text),
                "the program never says {text:?}: {row}"
            );
        }
        for reason in seen
            .split("reason=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap())
        {
            // In the source code, or in a column of a table.
            let forms = [format!("\"{reason}\""), format!(" {reason} ")];
            assert!(
                forms.iter().any(|form| program.contains(form)),
                "no reason {reason}"
            );
        }
    }
    let seen = rows.join("\n");
    let alerts = ALERTS
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let missing: Vec<_> = alerts.filter(|alert| !seen.contains(*alert)).collect();
    assert!(missing.is_empty(), "the table has no row for {missing:?}");
    let code = |row: &&str| row.split('|').nth(1).unwrap().trim().to_owned();
    let codes: BTreeSet<_> = self::rows(ONE, "## Exit codes").iter().map(code).collect();
    assert_eq!(
        codes,
        ["0", "1", "2", "64", "130, 137, 143"]
            .map(str::to_owned)
            .into()
    );
}

#[test]
fn every_exit_code_is_the_one_that_is_told() {
    let mut world = World::new();
    let code = |config: &Path, args: &[&str]| {
        let output = command_on(config, args);
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    assert_eq!(code(&world.config, &["check"]).0, Some(0));
    assert_eq!(code(&world.config, &["ledger", "verify"]).0, Some(0));
    assert_eq!(
        code(&world.config, &["account", "show", "nobody@example.com"]).0,
        Some(1)
    );
    assert_eq!(code(&world.config, &["no-such-command"]).0, Some(2));
    assert_eq!(
        code(
            &world.config,
            &["account", "grant", "a@b.c", "many", "--ref", "x"]
        )
        .0,
        Some(2)
    );
    let (status, said) = code(&world.config, &["run"]);
    assert!(
        status == Some(1) && said.contains("is served by process"),
        "{status:?} {said}"
    );
    let (status, said) = code(&world.config, &["edge"]);
    assert!(
        status == Some(1) && said.contains("store.kind"),
        "{status:?} {said}"
    );
    // The same addresses with another data folder. The process must exit, so nobody can take it for
    // ready.
    let other = world.dir.path().join("other.yaml");
    let shipped = std::fs::read_to_string(&world.config).unwrap();
    let data = format!("{:?}", world.data_dir().display().to_string());
    let moved = shipped.replace(
        &data,
        &format!("{:?}", world.dir.path().join("other").display().to_string()),
    );
    assert_ne!(moved, shipped);
    std::fs::write(&other, moved).unwrap();
    let output = Command::new("timeout")
        .args(["60", binary(), "run", "-c"])
        .arg(&other)
        .output()
        .unwrap();
    let (status, said) = (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        status == Some(1) && said.contains("listen on listen."),
        "{status:?} {said}"
    );
    std::fs::write(&other, "colour: blue\n").unwrap();
    assert_eq!(code(&other, &["run"]).0, Some(64));
    // A process that stops while it waits for its predecessor has served nothing.
    let mut waiting = Command::new(binary());
    let log = std::fs::File::create(world.dir.path().join("waiting.log")).unwrap();
    let mut waiting = waiting
        .args(["run", "--upgrade", "-c"])
        .arg(&world.config)
        .stderr(log)
        .spawn()
        .unwrap();
    let said = || std::fs::read_to_string(world.dir.path().join("waiting.log")).unwrap();
    wait_until("the successor to wait", SOON, || {
        said().contains("waiting for the running")
    });
    assert!(
        Command::new("kill")
            .arg(waiting.id().to_string())
            .status()
            .unwrap()
            .success()
    );
    let ended = waiting.wait().unwrap();
    assert_eq!(
        (
            ended.code(),
            std::os::unix::process::ExitStatusExt::signal(&ended)
        ),
        (None, Some(15))
    );
    world.signal("INT");
    assert_eq!(world.wait_end(SOON), 0);
    world.start_gateway();
}
