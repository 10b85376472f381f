//! Tests of the anchor on real ledgers: a ledger that does not match its anchor is refused by name,
//! until an operator accepts it.

use super::*;
use crate::{Ledger, Posting};
use credits::money::Micro;
use std::fs;

fn grant(ledger: &Ledger, reference: &str) {
    let (d_paid, d_trial) = (Micro::new(5), Micro::ZERO);
    let post = Posting {
        kind: "grant",
        reference,
        account: "acct",
        d_paid,
        d_trial,
        at_ms: 1,
    };
    assert!(ledger.changes().post(&post).unwrap());
}

fn opened(dir: &Path) -> Ledger {
    let ledger = Ledger::open(dir).unwrap();
    ledger.rows().open_account("acct", None, 1).unwrap();
    ledger
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from.join("ledger.db"), to.join("ledger.db")).unwrap();
    for log in ["ledger.db-wal", "ledger.db-shm"] {
        let _ = fs::remove_file(to.join(log));
    }
}

#[test]
fn an_older_or_another_ledger_is_refused_by_name_until_it_is_accepted() {
    let (dir, older, other) = (
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
    );
    let ledger = opened(dir.path());
    grant(&ledger, "first");
    ledger.checkpoint().unwrap();
    copy(dir.path(), older.path());
    copy(dir.path(), other.path());
    grant(&ledger, "second");
    grant(&ledger, "third");
    let last = ledger.rows().entries_after(2, 1).unwrap().remove(0);
    drop(ledger);
    let ledger = opened(dir.path());
    assert_eq!(
        ledger.checks().anchor_fault(dir.path()).unwrap(),
        None,
        "the newest is taken"
    );
    drop(ledger);
    // Copied without its anchor.
    Ledger::accept(other.path()).unwrap();
    let beside = Ledger::open(other.path()).unwrap();
    for reference in ["a", "b", "c"] {
        grant(&beside, reference);
    }
    beside.checkpoint().unwrap();
    drop(beside);
    for (from, name, ends) in [
        (older.path(), "older", "entry 1 (#"),
        (other.path(), "not the one", "entry 4 (#"),
    ] {
        copy(from, dir.path());
        let refused = Ledger::open(dir.path()).err().unwrap().to_string();
        let anchor = ChainHead {
            seq: 3,
            hash: last.hash.clone(),
        }
        .to_string();
        let names_all = [name, ends, &anchor, "--accept-older-ledger"]
            .iter()
            .all(|part| refused.contains(part));
        assert!(names_all, "{refused}");
        let fault = Ledger::open_for_audit(dir.path())
            .unwrap()
            .checks()
            .anchor_fault(dir.path())
            .unwrap();
        assert!(
            fault.is_some_and(|fault| refused.contains(&fault.to_string())),
            "and an audit finds it"
        );
    }
    Ledger::accept(dir.path()).unwrap();
    let ledger = opened(dir.path());
    grant(&ledger, "fourth");
    assert_eq!(ledger.checks().anchor_fault(dir.path()).unwrap(), None);
}

#[test]
fn an_anchor_that_is_behind_is_no_fault() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = opened(dir.path());
    grant(&ledger, "first");
    let behind = fs::read(dir.path().join(ANCHOR_FILE)).unwrap();
    grant(&ledger, "second");
    drop(ledger);
    // The process ended between the commit and the write of the anchor.
    fs::write(dir.path().join(ANCHOR_FILE), behind).unwrap();
    grant(&opened(dir.path()), "third");
    let third = ChainHead {
        seq: 3,
        hash: opened(dir.path())
            .rows()
            .entries_after(2, 1)
            .unwrap()
            .remove(0)
            .hash,
    };
    assert_eq!(read(dir.path()).unwrap(), AnchorContent::Head(third));
}

#[test]
fn a_lost_or_damaged_anchor_is_refused_by_name_until_the_ledger_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(ANCHOR_FILE);
    assert_eq!(
        opened(dir.path())
            .checks()
            .anchor_fault(dir.path())
            .unwrap(),
        None
    );
    assert_eq!(
        read(dir.path()).unwrap(),
        AnchorContent::Head(ChainHead::genesis()),
        "there from the first moment on"
    );
    grant(&opened(dir.path()), "first");
    let first = ChainHead {
        seq: 1,
        hash: opened(dir.path())
            .rows()
            .entries_after(0, 1)
            .unwrap()
            .remove(0)
            .hash,
    };
    let sound = fs::read(&path).unwrap();
    let flipped: Vec<u8> = sound
        .iter()
        .enumerate()
        .map(|(at, byte)| byte ^ u8::from(at == 30))
        .collect();
    let damages = [
        (None, AnchorFault::Missing, "is missing"),
        (Some(Vec::new()), AnchorFault::Empty, "is empty"),
        (Some(flipped), AnchorFault::Unreadable, "cannot be read"),
        (
            Some(vec![b'x'; 5_000]),
            AnchorFault::Unreadable,
            "cannot be read",
        ),
    ];
    for (bytes, fault, name) in damages {
        match bytes {
            Some(bytes) => fs::write(&path, bytes).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let refused = Ledger::open(dir.path()).err().unwrap().to_string();
        assert!(
            refused.contains(name) && refused.contains("--accept-older-ledger"),
            "{refused}"
        );
        let found = Ledger::open_for_audit(dir.path())
            .unwrap()
            .checks()
            .anchor_fault(dir.path())
            .unwrap();
        assert_eq!(found, Some(fault));
        Ledger::accept(dir.path()).unwrap();
        assert_eq!(
            read(dir.path()).unwrap(),
            AnchorContent::Head(first.clone()),
            "{name}"
        );
        opened(dir.path());
    }
}

#[test]
fn a_ledger_from_before_anchors_gets_its_first_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = opened(dir.path());
    grant(&ledger, "first");
    ledger.writer().execute("DELETE FROM anchored", []).unwrap();
    drop(ledger);
    fs::remove_file(dir.path().join(ANCHOR_FILE)).unwrap();
    let ledger = opened(dir.path());
    assert_eq!(ledger.checks().anchor_fault(dir.path()).unwrap(), None);
    assert!(
        is_anchored(&ledger.writer()).unwrap(),
        "from now on it is missed"
    );
    // A ledger without entries, whose anchor was created but not written, as an older version
    // left it.
    let new = tempfile::tempdir().unwrap();
    let ledger = opened(new.path());
    ledger.writer().execute("DELETE FROM anchored", []).unwrap();
    drop(ledger);
    fs::write(new.path().join(ANCHOR_FILE), []).unwrap();
    assert_eq!(
        opened(new.path())
            .checks()
            .anchor_fault(new.path())
            .unwrap(),
        None
    );
    assert_eq!(
        read(new.path()).unwrap(),
        AnchorContent::Head(ChainHead::genesis())
    );
}

#[test]
fn processes_that_open_a_new_ledger_at_one_time_have_one_anchor() {
    let dir = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for number in 0..6 {
            let dir = dir.path();
            scope.spawn(move || grant(&opened(dir), &number.to_string()));
        }
    });
    let ledger = opened(dir.path());
    assert_eq!(ledger.checks().anchor_fault(dir.path()).unwrap(), None);
    let last = ledger.rows().entries_after(5, 1).unwrap().remove(0);
    // The last writer of the anchor may have committed before another process did.
    let AnchorContent::Head(head) = read(dir.path()).unwrap() else {
        panic!("no anchor")
    };
    assert!(head.seq > 0 && head.seq <= last.seq, "{head}");
}
