//! The command line for scripts and shells: failures as JSON, completions and manual pages.

use crate::config_file::shipped;
use crate::world::{binary, command_on};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(binary()).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The document on stdout, which is all that stdout has.
#[track_caller]
fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", text(&output.stdout), text(&output.stderr)))
}

#[test]
fn a_failure_is_json_if_json_is_requested_and_its_text_and_code_stay() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.yaml");
    let faulty = shipped().replace("base_url: \"http://", "base_url: \"ftp://") + "colour: blue\n";
    let line = |word: &str| faulty.lines().position(|line| line.contains(word)).unwrap() + 1;
    std::fs::write(&file, &faulty).unwrap();
    let output = command_on(&file, &["check", "--json"]);
    assert_eq!(output.status.code(), Some(64));
    let error = &document(&output)["error"];
    assert_eq!(error["code"], "config_faults", "{error}");
    assert_eq!(error["message"], format!("{}: 2 faults", file.display()));
    let expected = [
        ("base_url", "ftp://", "must begin with http:// or https://"),
        ("colour", "colour", "unknown key"),
    ];
    for (fault, (key, word, message)) in error["faults"].as_array().unwrap().iter().zip(expected) {
        assert_eq!(
            (&fault["file"], &fault["line"], &fault["key"]),
            (&json!(file), &json!(line(word)), &json!(key))
        );
        assert!(fault["message"].as_str().unwrap().contains(message));
    }
    let plain = command_on(&file, &["check"]);
    assert_eq!((plain.status.code(), plain.stdout.len()), (Some(64), 0));
    assert_eq!(text(&plain.stderr), text(&output.stderr));

    let valid = shipped().replace("data_dir: \"data\"", &format!("data_dir: {:?}", dir.path()));
    std::fs::write(&file, valid).unwrap();
    let output = command_on(&file, &["--json", "account", "show", "nobody@example.com"]);
    assert_eq!(output.status.code(), Some(1));
    let error = &document(&output)["error"];
    let message = "no account has the id or e-mail \"nobody@example.com\"";
    let expected = json!({"code": "failed", "message": message, "faults": []});
    assert_eq!(error, &expected);
    assert!(text(&output.stderr).contains(message));

    let missing = command_on(
        Path::new("/nowhere/gateway.yaml"),
        &["account", "list", "--json"],
    );
    assert_eq!(missing.status.code(), Some(64));
    assert_eq!(document(&missing)["error"]["faults"][0]["line"], 0);
}

#[test]
fn wrong_usage_is_json_if_json_is_requested() {
    let output = run(&["--json", "ledger", "verfy"]);
    assert_eq!(output.status.code(), Some(2));
    let error = &document(&output)["error"];
    assert_eq!(error["code"], "usage", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("'verfy'") && message.contains("'verify'"),
        "{message}"
    );
    assert!(
        !message.contains('\u{1b}') && !message.contains("Usage"),
        "{message}"
    );
    let plain = run(&["ledger", "verfy"]);
    assert_eq!((plain.status.code(), plain.stdout.len()), (Some(2), 0));
    let help = run(&["--json", "--help"]);
    assert!(help.status.success() && text(&help.stdout).contains("Usage:"));
}

#[test]
fn shells_and_man_know_the_commands() {
    for (shell, word) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef model-gateway"),
        ("fish", "complete -c model-gateway"),
    ] {
        let output = run(&["completions", shell]);
        let script = text(&output.stdout);
        assert!(
            output.status.success() && script.contains(word),
            "{shell}: {script}"
        );
        for known in ["verify", "rebuild-aggregates", "no-files", "backup"] {
            assert!(script.contains(known), "{shell} does not know {known}");
        }
        assert!(!script.contains("GW_FAIL"), "{shell}: hidden");
    }
    assert_eq!(run(&["completions", "dos"]).status.code(), Some(2));
    // Bash reads its script.
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("completions");
    std::fs::write(&script, run(&["completions", "bash"]).stdout).unwrap();
    let complete = "source \"$0\"; read -r _ _ _ _ function _ < <(complete -p model-gateway | \
                    sed 's/.*-F/x x x x/'); COMP_WORDS=(model-gateway \"$@\"); COMP_CWORD=$#; \
                    \"$function\" model-gateway \"${@: -1}\" \"${@: -2:1}\"; \
                    echo \"${COMPREPLY[*]}\"";
    for (words, expected) in [
        (&["chec"][..], "check"),
        (&["ledger", "ver"], "verify"),
        (&["account", "set-p"], "set-password"),
        (&["ledger", "verify", "--reb"], "--rebuild-aggregates"),
    ] {
        let mut bash = Command::new("bash");
        bash.args(["-c", complete]).arg(&script).args(words);
        let completed = bash.output().unwrap();
        let errors = text(&completed.stderr);
        assert_eq!(text(&completed.stdout).trim(), expected, "{errors}");
    }

    let page = text(&run(&["man"]).stdout);
    assert!(
        page.contains(".TH model-gateway 1") && page.contains("SUBCOMMANDS"),
        "{page}"
    );
    let pages = dir.path().join("man/man1");
    let output = run(&["man", "--dir", pages.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let verify = std::fs::read_to_string(pages.join("model-gateway-ledger-verify.1")).unwrap();
    assert!(verify.contains("rebuild\\-aggregates"), "{verify}");
    let output = run(&["man", "--dir", "/proc/man"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write manual pages to /proc/man"));
}
