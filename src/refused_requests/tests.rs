//! What is kept of refused requests, and how much.

use super::request::{MAX_MESSAGE_CHARS, MAX_WAITING, MAX_WAITING_OF_ACCOUNT};
use super::*;
use accounts::NewAccount;
use std::sync::OnceLock;
use tempfile::TempDir;

const DAY_MS: i64 = 86_400_000;
const NOW: i64 = 1_795_003_200_000;

fn refused(number: u32, account: &str, at_ms: i64) -> RefusedRequest {
    RefusedRequest {
        request_id: format!("req_{number:032x}"),
        account: account.into(),
        at_ms,
        status: 402,
        code: "insufficient_credits".into(),
        message: "no credits".into(),
        surface: "chat",
        model: "beta-5.2".into(),
        key_id: "key_1".into(),
        key_shown: "gw-sk-Ab12…wxyz".into(),
    }
}

fn open() -> (TempDir, RefusedRequests) {
    let folder = tempfile::tempdir().unwrap();
    let requests = RefusedRequests::open(folder.path()).unwrap();
    (folder, requests)
}

fn accounts_with_one(folder: &TempDir) -> (Accounts, String) {
    let accounts = Accounts::open(folder.path()).unwrap();
    let new = NewAccount::new("a@example.com");
    let account = accounts.create_account(&new, NOW).unwrap().id;
    (accounts, account)
}

fn ids(requests: &RefusedRequests, account: &str, limit: u32) -> Vec<String> {
    let all = RefusedFilter::default();
    let rows = requests.list(account, &all, None, limit).unwrap();
    rows.into_iter().map(|(_, row)| row.request_id).collect()
}

fn total(requests: &RefusedRequests, account: &str) -> u64 {
    let counts = requests.counts(account, 0).unwrap();
    counts.iter().map(|count| count.requests).sum()
}

#[test]
fn a_read_that_hangs_holds_up_no_later_one() {
    let (_folder, requests) = open();
    requests.record(refused(1, "acct_1", NOW));
    requests.flush();
    let (release, until) = std::sync::mpsc::sync_channel::<()>(0);
    let held = requests.read_until(until);
    let outcome = || requests.counts("acct_1", 0);
    let stuck = test_world::wait_for("the read to count as stuck", test_world::SOON, || {
        outcome().err()
    });
    let words = "cannot count an account's refused requests: the disk of refused.db";
    assert!(stuck.to_string().contains(words), "{stuck}");
    assert_eq!(or_left_out(outcome()), []);
    drop(release);
    held.join().unwrap();
    assert_eq!(total(&requests, "acct_1"), 1);
}

#[test]
fn a_refusal_is_found_at_once_and_after_a_restart() {
    let (folder, requests) = open();
    let row = refused(1, "acct_1", NOW);
    requests.record(row.clone());
    let find =
        |requests: &RefusedRequests, account| requests.find(account, &row.request_id).unwrap();
    assert_eq!(find(&requests, Some("acct_1")), Some(row.clone()));
    requests.flush();
    drop(requests);
    let requests = RefusedRequests::open(folder.path()).unwrap();
    assert_eq!(find(&requests, Some("acct_1")), Some(row.clone()));
    assert_eq!(find(&requests, None), Some(row.clone()));
    assert_eq!(find(&requests, Some("acct_2")), None, "of another account");
    assert_eq!(ids(&requests, "acct_1", 9), [&*row.request_id]);
    assert_eq!(ids(&requests, "acct_2", 9), [""; 0]);
}

#[test]
fn the_newest_thousand_of_an_account_are_listed_and_all_are_counted() {
    let (_folder, requests) = open();
    requests.record(refused(0, "acct_2", NOW));
    let more = MAX_LISTED + 5;
    for number in 1..=more {
        requests.record(refused(number, "acct_1", NOW + i64::from(number)));
        if number % 100 == 0 {
            requests.flush();
        }
    }
    requests.flush();
    let listed = ids(&requests, "acct_1", 2 * MAX_LISTED);
    assert_eq!(listed.len(), MAX_LISTED as usize);
    assert_eq!(listed[0], format!("req_{more:032x}"), "the newest first");
    assert_eq!(listed[listed.len() - 1], format!("req_{:032x}", 6));
    assert_eq!(total(&requests, "acct_1"), u64::from(more));
    assert_eq!(ids(&requests, "acct_2", 9).len(), 1, "another's stay");
}

#[test]
fn a_flood_between_two_writes_is_counted_and_takes_bounded_memory() {
    let (_folder, requests) = open();
    let flood = 3 * MAX_WAITING_OF_ACCOUNT as u32;
    for number in 1..=flood {
        requests.record(refused(number, "acct_1", NOW));
    }
    assert_eq!(requests.waiting().listed, MAX_WAITING_OF_ACCOUNT);
    for number in 1..=MAX_WAITING as u32 {
        let account = format!("acct_x{}", number % 100);
        requests.record(refused(flood + number, &account, NOW));
    }
    assert_eq!(requests.waiting().listed, MAX_WAITING);
    requests.flush();
    assert_eq!(total(&requests, "acct_1"), u64::from(flood));
    let listed = ids(&requests, "acct_1", flood);
    assert_eq!(listed.len(), MAX_WAITING_OF_ACCOUNT);
    assert_eq!(listed[0], format!("req_{flood:032x}"));
    assert_eq!(requests.waiting().listed, 0);
}

#[test]
fn pages_and_filters_divide_the_list() {
    let (_folder, requests) = open();
    for number in 0..5 {
        // Two of them in the same millisecond.
        let mut row = refused(number, "acct_1", NOW + i64::from(number / 2));
        if number == 4 {
            row.status = 429;
            row.code = "rate_limited".into();
            row.key_id = "key_2".into();
            row.model = String::new();
        }
        requests.record(row);
    }
    requests.flush();
    let page = |filter: &RefusedFilter, before| {
        let rows = requests.list("acct_1", filter, before, 2).unwrap();
        let cursor = rows.last().map(|(cursor, _)| *cursor);
        let ids: Vec<_> = rows
            .into_iter()
            .map(|(_, row)| row.request_id[row.request_id.len() - 1..].to_owned())
            .collect();
        (ids.concat(), cursor)
    };
    let all = RefusedFilter::default();
    let (first, cursor) = page(&all, None);
    let (second, cursor) = page(&all, cursor);
    let (third, cursor) = page(&all, cursor);
    assert_eq!(
        [first, second, third, page(&all, cursor).0],
        ["43", "21", "0", ""]
    );
    let only = |filter: RefusedFilter| page(&filter, None).0;
    let with = |change: fn(&mut RefusedFilter)| {
        let mut filter = RefusedFilter::default();
        change(&mut filter);
        only(filter)
    };
    assert_eq!(with(|filter| filter.status = Some(429)), "4");
    assert_eq!(with(|filter| filter.key_id = Some("key_1".into())), "32");
    assert_eq!(with(|filter| filter.model = Some("beta-5.2".into())), "32");
    assert_eq!(with(|filter| filter.from_ms = Some(NOW + 2)), "4");
    assert_eq!(with(|filter| filter.to_ms = Some(NOW + 1)), "10");
    let counts = requests.counts("acct_1", 0).unwrap();
    let counts: Vec<_> = counts
        .iter()
        .map(|count| (count.status, &*count.code, count.requests))
        .collect();
    assert_eq!(
        counts,
        [(402, "insufficient_credits", 4), (429, "rate_limited", 1)]
    );
}

#[test]
fn what_is_older_than_thirty_days_or_of_a_deleted_account_goes() {
    let (folder, requests) = open();
    let (accounts, account) = accounts_with_one(&folder);
    let today = NOW - NOW.rem_euclid(DAY_MS);
    let first = today - KEPT_DAYS * DAY_MS;
    requests.record(refused(1, &account, first - 1));
    requests.record(refused(2, &account, first));
    requests.record(refused(3, "acct_gone", NOW));
    requests.flush();
    requests.purge(&accounts, NOW).unwrap();
    assert_eq!(ids(&requests, &account, 9), [refused(2, "", 0).request_id]);
    assert_eq!(total(&requests, &account), 1);
    assert_eq!(total(&requests, "acct_gone"), 0);
    assert_eq!(ids(&requests, "acct_gone", 9), [""; 0]);
}

#[test]
fn a_long_message_is_cut_between_characters() {
    let (_folder, requests) = open();
    for (length, kept) in [(MAX_MESSAGE_CHARS, 600), (MAX_MESSAGE_CHARS + 1, 601)] {
        let row = RefusedRequest {
            message: "é".repeat(length),
            ..refused(u32::try_from(length).unwrap(), "acct_1", NOW)
        };
        requests.record(row.clone());
        let found = requests.find(None, &row.request_id).unwrap().unwrap();
        assert_eq!(found.message.chars().count(), kept);
        assert_eq!(found.message.ends_with('…'), kept > MAX_MESSAGE_CHARS);
    }
}

#[test]
fn what_an_edge_sends_is_the_same_at_the_sidecar_and_counts_once() {
    let (_folder, sidecar) = open();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&sent);
    let edge = RefusedRequests::sent_by(Box::new(move |batch| {
        lock(&sink).push(batch.to_owned());
        Ok(())
    }));
    let row = refused(1, "acct_1", NOW);
    edge.record(row.clone());
    edge.record(refused(2, "acct_2", NOW));
    edge.note(note(3, "acct_1", NOW));
    assert_eq!(edge.find(None, &row.request_id).unwrap(), Some(row.clone()));
    edge.flush();
    edge.flush();
    let batches = lock(&sent).clone();
    assert_eq!(batches.len(), 1, "nothing is sent when there is nothing");
    let id = sidecar.absorb(&batches[0], |_| false).unwrap();
    let again = sidecar.absorb(&batches[0], |known| known == id).unwrap();
    assert_eq!(again, id);
    sidecar.flush();
    assert_eq!(sidecar.find(None, &row.request_id).unwrap(), Some(row));
    assert_eq!(
        (total(&sidecar, "acct_1"), total(&sidecar, "acct_2")),
        (1, 1)
    );
    let noted = sidecar.find_note(None, "vendor-3").unwrap();
    assert_eq!(noted, Some(note(3, "acct_1", NOW)));
    assert!(sidecar.absorb("{}", |_| false).is_err());
}

#[test]
fn what_is_being_written_is_found() {
    let edge: Arc<OnceLock<RefusedRequests>> = Arc::default();
    let (of_sender, writes) = (Arc::clone(&edge), Arc::new(Mutex::new(0)));
    let counted = Arc::clone(&writes);
    let requests = RefusedRequests::sent_by(Box::new(move |_| {
        let edge = of_sender.get().unwrap();
        let row = refused(1, "acct_1", NOW);
        assert_eq!(edge.find(None, &row.request_id).unwrap(), Some(row));
        let noted = edge.find_note(None, "vendor-2").unwrap();
        assert_eq!(noted, Some(note(2, "acct_1", NOW)));
        *lock(&counted) += 1;
        Ok(())
    }));
    let requests = edge.get_or_init(|| requests);
    requests.record(refused(1, "acct_1", NOW));
    requests.note(note(2, "acct_1", NOW));
    requests.flush();
    assert_eq!(*lock(&writes), 1);
    let id = refused(1, "acct_1", NOW).request_id;
    assert_eq!(
        requests.find(None, &id).unwrap(),
        None,
        "the sidecar has it"
    );
}

fn note(number: u32, account: &str, at_ms: i64) -> RequestNote {
    RequestNote {
        request_id: format!("req_{number:032x}"),
        account: account.into(),
        at_ms,
        kind: NoteKind::Failed,
        status: 502,
        asked_for: String::new(),
        header_id: Some(format!("vendor-{number}")),
        answer_id: Some(format!("chatcmpl-{number}")),
        fault: Some(VendorFault {
            vendor: "beta".into(),
            status: Some(503),
            cause: "overloaded".into(),
            words: "come back later".into(),
            is_private: false,
        }),
    }
}

#[test]
fn a_note_is_found_by_each_of_its_ids_at_once_and_after_a_restart() {
    let (folder, requests) = open();
    let (one, other) = (note(1, "acct_1", NOW), note(2, "acct_2", NOW));
    requests.note(one.clone());
    // A vendor can give two requests one id.
    requests.note(RequestNote {
        answer_id: one.answer_id.clone(),
        ..other.clone()
    });
    let check = |requests: &RefusedRequests| {
        for id in [&one.request_id, "vendor-1", "chatcmpl-1"] {
            let found = |account| requests.find_note(account, id).unwrap();
            assert_eq!(found(Some("acct_1")), Some(one.clone()), "{id}");
            assert_eq!(found(Some("acct_3")), None, "of another account");
        }
        let theirs = requests.find_note(Some("acct_2"), "chatcmpl-1").unwrap();
        assert_eq!(theirs.unwrap().request_id, other.request_id);
        assert_eq!(requests.find_note(None, "vendor").unwrap(), None);
    };
    check(&requests);
    requests.flush();
    drop(requests);
    check(&RefusedRequests::open(folder.path()).unwrap());
}

#[test]
fn the_newest_notes_of_each_kind_are_kept_for_thirty_days() {
    let (folder, requests) = open();
    let first = (NOW / DAY_MS - KEPT_DAYS) * DAY_MS;
    requests.note(note(1, "acct_1", first - 1));
    requests.note(note(2, "acct_1", first));
    requests.flush();
    let (accounts, account) = accounts_with_one(&folder);
    requests.note(note(3, &account, NOW));
    requests.flush();
    let is_there = |number: u32| {
        let id = format!("vendor-{number}");
        requests.find_note(None, &id).unwrap().is_some()
    };
    assert_eq!([1, 2, 3].map(is_there), [true; 3]);
    requests.purge(&accounts, NOW).unwrap();
    assert_eq!(
        [1, 2, 3].map(is_there),
        [false, false, true],
        "too old, of no account, kept"
    );
    let free = RequestNote {
        kind: NoteKind::Free,
        ..note(4, &account, NOW)
    };
    requests.note(free);
    requests.flush();
    let (batch, mut number) = (u32::try_from(MAX_WAITING_OF_ACCOUNT).unwrap(), 5);
    for _ in 0..=MAX_NOTES / batch {
        for _ in 0..batch {
            requests.note(note(number, &account, NOW));
            number += 1;
        }
        requests.flush();
    }
    assert!(!is_there(3), "the oldest of its kind");
    assert!(is_there(4) && is_there(number - 1) && is_there(number - MAX_NOTES));
    assert!(!is_there(number - MAX_NOTES - 1));
}
