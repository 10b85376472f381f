//! The rows under idempotency keys, with times as parameters.

use super::*;

const NOW: i64 = 1_800_000_000_000;
const DAY: i64 = 86_400_000;
const ALL: RetentionLimits = RetentionLimits {
    entries: u64::MAX,
    bytes: u64::MAX,
};

fn ask<'a>(key: &'a str, hash: &'a [u8; 32], request_id: &'a str) -> IdempotencyRequest<'a> {
    IdempotencyRequest {
        account: "acct_1",
        path: "/v1/messages",
        key,
        hash,
        request_id,
        instance_id: "boot_1",
    }
}

fn answer(body: &str) -> StoredResponse {
    StoredResponse {
        headers: vec![("content-type".into(), "application/json".into())],
        body: body.into(),
    }
}

fn rows(db: &IdempotencyDb, table: &str) -> i64 {
    lock(&db.writer)
        .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| {
            row.get(0)
        })
        .unwrap()
}

#[test]
fn a_key_is_running_then_done_and_another_body_conflicts_at_any_time() {
    let dir = tempfile::tempdir().unwrap();
    let db = IdempotencyDb::open(dir.path()).unwrap();
    let (one, two) = ([1; 32], [2; 32]);
    assert_eq!(
        db.claim(&ask("k", &one, "req_1"), NOW).unwrap(),
        IdempotencyLookup::Nothing
    );
    assert_eq!(
        db.claim(&ask("k", &one, "req_2"), NOW + 2 * DAY).unwrap(),
        IdempotencyLookup::Running,
        "what runs never expires"
    );
    assert_eq!(
        db.claim(&ask("k", &two, "req_2"), NOW).unwrap(),
        IdempotencyLookup::OtherBody
    );
    let response = answer("hello");
    db.complete("req_1", Some(&response), NOW + DAY).unwrap();
    db.release("req_1").unwrap();
    let found = IdempotencyLookup::Done {
        request_id: "req_1".into(),
        response: Some(response),
    };
    assert_eq!(
        db.claim(&ask("k", &one, "req_2"), NOW).unwrap(),
        found,
        "what is done is not freed"
    );
    assert_eq!(
        db.claim(&ask("k", &two, "req_2"), NOW).unwrap(),
        IdempotencyLookup::OtherBody
    );
}

#[test]
fn the_scope_is_account_path_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let db = IdempotencyDb::open(dir.path()).unwrap();
    let hash = [1; 32];
    let base = ask("k", &hash, "req_1");
    let others = [
        IdempotencyRequest {
            account: "acct_2",
            request_id: "req_2",
            ..base
        },
        IdempotencyRequest {
            path: "/v1/chat/completions",
            request_id: "req_3",
            ..base
        },
        IdempotencyRequest {
            key: "K",
            request_id: "req_4",
            ..base
        },
    ];
    for ask in [base].iter().chain(&others) {
        assert_eq!(
            db.claim(ask, NOW).unwrap(),
            IdempotencyLookup::Nothing,
            "{ask:?}"
        );
    }
    for ask in [base].iter().chain(&others) {
        assert_eq!(
            db.claim(
                &IdempotencyRequest {
                    request_id: "req_5",
                    ..*ask
                },
                NOW
            )
            .unwrap(),
            IdempotencyLookup::Running,
            "{ask:?}"
        );
    }
}

#[test]
fn a_freed_key_is_as_if_never_used_and_a_spent_one_has_nothing_to_give() {
    let dir = tempfile::tempdir().unwrap();
    let db = IdempotencyDb::open(dir.path()).unwrap();
    let (one, two) = ([1; 32], [2; 32]);
    assert_eq!(
        db.claim(&ask("k", &one, "req_1"), NOW).unwrap(),
        IdempotencyLookup::Nothing
    );
    db.release("req_1").unwrap();
    assert_eq!(
        db.claim(&ask("k", &two, "req_2"), NOW).unwrap(),
        IdempotencyLookup::Nothing
    );
    db.complete("req_2", None, NOW + DAY).unwrap();
    let spent = IdempotencyLookup::Done {
        request_id: "req_2".into(),
        response: None,
    };
    assert_eq!(db.claim(&ask("k", &two, "req_3"), NOW).unwrap(), spent);
    // A request that lost its key to another one in the meantime changes nothing.
    db.complete("req_1", Some(&answer("late")), NOW + DAY)
        .unwrap();
    assert_eq!((rows(&db, "asked"), rows(&db, "answer")), (1, 0));
}

#[test]
fn a_key_is_forgotten_when_its_time_is_over_and_not_a_moment_before() {
    let dir = tempfile::tempdir().unwrap();
    let db = IdempotencyDb::open(dir.path()).unwrap();
    let (one, two) = ([1; 32], [2; 32]);
    db.claim(&ask("k", &one, "req_1"), NOW).unwrap();
    db.complete("req_1", Some(&answer("hello")), NOW + DAY)
        .unwrap();
    db.claim(&ask("running", &one, "req_r"), NOW).unwrap();
    db.clean(NOW + DAY - 1, ALL).unwrap();
    assert!(matches!(
        db.claim(&ask("k", &one, "req_2"), NOW + DAY - 1).unwrap(),
        IdempotencyLookup::Done {
            response: Some(_),
            ..
        }
    ));
    // Also if nobody has removed expired rows.
    assert_eq!(
        db.claim(&ask("k", &two, "req_2"), NOW + DAY).unwrap(),
        IdempotencyLookup::Nothing
    );
    assert_eq!(
        (rows(&db, "asked"), rows(&db, "answer")),
        (2, 0),
        "its answer went with it"
    );
    db.complete("req_2", Some(&answer("hello")), NOW + 2 * DAY)
        .unwrap();
    db.clean(NOW + 2 * DAY, ALL).unwrap();
    assert_eq!(
        (rows(&db, "asked"), rows(&db, "answer")),
        (1, 0),
        "what runs stays"
    );
}

#[test]
fn past_its_room_the_oldest_answers_go_first_and_then_the_oldest_keys() {
    let dir = tempfile::tempdir().unwrap();
    let db = IdempotencyDb::open(dir.path()).unwrap();
    let hash = [1; 32];
    // Five accounts, so that none of them has a quarter of all.
    let claim = |index: i64, id: &str| {
        let (account, key) = (format!("acct_{}", index % 5), format!("k{index}"));
        let request = IdempotencyRequest {
            account: &account,
            ..ask(&key, &hash, id)
        };
        db.claim(&request, NOW).unwrap()
    };
    let found = |index: i64| claim(index, &format!("req_again_{index}"));
    for index in 0..50_i64 {
        let id = format!("req_{index}");
        claim(index, &id);
        db.complete(&id, Some(&answer("0123456789")), NOW + DAY + index)
            .unwrap();
    }
    db.claim(&ask("running", &hash, "req_r"), NOW).unwrap();
    db.clean(
        NOW,
        RetentionLimits {
            entries: 50,
            bytes: 500,
        },
    )
    .unwrap();
    assert_eq!(
        (rows(&db, "asked"), rows(&db, "answer")),
        (51, 50),
        "all fits"
    );
    db.clean(
        NOW,
        RetentionLimits {
            entries: 50,
            bytes: 105,
        },
    )
    .unwrap();
    assert_eq!((rows(&db, "asked"), rows(&db, "answer")), (51, 10));
    assert!(
        matches!(found(39), IdempotencyLookup::Done { response: None, .. }),
        "the key outlives its answer"
    );
    assert!(matches!(
        found(40),
        IdempotencyLookup::Done {
            response: Some(_),
            ..
        }
    ));
    db.clean(
        NOW,
        RetentionLimits {
            entries: 5,
            bytes: 0,
        },
    )
    .unwrap();
    assert_eq!((rows(&db, "asked"), rows(&db, "answer")), (6, 0));
    assert!(matches!(found(45), IdempotencyLookup::Done { .. }));
    assert_eq!(found(44), IdempotencyLookup::Nothing);
    assert_eq!(
        db.claim(&ask("running", &hash, "req_x"), NOW).unwrap(),
        IdempotencyLookup::Running
    );
}

#[test]
fn many_who_ask_at_once_are_one() {
    let dir = tempfile::tempdir().unwrap();
    let db = IdempotencyDb::open(dir.path()).unwrap();
    let hash = [1; 32];
    let begun = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for index in 0..20 {
            let (db, hash, begun) = (&db, &hash, &begun);
            scope.spawn(move || {
                match db
                    .claim(&ask("k", hash, &format!("req_{index}")), NOW)
                    .unwrap()
                {
                    IdempotencyLookup::Nothing => {
                        begun.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                    found => assert_eq!(found, IdempotencyLookup::Running),
                }
            });
        }
    });
    assert_eq!(begun.into_inner(), 1);
}

#[test]
fn what_was_committed_is_there_for_the_next_process_also_after_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let hash = [1; 32];
    let db = IdempotencyDb::open(dir.path()).unwrap();
    db.claim(&ask("done", &hash, "req_1"), NOW).unwrap();
    db.complete("req_1", Some(&answer("hello")), NOW + DAY)
        .unwrap();
    db.checkpoint().unwrap();
    db.claim(&ask("running", &hash, "req_2"), NOW).unwrap();
    let next = IdempotencyDb::open(dir.path()).unwrap();
    assert_eq!(next.orphaned_requests(&["boot_1".into()]).unwrap(), []);
    assert_eq!(
        next.orphaned_requests(&["boot_2".into()]).unwrap(),
        [("acct_1".to_owned(), "req_2".to_owned())]
    );
    let found = next.claim(&ask("done", &hash, "req_3"), NOW).unwrap();
    assert_eq!(
        found,
        IdempotencyLookup::Done {
            request_id: "req_1".into(),
            response: Some(answer("hello"))
        }
    );
}

/// Claims a key of an account and completes it with a response.
fn complete(db: &IdempotencyDb, account: &str, id: &str, body: &str, expires_at_ms: i64) {
    let request = IdempotencyRequest {
        account,
        ..ask(id, &[1; 32], id)
    };
    assert_eq!(db.claim(&request, NOW).unwrap(), IdempotencyLookup::Nothing);
    db.complete(id, Some(&answer(body)), expires_at_ms).unwrap();
}

#[test]
fn an_account_has_a_quarter_of_the_room_and_displaces_nobody_elses_responses() {
    let dir = tempfile::tempdir().unwrap();
    let db = IdempotencyDb::open(dir.path()).unwrap();
    for index in 0..6 {
        complete(
            &db,
            "acct_1",
            &format!("req_1{index}"),
            &"x".repeat(100),
            NOW + index,
        );
    }
    complete(&db, "acct_2", "req_2", &"x".repeat(100), NOW - 1);
    let kept = |column: &str| -> Vec<String> {
        let writer = lock(&db.writer);
        let sql = format!("SELECT request_id FROM {column} ORDER BY request_id");
        let mut rows = writer.prepare(&sql).unwrap();
        let rows = rows.query_map([], |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect()
    };
    let limits = |entries, bytes| RetentionLimits { entries, bytes };
    db.clean(NOW - 2, limits(100, 1_200)).unwrap();
    assert_eq!(kept("answer"), ["req_13", "req_14", "req_15", "req_2"]);
    assert_eq!(kept("asked").len(), 7, "the keys stay");
    db.clean(NOW - 2, limits(8, 10_000)).unwrap();
    assert_eq!(kept("asked"), ["req_14", "req_15", "req_2"]);
    db.remove_account("acct_1").unwrap();
    assert_eq!(
        (kept("asked"), kept("answer").len()),
        (vec!["req_2".into()], 1)
    );
}

#[test]
fn a_removed_response_and_its_key_are_in_no_file_once_the_log_is_truncated() {
    let dir = tempfile::tempdir().unwrap();
    let db = IdempotencyDb::open(dir.path()).unwrap();
    let long = "CANARY".repeat(20_000);
    for (id, body) in [("CANARY-1", "CANARY short"), ("CANARY-2", &long)] {
        complete(&db, "acct_1", id, body, NOW + DAY);
        complete(
            &db,
            "acct_2",
            &format!("other-{}", &id[7..]),
            "hello",
            NOW + DAY,
        );
    }
    let holds_canary = || {
        let files = std::fs::read_dir(dir.path()).unwrap();
        files.flatten().any(|file| {
            let bytes = std::fs::read(file.path()).unwrap();
            bytes.windows(6).any(|window| window == b"CANARY")
        })
    };
    db.checkpoint().unwrap();
    assert!(holds_canary());
    db.remove_account("acct_1").unwrap();
    sqlite::truncate_logs(dir.path(), &[]).unwrap();
    assert!(!holds_canary());
    assert_eq!((rows(&db, "asked"), rows(&db, "answer")), (2, 2));
}

#[test]
fn the_log_stays_short_under_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let db = IdempotencyDb::open(dir.path()).unwrap();
    let (hash, body) = (
        [1; 32],
        StoredResponse {
            headers: Vec::new(),
            body: vec![b'x'; 1_000_000],
        },
    );
    for index in 0..60 {
        let id = format!("req_{index}");
        db.claim(&ask(&id, &hash, &id), NOW).unwrap();
        db.complete(&id, Some(&body), NOW + DAY).unwrap();
        if index % 10 == 9 {
            db.checkpoint().unwrap();
        }
    }
    let bytes = std::fs::metadata(dir.path().join("idempotency.db-wal"))
        .unwrap()
        .len();
    assert!(bytes < 30_000_000, "a log of {bytes} bytes");
}
