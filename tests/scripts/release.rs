//! `scripts/build-release`: what is in a release, and that it is the same each time. The tests pack
//! the program of the other tests and must not build one.

use crate::{binary, find_tool, root, write_program};
use std::path::Path;
use std::process::{Command, Stdio};

/// A `scripts/build-release` that writes to `out`.
fn build_release(out: &Path) -> Command {
    let mut command = Command::new(root().join("scripts/build-release"));
    command
        .args(["--dirty", "--out", out.to_str().unwrap()])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null());
    command
}

/// Runs the command. Returns whether it succeeded, and what it wrote to stderr.
fn finish(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.success(), said)
}

/// A small program that runs the tests' program, which would take seconds to compress.
fn small_program(dir: &Path) -> String {
    let source = dir.join("small.c");
    let text = format!(
        "#include <unistd.h>\nint main(int count, char **words) {{ return execv({:?}, words); }}\n",
        binary()
    );
    std::fs::write(&source, text).unwrap();
    let small = dir.join("small").to_str().unwrap().to_owned();
    let mut compiler = Command::new("cc");
    let compiled = compiler.args(["-o", &small]).arg(&source).status();
    assert!(compiled.unwrap().success());
    small
}

/// Packs the program of the tests, which may need at most this glibc.
fn pack(program: &str, out: &Path, glibc: &str) -> (bool, String) {
    finish(build_release(out).args(["--program", program, "--glibc", glibc]))
}

/// Whether the sources are a clone. An archive has no history, from which a release takes its time:
/// the calling test is skipped there.
fn is_clone() -> bool {
    let commit = Command::new("git")
        .args(["rev-parse", "HEAD"])
        .current_dir(root())
        .output();
    let is_clone = commit.is_ok_and(|output| output.status.success());
    if !is_clone {
        test_world::skip("the sources are no clone of the repository");
    }
    is_clone
}

#[test]
fn a_release_is_complete_and_the_same_each_time() {
    if !is_clone() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let outs = [dir.path().join("one"), dir.path().join("two")];
    let program = small_program(dir.path());
    // The tests' program may be built on a newer system than a release.
    for out in &outs {
        let (is_success, said) = pack(&program, out, "99");
        assert!(is_success, "{said}");
    }
    let name = format!(
        "model-gateway-{}-linux-{}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH
    );
    let archives = outs
        .clone()
        .map(|out| std::fs::read(out.join(format!("{name}.tar.gz"))).unwrap());
    assert!(
        archives[0] == archives[1],
        "two archives of one commit differ"
    );
    let shell = |line: &str| {
        let output = Command::new("bash")
            .args(["-euc", line])
            .current_dir(&outs[0])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{line}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    };
    shell(&format!("sha256sum --check --strict {name}.tar.gz.sha256"));
    shell(&format!("tar xzf {name}.tar.gz"));
    for file in [
        "LICENSE",
        "LIBRARY-LICENSES.txt",
        "conf/gateway.yaml",
        "conf/gateway.schema.json",
        "completions/model-gateway.bash",
        "man/man1/model-gateway-ledger-verify.1",
        "deploy/one-machine.yaml",
        "deploy/systemd/environment.example",
        "deploy/systemd/model-gateway.service",
        "docs/operating.md",
        "docs/licenses.md",
    ] {
        assert!(
            outs[0].join(&name).join(file).metadata().unwrap().len() > 500,
            "{file}"
        );
    }
    let packed = std::fs::read(outs[0].join(&name).join("model-gateway")).unwrap();
    assert!(packed == std::fs::read(&program).unwrap());
    let version = shell(&format!("{name}/model-gateway --version"));
    assert_eq!(
        version,
        concat!("model-gateway ", env!("CARGO_PKG_VERSION"), "\n")
    );
    let owners = shell(&format!(
        "tar tvzf {name}.tar.gz | cut -d' ' -f1,2 | sort -u"
    ));
    assert_eq!(owners, "-rw-r--r-- 0/0\n-rwxr-xr-x 0/0\ndrwxr-xr-x 0/0\n");
    let bill = std::fs::read_to_string(outs[0].join(format!("{name}.cdx.json"))).unwrap();
    assert!(bill.contains("\"bomFormat\": \"CycloneDX\""));
}

#[test]
fn a_program_that_needs_a_newer_system_is_not_released() {
    if !is_clone() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (is_success, said) = pack(&binary(), &dir.path().join("out"), "2.1");
    assert!(
        !is_success && said.contains("it may need at most glibc 2.1"),
        "{said}"
    );
    assert!(!dir.path().join("out").exists());
}

/// The tools below stand in for the compiler's: they record how they are called.
#[test]
fn a_profile_is_trained_and_used() {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        return test_world::skip("the training of a profile needs two cores");
    }
    if !is_clone() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = small_program(dir.path());
    let add = |name: &str, script: &str| write_program(&dir.path().join(name), script);
    add(
        "rustc",
        "$RUSTC_OF_TESTS \"$@\" | sed 's/^LLVM version: .*/LLVM version: 77.1.2/'",
    );
    add(
        "cargo",
        "case $1 in
           build) printf '%s\n' \"$* $CARGO_ENCODED_RUSTFLAGS\" | tr '\\037' ' ' >> $LOG
             mkdir -p $CARGO_TARGET_DIR/dist; cp $BUILT $CARGO_TARGET_DIR/dist/model-gateway ;;
           bench) printf '{\"name\":\"%s\",\"executable\":\"%s\"}\n' $7 $TOOLS/$7 ;;
           --version) echo 'cargo 99.0.0' ;;
           *) exec $CARGO_OF_TESTS \"$@\" ;;
         esac",
    );
    add("bare", "");
    add(
        "speed",
        "for file in \"$@\"; do printf '%s ' ${file##*/}; done >> $LOG; echo >> $LOG
         touch ${LLVM_PROFILE_FILE//%/}",
    );
    add("llvm-profdata", "echo '  LLVM version 14.0.6'; exit 1");
    add(
        "llvm-profdata-77",
        "[ $1 != --version ] || { echo '  LLVM version 77.1.2'; exit; }
         ls ${@:4} && echo \"a profile\" > $3",
    );
    let log = dir.path().join("log");
    let target = dir.path().join("target");
    let release = |name: &str, arguments: &[&str]| {
        let _ = std::fs::remove_file(&log);
        let path = format!(
            "{}:{}",
            dir.path().display(),
            std::env::var("PATH").unwrap()
        );
        let mut command = build_release(&dir.path().join(name));
        command
            .args(["--glibc", "99"])
            .args(arguments)
            .env("PATH", path)
            .env("LOG", &log)
            .env("TOOLS", dir.path())
            .env("BUILT", &program)
            .env("CARGO_OF_TESTS", find_tool("cargo"))
            .env("RUSTC_OF_TESTS", find_tool("rustc"))
            .env("CARGO_TARGET_DIR", &target);
        let (is_success, said) = finish(&mut command);
        assert!(is_success, "{said}");
        let calls = std::fs::read_to_string(&log).unwrap();
        calls.lines().map(str::to_owned).collect::<Vec<_>>()
    };

    let calls = release("trained", &["--target-cpu", "x86-64-v3"]);
    assert_eq!(calls.len(), 3, "{calls:?}");
    for build in [&calls[0], &calls[2]] {
        assert!(
            build.starts_with("build --locked --profile dist --bin model-gateway "),
            "{build}"
        );
        let remapped = format!("--remap-path-prefix={}=/source ", root().display());
        assert!(build.contains(&remapped) && build.contains(" -Ctarget-cpu=x86-64-v3 "));
    }
    assert!(calls[0].contains(" -Cprofile-generate=") && calls[2].contains(" -Cprofile-use="));
    assert_eq!(calls[1], "model-gateway bare - 2 1 bench.json ");
    let name = format!(
        "model-gateway-{}-linux-x86-64-v3",
        env!("CARGO_PKG_VERSION")
    );
    let profile = dir.path().join(format!("trained/{name}.profdata"));
    assert_eq!(std::fs::read_to_string(&profile).unwrap(), "a profile\n");

    let given = release("given", &["--pgo-data", profile.to_str().unwrap()]);
    let used = format!(" -Cprofile-use={}", profile.display());
    assert!(given.len() == 1 && given[0].ends_with(&used), "{given:?}");
    let plain = release("plain", &["--no-pgo"]);
    assert!(
        plain.len() == 1 && !plain[0].contains("-Cprofile"),
        "{plain:?}"
    );
}
