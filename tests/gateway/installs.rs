//! The documented installations, from nothing to the first answer: the `console` blocks of
//! docs/operating.md run unchanged as root on a machine that never had a gateway.
//!
//! `tests/installs/machine` makes that machine of namespaces, with users, folders and ports of its
//! own. Its limits: neither systemd nor a container engine runs there. Stand-ins read the units and
//! the Dockerfile, and apply users, environment, folders, capabilities and commands. They do not
//! apply systemd's sandbox, which `operators_guide.rs` has `systemd-analyze` check, do not build
//! the program in an image, and run no compose file. Vendors are simulated. Where namespaces are
//! not allowed, the tests that need the machine say so on stderr and pass.

use crate::world::{binary, command_on};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

const GUIDE: &str = include_str!("../../docs/operating.md");
const UNITS: [&str; 3] = [
    include_str!("../../deploy/systemd/model-gateway.service"),
    include_str!("../../deploy/systemd/model-gateway-edge.service"),
    include_str!("../../deploy/systemd/model-gateway-sidecar.service"),
];
const ENVIRONMENT: &str = include_str!("../../deploy/systemd/environment.example");
const CONFIGS: [&str; 2] = [
    include_str!("../../deploy/one-machine.yaml"),
    include_str!("../../deploy/gateway.yaml"),
];
/// The time limit for all commands of an installation, in seconds.
const LIMIT: &str = "300";
const PASSWORD: &str = "a long password";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Installation {
    Systemd,
    Container,
    Compose,
}

impl Installation {
    /// The installation that a block is for; `None` if it is for each of them.
    fn of_block(block: &str) -> Option<Self> {
        if block.contains("docker compose") {
            Some(Self::Compose)
        } else if block.contains("docker") {
            Some(Self::Container)
        } else if block.contains("systemctl") || block.contains("sudo") {
            Some(Self::Systemd)
        } else {
            None
        }
    }

    /// Its blocks in the guide, in order.
    fn blocks(self) -> Vec<&'static str> {
        let sections = ["\n## Install\n", "\n## Accounts and keys\n"];
        let blocks = sections.into_iter().flat_map(|heading| {
            let (_, section) = GUIDE.split_once(heading).expect(heading);
            let section = section.split("\n## ").next().unwrap();
            let blocks = section.split("```console\n").skip(1);
            blocks.map(|rest| rest.split_once("```").unwrap().0)
        });
        blocks
            .filter(|block| Self::of_block(block).is_none_or(|is_for| is_for == self))
            .collect()
    }

    /// The commands of its blocks, as the guide has them.
    fn commands(self) -> String {
        self.blocks().join("\n")
    }
}

/// Namespaces of a machine. With `--kill-child`, no process of it outlives the test.
const UNSHARE: [&str; 7] = [
    "unshare",
    "--mount",
    "--net",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
];

/// Whether this process may make a machine. A container's root may not.
fn can_make_machines() -> bool {
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let probe = || {
        let status = Command::new(UNSHARE[0])
            .args(&UNSHARE[1..])
            .arg("true")
            .status();
        status.is_ok_and(|status| status.success())
    };
    let can = is_root && probe();
    if !can {
        test_world::skip("making a machine needs root and namespaces");
    }
    can
}

/// Runs commands on a new machine. Returns their exit status and their output.
fn run_on_machine(commands: &str) -> (Option<i32>, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().unwrap();
    let password = dir.path().join("password");
    std::fs::write(&password, format!("{PASSWORD}\n")).unwrap();
    let program = std::fs::canonicalize(binary()).unwrap();
    let output = Command::new("timeout")
        .args(["--kill-after=5", LIMIT])
        .args(UNSHARE)
        .arg(root.join("tests/installs/machine"))
        .args([dir.path(), &program, root])
        .arg(commands)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", std::env::var_os("HOME").unwrap_or_default())
        .stdin(Stdio::from(std::fs::File::open(&password).unwrap()))
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// Whether a line has all parts of `pattern`, in which `…` stands for any text.
fn matches(line: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('…');
    let first = parts.next().unwrap();
    let Some(mut rest) = line.strip_prefix(first) else {
        return false;
    };
    if first == pattern {
        return rest.is_empty();
    }
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.is_empty() || pattern.ends_with('…')
}

/// Asserts that the output has the lines that the commands announce in comments, in that order.
fn assert_announced(commands: &str, output: &str) {
    let mut lines = output.lines();
    let announced = commands.lines().filter_map(|line| line.strip_prefix("# "));
    for pattern in announced {
        assert!(
            lines.any(|line| matches(line, pattern)),
            "the guide announces {pattern:?}: {output}"
        );
    }
}

/// Follows an installation's blocks, then signs in, checks the ledger and stops the service.
fn follow(installation: Installation, prepare: &str, as_service: &str, stop: &str) -> String {
    let commands = installation.commands();
    let whole = format!(
        r#"{prepare}
{commands}
printf '\nthe key: %s\n' "${{KEY:0:3}}"
curl --silent --output /dev/null --write-out 'sign-in page: %{{http_code}}\n' \
  http://127.0.0.1:8080/dashboard/sign-in
curl --silent --output /dev/null --write-out 'signed in: %{{http_code}} %{{redirect_url}}\n' \
  --data-urlencode email=ops@example.com --data-urlencode 'password={PASSWORD}' \
  http://127.0.0.1:8080/dashboard/sign-in
curl --silent http://127.0.0.1:9100/_sim/requests | grep --only-matching sk-of-the-vendor
until {as_service} model-gateway ledger verify | grep ' 1 debits'; do sleep 0.1; done
{stop}
"#
    );
    let (status, output) = run_on_machine(&whole);
    assert_eq!(status, Some(0), "{output}");
    assert_announced(&commands, &output);
    for expected in [
        "sign-in page: 200",
        "signed in: 303",
        "sk-of-the-vendor",
        "0 findings",
        "ended with status 0",
    ] {
        assert!(output.contains(expected), "{expected}: {output}");
    }
    assert!(!output.contains("panicked"), "{output}");
    output
}

#[test]
fn the_documented_steps_lead_with_systemd_to_a_first_answer() {
    if !can_make_machines() {
        return;
    }
    let output = follow(
        Installation::Systemd,
        "cd \"$INSTALLS_STATE/../downloads\"",
        "sudo -u model-gateway",
        "stat --format '%U %a %n' /etc/model-gateway/environment /var/lib/model-gateway/app.db\n\
         systemctl stop model-gateway",
    );
    for expected in [
        "root 600 /etc/model-gateway/environment",
        "model-gateway 600 /var/lib/model-gateway/app.db",
        "opened the ledger in /var/lib/model-gateway",
    ] {
        assert!(output.contains(expected), "{expected}: {output}");
    }
}

#[test]
fn the_documented_steps_lead_in_a_container_to_a_first_answer() {
    if !can_make_machines() {
        return;
    }
    let root = env!("CARGO_MANIFEST_DIR");
    follow(
        Installation::Container,
        &format!("cd '{root}'\nexport ALPHA_API_KEY=sk-of-the-vendor"),
        "docker exec gateway",
        "docker stop gateway",
    );
}

/// The commands of the guide up to the one with this text, without it.
fn commands_before(installation: Installation, text: &str) -> String {
    let commands = installation.commands();
    let lines: Vec<_> = commands
        .lines()
        .take_while(|line| !line.contains(text))
        .collect();
    assert!(lines.len() < commands.lines().count(), "no {text:?}");
    lines.join("\n")
}

#[test]
fn a_service_without_keys_or_with_a_foreign_folder_says_so_or_repairs_it() {
    if !can_make_machines() {
        return;
    }
    let before_editing = commands_before(Installation::Systemd, "EDITOR");
    let (status, output) = run_on_machine(&format!(
        r#"cd "$INSTALLS_STATE/../downloads"
{before_editing}
install -m 644 deploy/systemd/model-gateway.service /etc/systemd/system/
if systemctl enable --now model-gateway; then exit 9; fi
rm /etc/model-gateway/environment
if systemctl start model-gateway; then exit 9; fi
echo ALPHA_API_KEY=sk-of-the-vendor >/etc/model-gateway/environment
chown -R root:root /var/lib/model-gateway
systemctl start model-gateway
curl --fail --silent --retry 30 --retry-delay 1 --retry-connrefused http://127.0.0.1:9090/readyz
stat --format '%U %a' /var/lib/model-gateway
systemctl stop model-gateway
"#
    ));
    assert_eq!(status, Some(0), "{output}");
    let fault = "every vendor's api_key is empty";
    assert_eq!(output.matches(fault).count(), 2, "{output}");
    assert!(GUIDE.contains(fault), "the guide explains it");
    for expected in ["control process exited", "model-gateway 700", "status 0"] {
        assert!(output.contains(expected), "{expected}: {output}");
    }
}

#[test]
fn commands_find_the_installed_config_and_say_when_there_are_two() {
    if !can_make_machines() {
        return;
    }
    let installed = commands_before(Installation::Systemd, "daemon-reload");
    let (status, output) = run_on_machine(&format!(
        r#"cd "$INSTALLS_STATE/../downloads"
{installed}
export ALPHA_API_KEY=sk-of-the-vendor
echo 'in the archive:'
model-gateway check
model-gateway account list 2>&1
echo 'elsewhere:'
cd /
model-gateway check
GATEWAY_CONFIG=/etc/model-gateway/other.yaml model-gateway check 2>&1 || echo "status $?"
"#
    ));
    assert_eq!(status, Some(0), "{output}");
    let (archive, elsewhere) = output.split_once("elsewhere:").unwrap();
    let warning = "using conf/gateway.yaml of this folder, not /etc/model-gateway/gateway.yaml";
    assert!(archive.contains("conf/gateway.yaml: no faults"), "{output}");
    assert_eq!(output.matches(warning).count(), 1, "{output}");
    assert!(
        elsewhere.contains("/etc/model-gateway/gateway.yaml: no faults"),
        "{output}"
    );
    assert!(
        elsewhere.contains("the file /etc/model-gateway/other.yaml does not exist"),
        "{output}"
    );
    assert!(elsewhere.contains("status 64"), "{output}");
}

#[test]
fn a_command_that_finds_no_config_names_every_place_where_it_looked() {
    if Path::new("/etc/model-gateway/gateway.yaml").exists() {
        eprintln!("skipped: a gateway is installed here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for command in [&["check"][..], &["account", "list"], &["run"]] {
        let output = Command::new(binary())
            .args(command)
            .current_dir(dir.path())
            .env_remove("GATEWAY_CONFIG")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{error}");
        for place in [
            "-c",
            "GATEWAY_CONFIG",
            "conf/gateway.yaml",
            "/etc/model-gateway/gateway.yaml",
        ] {
            assert!(error.contains(place), "{place}: {error}");
        }
    }
    // A file that is named is the only place.
    let named = command_on(&dir.path().join("none.yaml"), &["check"]);
    let error = String::from_utf8_lossy(&named.stderr);
    assert_eq!(named.status.code(), Some(64), "{error}");
    assert!(
        error.contains("none.yaml does not exist") && !error.contains("GATEWAY_CONFIG"),
        "{error}"
    );
}

#[test]
fn the_units_and_their_environment_fit_the_shipped_configs() {
    for unit in UNITS {
        let config = "Environment=GATEWAY_CONFIG=/etc/model-gateway/gateway.yaml";
        assert!(unit.lines().any(|line| line == config), "{unit}");
        assert!(!unit.contains(" -c "), "{unit}");
    }
    let names = ENVIRONMENT.lines().filter_map(|line| {
        let (name, _) = line.trim_start_matches('#').split_once('=')?;
        (!name.contains(' ')).then_some(name)
    });
    let names: Vec<_> = names.collect();
    assert!(names.len() >= 6, "{names:?}");
    for name in names {
        let reads = |config: &&str| config.contains(&format!("${{{name}"));
        assert!(CONFIGS.iter().any(reads), "{name}");
    }
    // The operator has to fill in a key, and nothing else.
    let set: Vec<_> = ENVIRONMENT
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    assert_eq!(set, ["ALPHA_API_KEY=", "BETA_API_KEY="]);
}

/// Not run: this machine has neither the images nor an engine.
#[test]
fn the_command_for_compose_is_the_one_for_the_other_installations() {
    let command = |installation: Installation| {
        let commands = installation.commands();
        let line = commands
            .lines()
            .find(|line| line.contains("--admin"))
            .expect("an administrator");
        line.split_once("model-gateway account ")
            .expect(line)
            .1
            .to_owned()
    };
    let expected = command(Installation::Systemd);
    assert_eq!(command(Installation::Container), expected);
    assert_eq!(command(Installation::Compose), expected);
}

#[test]
fn an_announced_line_that_does_not_come_is_found() {
    assert!(matches("account acc_1: a@b.c", "account …: a@b.c"));
    assert!(!matches("account acc_1: a@b.c.d", "account …: a@b.c"));
    assert!(matches("{\"id\":1,\"type\":2}", "{…\"type\":…"));
    assert!(matches("ready", "ready") && !matches("ready?", "ready"));
}

/// A control for `run_on_machine`: a failed command ends it, and nothing reaches this machine.
#[test]
fn a_command_that_fails_ends_the_installation() {
    if !can_make_machines() {
        return;
    }
    let (status, output) =
        run_on_machine("mkdir /etc/model-gateway /var/lib/new\ntrue\nfalse\necho never");
    assert_eq!(status, Some(1), "{output}");
    assert!(!output.contains("never"), "{output}");
    assert!(!Path::new("/var/lib/new").exists());
}
