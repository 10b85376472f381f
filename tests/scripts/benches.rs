//! The benchmarks of the ledger at a size that takes moments: that they notice a ledger which does
//! not have exactly what was entered, and what their scripts hand over to them.
//!
//! Must not look at a figure: the build is not optimized, and the machine is busy.

use super::{Machine, binary, write_program};
use clap::Parser;

#[allow(dead_code, reason = "the program's own start")]
#[path = "../../benches/ledger.rs"]
mod ledger;
#[allow(dead_code, reason = "the program's own start")]
#[path = "../../benches/many_accounts.rs"]
mod many_accounts;

/// In the place of cargo's `build` and `bench`: the gateway is built, and a benchmark is the
/// program `driver` of the machine.
const BUILD: &str = r#"
case $1 in
  build) mkdir -p "$CARGO_TARGET_DIR/debug"; cp "$PROGRAM" "$CARGO_TARGET_DIR/debug/model-gateway" ;;
  bench) printf '{"target":{"name":"%s"},"executable":"%s"}\n' "$7" "$HOME/driver" ;;
esac"#;

/// A machine on which a benchmark writes its arguments to the file `driven`, and does `more`.
fn machine_with_driver(more: &str) -> Machine {
    let machine = Machine::with_cargo(BUILD);
    let script = format!("printf '%s\\n' \"$*\" > $HOME/driven\n{more}");
    write_program(&machine.path("driver"), &script);
    machine
}

#[test]
fn the_ledger_has_what_the_benchmark_enters_and_a_difference_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("kept");
    let shape = "ledger --accounts 7 --keys 2 --conversations 20 --turns 3 --models 6 --open 5";
    let run = |more: &str| {
        let arguments = format!("{shape} {more} --dir");
        let arguments = arguments.split_whitespace().map(str::to_owned);
        let dir = dir.display().to_string();
        let (_, books) = ledger::run(&ledger::Options::parse_from(arguments.chain([dir])));
        books
    };
    let books = run("--sizes 0,90 --entries 60");
    assert_eq!(books.debits, 60 + 30 + 60, "measured, grown, measured");
    // A later run goes on with the ledger.
    let books = run("--entries 20 --rate 2000 --audit");
    assert_eq!(books.debits, 170);

    for wrong in [
        ledger::Books {
            debits: 171,
            ..books
        },
        ledger::Books {
            balance: books.balance + 1,
            ..books
        },
    ] {
        let said = ledger::audit(&dir, &wrong).unwrap_err();
        assert!(said.contains("was fed"), "{said}");
    }
    let ledger = rusqlite::Connection::open(dir.join("ledger.db")).unwrap();
    ledger
        .execute("UPDATE account SET paid = paid - 1", [])
        .unwrap();
    let said = ledger::audit(&dir, &books).unwrap_err();
    assert!(said.starts_with("`verify` found"), "{said}");
}

#[test]
fn a_ledger_is_sealed_after_it_was_audited() {
    let arguments = "ledger --accounts 7 --keys 2 --conversations 20 --entries 60 --seal";
    let options = ledger::Options::parse_from(arguments.split_whitespace());
    let (dir, books) = ledger::run(&options);
    assert_eq!(books.debits, 60);
    let files = std::fs::read_dir(dir.path().join("segments")).unwrap();
    let segments = files.filter(|file| file.as_ref().unwrap().file_name() != "lock");
    assert_eq!(segments.count(), 1);
}

#[test]
fn each_whole_answer_of_many_accounts_is_one_debit() {
    let arguments = "--accounts 7 --keys 2 --conversations 20 --requests 40 --connections 4";
    let options = ["many_accounts".to_owned(), binary()];
    let options = options
        .into_iter()
        .chain(arguments.split(' ').map(str::to_owned));
    let (gateway, answered) = many_accounts::run(&many_accounts::Options::parse_from(options));
    assert_eq!(answered, 40);
    assert_eq!(gateway.compare(40), Ok(()));
    let said = gateway.compare(41).unwrap_err();
    assert_eq!(said, "40 debits for 41 whole answers");
}

#[test]
fn scripts_hand_their_options_over_to_the_benchmark() {
    let machine = machine_with_driver("");
    let arguments = ["--dev", "--accounts", "1000", "--rate", "95"];
    let (is_success, said) = machine.run(&mut machine.command("scripts/bench-money", &arguments));
    assert!(is_success, "{said}");
    let driven = machine.read("driven");
    assert!(
        driven.ends_with("/billed --accounts 1000 --rate 95\n"),
        "{driven}"
    );
    assert!(machine.read("arguments").contains("--bench many_accounts "));

    let arguments = ["--release", "--sizes", "0,10", "--dir", "kept"];
    let (is_success, said) = machine.run(&mut machine.command("scripts/bench-ledger", &arguments));
    assert!(is_success, "{said}");
    assert_eq!(machine.read("driven"), "--sizes 0,10 --dir kept\n");
    let built = machine.read("arguments");
    assert!(
        built.contains("--profile release --no-run --bench ledger "),
        "{built}"
    );
}

#[test]
fn a_benchmark_that_fails_fails_its_script() {
    let machine = machine_with_driver("exit 3");
    for script in ["scripts/bench-money", "scripts/bench-ledger"] {
        let mut command = machine.command(script, &["--dev", "--accounts", "10"]);
        let (is_success, said) = machine.run(&mut command);
        assert!(!is_success, "{script}: {said}");
        assert!(machine.read("driven").contains("--accounts 10"), "{script}");
    }
}

#[test]
fn an_option_that_there_is_not_is_refused_before_anything_is_built() {
    let machine = machine_with_driver("");
    for arguments in [&["--nonsense"][..], &["1", "2", "3"]] {
        let (is_success, said) =
            machine.run(&mut machine.command("scripts/bench-money", arguments));
        assert!(!is_success && said.starts_with("Usage: "), "{said}");
    }
    assert_eq!(machine.read("arguments"), "");
}
