//! `scripts/run`, used as on a machine that has little: which tools it needs, what it prints, and
//! how it fails. `scripts/release.rs` has the tests of `scripts/build-release`,
//! `scripts/benches.rs` those of the benchmarks of the ledger.
//!
//! Each test has a machine of its own: a folder of programs as its PATH, and a home. The tests must
//! not build the gateway: a stand-in for cargo hands over the program that the other tests use too.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::duplicate_mod
)]

mod benches;
mod release;

use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What every Debian has, and nothing else. In particular no Node.js, Python, compiler or apt.
const MINIMAL: &[&str] = &[
    "base64",
    "basename",
    "bash",
    "cat",
    "chmod",
    "cp",
    "cut",
    "date",
    "dirname",
    "env",
    "find",
    "flock",
    "grep",
    "head",
    "id",
    "ls",
    "mkdir",
    "mktemp",
    "mv",
    "rm",
    "sed",
    "setpriv",
    "setsid",
    "sha256sum",
    "sleep",
    "sort",
    "stty",
    "tail",
    "tar",
    "tr",
    "wc",
];
/// Time limit of a script, in which nothing is built.
const LIMIT: Duration = Duration::from_secs(120);

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The program that the tests of the gateway use.
fn binary() -> String {
    std::env::var("MODEL_GATEWAY_BIN")
        .unwrap_or_else(|_| env!("CARGO_BIN_EXE_model-gateway").to_owned())
}

fn find_tool(name: &str) -> PathBuf {
    let folders = std::env::var("PATH").unwrap();
    let mut paths = folders
        .split(':')
        .map(|folder| Path::new(folder).join(name));
    paths
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("this machine has no {name}"))
}

/// Writes a bash script as an executable file.
/// Removes `path` first: it may be a link to a program of this machine, which must stay as it is.
fn write_program(path: &Path, script: &str) {
    let _ = std::fs::remove_file(path);
    let text = format!("#!{}\n{script}\n", find_tool("bash").display());
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Waits until `value` returns something.
#[track_caller]
fn wait_for<T>(what: &str, mut value: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(began.elapsed() < LIMIT, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

struct Machine {
    dir: TempDir,
}

impl Machine {
    /// A machine with the programs of a minimal Debian and these.
    fn with(programs: &[&str]) -> Self {
        let machine = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        for folder in ["bin", "tmp"] {
            std::fs::create_dir(machine.path(folder)).unwrap();
        }
        for name in MINIMAL.iter().chain(programs) {
            symlink(find_tool(name), machine.path("bin").join(name)).unwrap();
        }
        machine
    }

    /// A machine on which `scripts/run` builds, with this shell script in the place of cargo's
    /// `build` command. The script finds the gateway in `$PROGRAM` and files of its own in `$HOME`.
    fn with_cargo(build: &str) -> Self {
        let machine = Self::with(&["curl", "make", "cc"]);
        machine.add("cmake", "exit 1");
        let cargo = format!(
            "[ $1 != --version ] || {{ echo 'cargo 99.0.0 (stand-in)'; exit; }}\n\
             printf '%s\\n' \"$*\" > $HOME/arguments\n{build}"
        );
        machine.add("cargo", &cargo);
        machine
    }

    fn add(&self, name: &str, script: &str) {
        write_program(&self.path("bin").join(name), script);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn command(&self, script: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(root().join(script));
        command
            .args(arguments)
            .env_clear()
            .env("PATH", self.path("bin"))
            .env("HOME", self.dir.path())
            .env("TMPDIR", self.path("tmp"))
            .env("CARGO_HOME", self.path("no-cargo"))
            .env("PROGRAM", binary())
            .env("NO_PROXY", "*")
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(self.path("stdout")).unwrap())
            .stderr(std::fs::File::create(self.path("stderr")).unwrap());
        command
    }

    /// Runs a script to its end. Returns whether it succeeded, and what it wrote to stderr.
    fn run(&self, command: &mut Command) -> (bool, String) {
        let status = self.end(&mut command.spawn().unwrap());
        (status.success(), self.read("stderr"))
    }

    /// Waits for the end of a script, which leaves no temporary files.
    fn end(&self, child: &mut Child) -> ExitStatus {
        let status = wait_for("the script's end", || child.try_wait().unwrap());
        let left = std::fs::read_dir(self.path("tmp")).unwrap().count();
        assert_eq!(left, 0, "temporary files");
        status
    }
}

/// Runs `scripts/run` on a machine, where it must fail. Returns what it wrote to stderr.
#[track_caller]
fn refused(machine: &Machine, command: &mut Command) -> String {
    let (is_success, said) = machine.run(command);
    assert!(!is_success, "{said}");
    said
}

/// Runs a line of bash after sourcing `scripts/lib.sh`, in the locale of a bare machine, and
/// returns what it prints.
fn in_library(line: &str) -> (bool, String) {
    let output = Command::new("bash")
        .env("LC_ALL", "C")
        .args([
            "-c",
            &format!("set -euo pipefail; . scripts/lib.sh; {line}"),
        ])
        .current_dir(root())
        .output()
        .unwrap();
    (
        output.status.success(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

/// The build folder of a clone of the library's scripts, after `prepare_target` there. Each clone
/// has a package of its own beside its dependencies.
fn prepared_target(home: &Path, clone: &str) -> PathBuf {
    let folder = home.join(clone);
    std::fs::create_dir_all(folder.join("crates/one")).unwrap();
    std::fs::create_dir_all(folder.join("scripts")).unwrap();
    std::fs::copy(root().join("scripts/lib.sh"), folder.join("scripts/lib.sh")).unwrap();
    for manifest in ["Cargo.toml", "crates/one/Cargo.toml"] {
        std::fs::write(folder.join(manifest), "[package]\nname = \"own-one\"\n").unwrap();
    }
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c"])
        .arg(". scripts/lib.sh; prepare_target; echo $CARGO_TARGET_DIR")
        .current_dir(folder)
        .env("HOME", home)
        .env_remove("XDG_CACHE_HOME")
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end())
}

/// The files in a build folder that cargo has written, sorted.
fn built_files(target: &Path) -> Vec<String> {
    let output = Command::new("find")
        .args(["debug", "-type", "f"])
        .current_dir(target)
        .output()
        .unwrap();
    let mut files: Vec<_> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    files.sort();
    files
}

/// What cargo takes for built of the clone itself would be another clone's program.
#[test]
fn a_clone_takes_over_dependencies_that_are_built_and_nothing_of_the_other_clone() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("a home");
    // What the words of a path with a space would name.
    let (word, bystander) = (dir.path().join("a"), "bystander");
    std::fs::create_dir_all(word.join(bystander)).unwrap();
    let first = prepared_target(&home, "first");
    for file in [
        ".fingerprint/serde-1/invoked.timestamp",
        ".fingerprint/own-one-2/invoked.timestamp",
        "deps/libserde-1.rlib",
        "deps/own_one-2",
        "incremental/own_one-3/state",
    ] {
        let path = first.join("debug").join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "built").unwrap();
    }
    let dependencies = [
        "debug/.fingerprint/serde-1/invoked.timestamp",
        "debug/deps/libserde-1.rlib",
    ];
    let second = prepared_target(&home, "second");
    assert_ne!(first, second);
    assert_eq!(built_files(&second), dependencies);
    assert_eq!(
        built_files(&first).len(),
        5,
        "the first clone keeps its own"
    );
    assert_eq!(prepared_target(&home, "first"), first);
    assert_eq!(built_files(&first).len(), 5);

    std::fs::remove_dir_all(home.join("first")).unwrap();
    let third = prepared_target(&home, "third");
    assert!(!first.exists(), "nobody builds there any more");
    let has = |file: &str| built_files(&third).contains(&file.to_owned());
    assert!(dependencies.iter().all(|file| has(file)));
    assert!(!has("debug/.fingerprint/own-one-2/invoked.timestamp"));
    assert!(word.join(bystander).exists());
}

#[test]
fn a_built_program_is_tried_with_nothing_but_curl() {
    let machine = Machine::with(&["curl"]);
    let (is_success, said) = machine.run(
        machine
            .command("scripts/run", &["--check"])
            .env("MODEL_GATEWAY_BIN", binary()),
    );
    assert!(is_success && said.ends_with("It works.\n"), "{said}");
}

#[test]
fn the_first_run_shows_how_far_the_build_is_and_the_second_has_nothing_to_build() {
    let machine = Machine::with_cargo(
        "printf '    Updating crates.io index\\n   Compiling redis v1.8.0\\n' >&2
         printf '    Building [====>      ] 212/439: redis, rusqlite     \\r' >&2
         until [ -e $HOME/go ]; do sleep 0.05; done
         mkdir -p $CARGO_TARGET_DIR/quick
         cp $PROGRAM $CARGO_TARGET_DIR/quick/model-gateway",
    );
    let mut first = machine
        .command("scripts/run", &["--check"])
        .spawn()
        .unwrap();
    wait_for("the progress", || {
        machine
            .read("stderr")
            .contains("212 of 439 built, now redis, rusqlite\n")
            .then_some(())
    });
    std::fs::write(machine.path("go"), "").unwrap();
    let status = machine.end(&mut first);
    let said = machine.read("stderr");
    assert!(status.success() && said.ends_with("It works.\n"), "{said}");
    assert!(
        said.contains("(quick profile)")
            && said.contains("some minutes")
            && said.contains("\nBuilt in "),
        "{said}"
    );
    let arguments = machine.read("arguments");
    assert_eq!(
        arguments,
        "build --locked --profile quick --bin model-gateway\n"
    );

    machine.add("cargo", "[ $1 = build ] || echo 'cargo 99.0.0'");
    let (is_success, said) = machine.run(&mut machine.command("scripts/run", &["--check"]));
    assert!(is_success && said.ends_with("It works.\n"), "{said}");
    assert!(
        !said.contains("some minutes")
            && !said.contains(" built, now ")
            && !said.contains("Built in"),
        "{said}"
    );
}

#[test]
fn a_build_that_fails_shows_why() {
    let machine = Machine::with_cargo(
        "printf '   Compiling redis v1.8.0\\n    Building [=>  ] 7/439: redis   \\r' >&2
         printf 'error: could not write: No space left on device (os error 28)\\n' >&2
         exit 101",
    );
    let said = refused(&machine, &mut machine.command("scripts/run", &["--check"]));
    assert!(
        said.contains("\nerror: could not write: No space left on device (os error 28)\n"),
        "{said}"
    );
    assert!(
        said.contains("\nThe disk of ") && !said.contains("Compiling"),
        "{said}"
    );
    assert!(
        said.ends_with("run: cargo could not build the gateway: it ended with status 101\n"),
        "{said}"
    );
}

#[test]
fn a_build_ends_with_the_script() {
    // The compiler that the stand-in starts must end too.
    let machine = Machine::with_cargo("sleep 1000 & echo $! > $HOME/compiler; wait");
    let mut child = machine
        .command("scripts/run", &["--check"])
        .spawn()
        .unwrap();
    let compiler = wait_for("the compiler", || {
        machine.read("compiler").trim().parse::<u32>().ok()
    });
    // A process that has ended stays as a zombie where nobody reaps it.
    let running = || {
        let status = std::fs::read_to_string(format!("/proc/{compiler}/status"));
        status.is_ok_and(|status| !status.contains("State:\tZ"))
    };
    assert!(running());
    let killed = Command::new("bash")
        .args(["-c", &format!("kill -TERM {}", child.id())])
        .status();
    assert!(killed.unwrap().success());
    assert_eq!(machine.end(&mut child).code(), Some(143));
    wait_for("the end of the compiler", || (!running()).then_some(()));
}

#[test]
fn tools_that_are_missing_are_named() {
    // Without a built program, the script needs a compiler, and here is no apt to install it.
    let machine = Machine::with(&["curl", "make"]);
    let said = refused(&machine, &mut machine.command("scripts/run", &["--check"]));
    assert_eq!(said, "run: please install: gcc libc6-dev cmake\n");

    machine.add("cc", "");
    machine.add("cmake", "");
    let said = refused(&machine, &mut machine.command("scripts/run", &["--check"]));
    assert_eq!(said, "run: Rust is missing: see https://rustup.rs\n");

    machine.add("cargo", "echo 'cargo 1.63.0'");
    let said = refused(&machine, &mut machine.command("scripts/run", &["--check"]));
    assert!(
        said.contains("or newer is needed, and this is Rust 1.63.0"),
        "{said}"
    );

    let machine = Machine::with(&[]);
    let said = refused(
        &machine,
        machine
            .command("scripts/run", &["--check"])
            .env("MODEL_GATEWAY_BIN", binary()),
    );
    assert_eq!(said, "run: please install: curl\n");

    // With apt, but without the right to use it.
    machine.add("apt-get", "touch $HOME/installed");
    machine.add("id", "echo 1000");
    let said = refused(
        &machine,
        machine
            .command("scripts/run", &["--check"])
            .env("MODEL_GATEWAY_BIN", binary()),
    );
    assert_eq!(said, "run: please install as root: apt-get install curl\n");
    assert!(!machine.path("installed").exists());
    let own = std::fs::read(find_tool("id")).unwrap();
    assert!(
        !own.starts_with(b"#!"),
        "the machine that tests has its own"
    );
}

#[test]
fn a_program_that_cannot_run_is_refused() {
    let machine = Machine::with(&["curl"]);
    std::fs::write(machine.path("text"), "no program").unwrap();
    machine.add("broken", "echo 'version GLIBC_9.9 not found' >&2; exit 1");
    let folder = machine.dir.path().to_str().unwrap();
    for (path, why) in [
        ("missing", format!("names no program: {folder}/missing")),
        ("bin", format!("names no program: {folder}/bin")),
        ("text", format!("names no program: {folder}/text")),
        (
            "bin/broken",
            "does not run on this machine: version GLIBC_9.9 not found".to_owned(),
        ),
    ] {
        // A relative path is relative to the folder where the script is called.
        let said = refused(
            &machine,
            machine
                .command("scripts/run", &["--check"])
                .env("MODEL_GATEWAY_BIN", path),
        );
        assert_eq!(said, format!("run: MODEL_GATEWAY_BIN {why}\n"));
    }
}

#[test]
fn a_port_that_is_taken_is_named_before_anything_starts() {
    let machine = Machine::with(&["curl"]);
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = stranger.local_addr().unwrap().port();
    for first in [taken, taken - 3] {
        let said = refused(
            &machine,
            machine
                .command("scripts/run", &["--port", &first.to_string()])
                .env("MODEL_GATEWAY_BIN", binary()),
        );
        assert!(
            said.contains(&format!("another process listens on port {taken};")),
            "{said}"
        );
        assert!(said.contains("--port N chooses other ports"), "{said}");
    }
    assert_eq!(machine.read("stdout"), "");
    for wrong in ["0", "65525", "eighty"] {
        let said = refused(
            &machine,
            &mut machine.command("scripts/run", &["--port", wrong]),
        );
        assert!(
            said.contains("--port needs a number from 1 to 65524"),
            "{said}"
        );
    }
}

#[test]
fn fields_of_answers_are_read_without_node() {
    let field = |name: &str, text: &str| in_library(&format!("json_field {name} <<<'{text}'"));
    for (name, text, value) in [
        ("key", r#"{"key":"gw-sk-1","name":"key"}"#, "gw-sk-1"),
        ("key", "{\n  \"name\": \"key\",\n  \"key\" : \"b\"\n}", "b"),
        ("available", r#"{"available":"-0.5"}"#, "-0.5"),
        ("count", r#"{"a":{"b":[1,2]},"count":-12.5e3}"#, "-12.5e3"),
        ("on", r#"{"on":true}"#, "true"),
        ("key", r#"{"name":"say \"key\":\"no\"","key":"yes"}"#, "yes"),
        (
            "key",
            r#"{"key":"a \"quoted\" back\\slash \\\" \u00e9"}"#,
            r#"a "quoted" back\slash \" é"#,
        ),
        ("key", r#"{"key":""}"#, ""),
    ] {
        assert_eq!(field(name, text), (true, format!("{value}\n")), "{text}");
    }
    for text in [
        "",
        "{}",
        r#"{"keys":"a"}"#,
        r#"{"name":"key"}"#,
        r#"{"key":{"a":1}}"#,
    ] {
        assert_eq!(field("key", text), (false, String::new()), "{text}");
    }
}

#[test]
fn chosen_ports_are_free_and_different() {
    let (is_success, printed) = in_library("free_ports 40");
    let ports: Vec<u16> = printed
        .split_whitespace()
        .map(|port| port.parse().unwrap())
        .collect();
    assert!(is_success && ports.len() == 40, "{printed}");
    // All are bound at once, so none is printed twice.
    let _listeners: Vec<_> = ports
        .iter()
        .map(|port| TcpListener::bind(("127.0.0.1", *port)).unwrap())
        .collect();
    let taken = in_library(&format!("port_is_taken {}", ports[0]));
    assert!(taken.0 && !in_library("port_is_taken 1").0);
}
