//! Tests of the notices in `app.db`: mail, webhooks and alerts, and the migration that brings them.

use super::alerts::{AlertNoticeRow, AlertNotices};
use super::audit::AuditFilter;
use super::links::OneTimeLinkRow;
use super::mail::{MailQueueLimits, MailQueueSummary, OutgoingMailRow, QueueMailOutcome};
use super::webhooks::{DeliveryAttempt, NewDelivery, QueueDeliveryOutcome};
use super::*;
use account_lifecycle::SignUpTerms;
use tempfile::TempDir;

const NOW: i64 = 1_800_000_000_000;
const MINUTE: i64 = 60_000;
const LIMITS: MailQueueLimits = MailQueueLimits {
    total: 3,
    per_account: 2,
};

fn insert_account(db: &AppDb, id: &str) {
    let row = AccountRow {
        id: id.to_owned(),
        email: format!("{id}@example.com"),
        role: Role::Member,
        active: true,
        deleted: false,
        created_at_ms: NOW,
        trial: None,
        granted: false,
        organisation: None,
    };
    db.people()
        .insert_account(&row, None, None, &SignUpTerms::default())
        .unwrap();
}

/// A database with the accounts `a`, `b` and `c`.
fn world() -> (TempDir, AppDb) {
    let folder = tempfile::tempdir().unwrap();
    let db = AppDb::open(folder.path(), None).unwrap();
    for id in ["a", "b", "c"] {
        insert_account(&db, id);
    }
    (folder, db)
}

fn delete(db: &AppDb, id: &str) {
    let told = AuditEntry {
        at_ms: NOW,
        actor: id,
        address: "",
        act: "account.delete",
        object: id,
        before: "",
        after: "",
    };
    db.people()
        .delete_account(id, &format!("deleted-{id}"), NOW, &told)
        .unwrap();
}

fn mail(id: &str, account: &str) -> OutgoingMailRow {
    OutgoingMailRow {
        id: id.to_owned(),
        account: account.to_owned(),
        kind: "low_balance".to_owned(),
        detail: "{}".to_owned(),
        created_at_ms: NOW,
        attempts: 0,
    }
}

fn delivery<'a>(id: &'a str, account: &'a str, created_at_ms: i64) -> NewDelivery<'a> {
    NewDelivery {
        id,
        account,
        event: "credits.low_balance",
        body: "{}",
        created_at_ms,
    }
}

#[test]
fn mail_waits_in_a_queue_with_limits_and_is_taken_once() {
    let (folder, db) = world();
    let queue = |id, account| db.mail().queue_mail(&mail(id, account), LIMITS).unwrap();
    assert_eq!(queue("m1", "nobody"), QueueMailOutcome::NoAccount);
    assert_eq!(queue("m1", "a"), QueueMailOutcome::Done);
    assert_eq!(queue("m2", "a"), QueueMailOutcome::Done);
    assert_eq!(queue("m3", "a"), QueueMailOutcome::AccountFull);
    assert_eq!(queue("m3", "b"), QueueMailOutcome::Done);
    assert_eq!(queue("m4", "c"), QueueMailOutcome::QueueFull);

    // Two processes never send the same mail, and a crash only delays it.
    let other = AppDb::open(folder.path(), None).unwrap();
    assert_eq!(db.mail().take_due_mail(NOW - 1, MINUTE, 9).unwrap(), []);
    let first = db.mail().take_due_mail(NOW, MINUTE, 2).unwrap();
    let second = other.mail().take_due_mail(NOW, MINUTE, 9).unwrap();
    assert_eq!((first.len(), second.len()), (2, 1));
    assert!(first.iter().chain(&second).all(|mail| mail.attempts == 1));
    assert_eq!(
        other
            .mail()
            .take_due_mail(NOW + MINUTE - 1, MINUTE, 9)
            .unwrap(),
        []
    );
    let crashed = other.mail().take_due_mail(NOW + MINUTE, MINUTE, 9).unwrap();
    assert_eq!(crashed.len(), 3);
    assert!(crashed.iter().all(|mail| mail.attempts == 2));

    db.mail().end_mail(&crashed[0].id, None, NOW).unwrap();
    db.mail()
        .end_mail(&crashed[1].id, Some("no such mailbox"), NOW)
        .unwrap();
    db.mail()
        .retry_mail(&crashed[2].id, NOW + 5 * MINUTE, "timed out")
        .unwrap();
    // What has ended stays ended.
    db.mail().end_mail(&crashed[1].id, None, NOW).unwrap();
    db.mail().retry_mail(&crashed[0].id, NOW, "late").unwrap();
    assert_eq!(db.mail().mails_sent_since(NOW).unwrap(), 1);
    assert_eq!(db.mail().mails_sent_since(NOW + 1).unwrap(), 0);
    let summary = MailQueueSummary {
        queued: 1,
        oldest_at_ms: Some(NOW),
        last_error: "timed out".to_owned(),
    };
    assert_eq!(db.mail().mail_queue().unwrap(), summary);
    assert_eq!(
        db.mail()
            .take_due_mail(NOW + 4 * MINUTE, MINUTE, 9)
            .unwrap(),
        []
    );
    assert_eq!(
        db.mail()
            .take_due_mail(NOW + 5 * MINUTE, MINUTE, 9)
            .unwrap()
            .len(),
        1
    );

    assert_eq!(db.mail().purge_mail(NOW).unwrap(), 0);
    assert_eq!(db.mail().purge_mail(NOW + 1).unwrap(), 2);
    delete(&db, "a");
    delete(&db, "b");
    assert_eq!(db.mail().mail_queue().unwrap(), MailQueueSummary::default());
}

#[test]
fn a_webhook_keeps_its_secret_until_it_is_rotated() {
    let (_folder, db) = world();
    let url = "https://example.com/hook";
    assert!(
        !db.webhooks()
            .set_webhook("nobody", url, &[1; 32], NOW)
            .unwrap()
    );
    assert!(db.webhooks().set_webhook("a", url, &[1; 32], NOW).unwrap());
    let hook = || db.webhooks().webhook("a").unwrap().unwrap();
    assert!(hook().secret == [1; 32] && hook().old_secret.is_none());
    let rotate = |account, old: u8, new: u8| {
        db.webhooks()
            .rotate_webhook_secret(account, &[old; 32], &[new; 32], NOW + MINUTE)
            .unwrap()
    };
    assert!(rotate("a", 1, 2));
    assert!(!rotate("a", 1, 3), "it has another secret");
    assert!(hook().secret == [2; 32] && hook().old_secret == Some(([1; 32], NOW + MINUTE)));
    assert!(!rotate("b", 2, 3));

    db.webhooks()
        .queue_delivery(&delivery("d1", "a", NOW), 9)
        .unwrap();
    assert!(
        db.webhooks()
            .disable_webhook("a", "410 Gone", NOW, None)
            .unwrap()
    );
    assert!(
        !db.webhooks()
            .disable_webhook("a", "again", NOW, None)
            .unwrap()
    );
    assert!(hook().disabled == Some((NOW, "410 Gone".to_owned())));
    let log = db.webhooks().deliveries("a", 9).unwrap();
    assert_eq!(log[0].state, "failed");
    assert_eq!(
        log[0].last_error,
        "not delivered: the webhook was removed or disabled"
    );
    let refused = db
        .webhooks()
        .queue_delivery(&delivery("d2", "a", NOW), 9)
        .unwrap();
    assert_eq!(refused, QueueDeliveryOutcome::NoWebhook);

    // A new address enables it and leaves the secret.
    assert!(
        db.webhooks()
            .set_webhook("a", "https://example.org", &[3; 32], NOW)
            .unwrap()
    );
    assert!(hook().disabled.is_none() && hook().secret == [2; 32]);
    assert_eq!(hook().url, "https://example.org");
    assert!(db.webhooks().remove_webhook("a", NOW).unwrap());
    assert!(!db.webhooks().remove_webhook("a", NOW).unwrap());
    assert!(db.webhooks().webhook("a").unwrap().is_none());
}

#[test]
fn deliveries_are_taken_one_per_account_and_the_oldest_give_way() {
    let (folder, db) = world();
    for account in ["a", "b"] {
        db.webhooks()
            .set_webhook(account, "https://example.com", &[1; 32], NOW)
            .unwrap();
    }
    let queue = |id, at| {
        db.webhooks()
            .queue_delivery(&delivery(id, "a", at), 2)
            .unwrap()
    };
    assert_eq!(queue("d1", NOW), QueueDeliveryOutcome::Done { dropped: 0 });
    assert_eq!(
        queue("d2", NOW + 1),
        QueueDeliveryOutcome::Done { dropped: 0 }
    );
    assert_eq!(
        queue("d3", NOW + 2),
        QueueDeliveryOutcome::Done { dropped: 1 }
    );
    db.webhooks()
        .queue_delivery(&delivery("d4", "b", NOW), 2)
        .unwrap();
    assert_eq!(db.webhooks().due_deliveries(i64::MAX).unwrap(), 3);
    let log = db.webhooks().deliveries("a", 9).unwrap();
    let states: Vec<_> = log
        .iter()
        .map(|row| (row.id.as_str(), row.state.as_str()))
        .collect();
    assert_eq!(
        states,
        [("d3", "pending"), ("d2", "pending"), ("d1", "failed")]
    );

    let other = AppDb::open(folder.path(), None).unwrap();
    let take = |db: &AppDb, at| {
        let mut taken: Vec<_> = db
            .webhooks()
            .take_due_deliveries(at, MINUTE, &[], 9)
            .unwrap()
            .into_iter()
            .map(|due| (due.id, due.attempts))
            .collect();
        taken.sort();
        taken
    };
    let taken = |ids: &[(&str, u32)]| -> Vec<(String, u32)> {
        ids.iter()
            .map(|(id, count)| ((*id).to_owned(), *count))
            .collect()
    };
    assert_eq!(take(&db, NOW - 1), []);
    assert_eq!(take(&db, NOW + 9), taken(&[("d2", 1), ("d4", 1)]));
    assert_eq!(take(&other, NOW + 9), taken(&[("d3", 1)]));
    assert_eq!(take(&other, NOW + 9), []);

    let failed = DeliveryAttempt {
        status: Some(500),
        error: "the receiver answered 500",
        took_ms: 12,
    };
    db.webhooks()
        .retry_delivery("d2", failed, NOW + 2 * MINUTE)
        .unwrap();
    let done = DeliveryAttempt {
        status: Some(204),
        ..DeliveryAttempt::default()
    };
    db.webhooks()
        .end_delivery("d4", done, true, NOW + 10)
        .unwrap();
    db.webhooks()
        .end_delivery("d4", failed, false, NOW + 11)
        .unwrap();
    let log = db.webhooks().deliveries("b", 9).unwrap();
    assert_eq!(
        (log[0].state.as_str(), log[0].last_status),
        ("delivered", Some(204))
    );
    // After a crash, the attempt that was under way is made again, with the same id.
    assert_eq!(take(&db, NOW + 9 + MINUTE), taken(&[("d3", 2)]));
    assert_eq!(take(&db, NOW + 2 * MINUTE), taken(&[("d2", 2)]));
    let log = db.webhooks().deliveries("a", 2).unwrap();
    assert_eq!((log[1].last_status, log[1].took_ms), (Some(500), Some(12)));

    assert_eq!(db.webhooks().purge_deliveries(NOW + 11).unwrap(), 2);
    delete(&db, "a");
    assert_eq!(db.webhooks().due_deliveries(i64::MAX).unwrap(), 0);
}

#[test]
fn an_alert_fires_once_per_period_and_sends_both_notices_or_none() {
    let (_folder, db) = world();
    assert!(!db.alerts().set_alerts("nobody", "{}").unwrap());
    for account in ["a", "b", "c"] {
        assert!(
            db.alerts()
                .set_alerts(account, "{\"low_balance\":\"10\"}")
                .unwrap()
        );
    }
    db.alerts().set_alerts("b", "").unwrap();
    assert_eq!(db.alerts().alerts("a").unwrap(), "{\"low_balance\":\"10\"}");
    let ids = |after, limit| -> Vec<String> {
        let rows = db.alerts().accounts_with_alerts(after, limit).unwrap();
        rows.into_iter().map(|row| row.id).collect()
    };
    assert_eq!(ids("", 9), ["a", "c"]);
    assert_eq!(
        (ids("", 1), ids("a", 1)),
        (vec!["a".into()], vec!["c".into()])
    );
    db.people().set_active("c", false, None).unwrap();
    assert_eq!(ids("", 9), ["a"]);

    db.webhooks()
        .set_webhook("a", "https://example.com", &[1; 32], NOW)
        .unwrap();
    let fire = |id: &str, period_ms| {
        let (row, new) = (mail(id, "a"), delivery(id, "a", NOW));
        let notices = AlertNotices {
            mail: Some((&row, LIMITS)),
            delivery: Some((&new, 9)),
        };
        let period = (period_ms, NOW);
        db.alerts()
            .fire_alert("a", "spend", period, notices)
            .unwrap()
    };
    let waiting = || {
        (
            db.mail().mail_queue().unwrap().queued,
            db.webhooks().due_deliveries(i64::MAX).unwrap(),
        )
    };
    assert!(fire("n1", 1));
    assert!(!fire("n2", 1));
    assert_eq!(waiting(), (1, 1));
    assert!(fire("n3", 2), "in the next period");
    assert_eq!(waiting(), (2, 2));
    assert_eq!(db.alerts().fired_alerts("a").unwrap()[0].period_ms, 2);
    assert!(db.alerts().rearm_alert("a", "spend").unwrap());
    assert!(!db.alerts().rearm_alert("a", "spend").unwrap());
    // The account's mails are at their limit; the webhook gets its delivery all the same.
    assert!(fire("n4", 2));
    assert_eq!(waiting(), (2, 3));
    let notice = AlertNoticeRow {
        rule: "spend".to_owned(),
        mail: None,
        delivery: Some("pending".to_owned()),
    };
    assert_eq!(db.alerts().alert_notices("a").unwrap(), [notice]);
    delete(&db, "a");
    assert_eq!(waiting(), (0, 0));
    assert_eq!(
        (ids("", 9), db.alerts().fired_alerts("a").unwrap().len()),
        (vec![], 0)
    );
}

#[test]
fn a_database_of_schema_5_gets_the_tables_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let old = rusqlite::Connection::open(folder.path().join("app.db")).unwrap();
    for migration in [
        include_str!("001_accounts.sql"),
        include_str!("002_changes.sql"),
        include_str!("003_settings.sql"),
        include_str!("004_people.sql"),
        include_str!("005_roles.sql"),
    ] {
        old.execute_batch(migration).unwrap();
    }
    let sql = "INSERT INTO account(id, email, password, admin, status, created_at_ms) VALUES(?1, ?2, 'hash', 0, 'active', 1)";
    for (id, email) in [("a", "a@example.com"), ("b", "b@example.com")] {
        old.execute(sql, (id, email)).unwrap();
    }
    old.pragma_update(None, "user_version", 5).unwrap();
    drop(old);

    let db = AppDb::open(folder.path(), None).unwrap();
    assert_eq!(db.people().accounts().unwrap().len(), 2);
    assert_eq!(db.links().email_verified_at("a").unwrap(), None);
    assert_eq!(db.alerts().alerts("a").unwrap(), "");
    let (_, password) = db
        .people()
        .account_by_email("b@example.com")
        .unwrap()
        .unwrap();
    assert_eq!(password.as_deref(), Some("hash"));
    let link = OneTimeLinkRow {
        account: "a".to_owned(),
        purpose: "reset".to_owned(),
        by_operator: true,
        created_by: "root".to_owned(),
        created_at_ms: NOW,
        expires_at_ms: NOW + 1,
    };
    assert!(db.links().put_one_time_link(&link, &[7; 32], None).unwrap());
    assert_eq!(
        db.links().one_time_link(&[7; 32], NOW).unwrap(),
        Some((link, false))
    );
    delete(&db, "a");
    assert_eq!(db.links().one_time_link(&[7; 32], NOW).unwrap(), None);
}

#[test]
fn an_alert_without_a_destination_is_sent_once_there_is_one() {
    let (_folder, db) = world();
    let fire = |notices| {
        db.alerts()
            .fire_alert("a", "low_balance", (7, NOW), notices)
            .unwrap()
    };
    let fired = || db.alerts().fired_alerts("a").unwrap().remove(0);
    let none = AlertNotices {
        mail: None,
        delivery: None,
    };
    assert!(fire(none), "it fires, for the pages");
    assert!(!fired().is_sent);
    assert!(!fire(none), "once");
    let to_webhook = |new| AlertNotices {
        mail: None,
        delivery: Some((new, 9)),
    };
    let first = delivery("d1", "a", NOW);
    assert!(!fire(to_webhook(&first)), "the account has no webhook");
    assert!(
        db.alerts()
            .mark_alert_seen("a", "low_balance", NOW)
            .unwrap()
    );
    assert!(
        !db.alerts()
            .mark_alert_seen("a", "low_balance", NOW)
            .unwrap()
    );
    db.webhooks()
        .set_webhook("a", "https://example.com", &[1; 32], NOW)
        .unwrap();
    assert!(fire(to_webhook(&first)));
    assert!(fired().is_sent && fired().is_seen, "its banner stays away");
    let second = delivery("d2", "a", NOW);
    assert!(!fire(to_webhook(&second)), "it was sent");
    // A message that failed for good was not: the rule fires again for the next destination.
    db.webhooks()
        .disable_webhook("a", "gone", NOW, None)
        .unwrap();
    assert!(!fired().is_sent);
    db.webhooks()
        .set_webhook("a", "https://example.org", &[1; 32], NOW)
        .unwrap();
    assert!(fire(to_webhook(&second)));
    assert!(fired().is_sent);
}

#[test]
fn what_fired_before_the_notices_were_recorded_counts_as_sent_if_there_is_a_destination() {
    let folder = tempfile::tempdir().unwrap();
    let old = AppDb::create_old_version(folder.path(), 7);
    old.execute_batch(
        "INSERT INTO account(id, email, admin, status, created_at_ms, verified_at_ms, alerts)
           VALUES('mailed', 'm@example.com', 0, 'active', 1, 1, '{\"low_balance\":\"1\",\"mail\":true}'),
                 ('alone', 'a@example.com', 0, 'active', 1, NULL, '{\"low_balance\":\"1\",\"mail\":true}');
         INSERT INTO alert_state(account, rule, period_ms, fired_at_ms)
           VALUES('mailed', 'low_balance', 1, 1), ('alone', 'low_balance', 1, 1);",
    )
    .unwrap();
    drop(old);
    let db = AppDb::open_unchecked(folder.path()).unwrap();
    let is_sent = |account: &str| db.alerts().fired_alerts(account).unwrap()[0].is_sent;
    assert_eq!((is_sent("mailed"), is_sent("alone")), (true, false));
}

#[test]
fn a_sign_in_that_is_under_way_ends_by_use_by_time_and_by_number() {
    let folder = tempfile::tempdir().unwrap();
    let db = AppDb::open_unchecked(folder.path()).unwrap();
    let rows = db.identities();
    let begin = |number: u8, ends: i64, now: i64| {
        let flow = ("company", "");
        rows.insert_flow(&[number; 32], flow, ends, (now, 2))
            .unwrap();
    };
    let is_open = |number: u8, now| rows.flow(&[number; 32], "company", now).unwrap().is_some();
    begin(1, 100, 0);
    assert!(is_open(1, 99) && !is_open(1, 100));
    assert_eq!(rows.flow(&[1; 32], "other", 0).unwrap(), None);
    begin(2, 101, 1);
    begin(3, 102, 2);
    assert!(
        !is_open(1, 3) && is_open(2, 3) && is_open(3, 3),
        "the oldest ends"
    );
    assert!(rows.end_flow(&[3; 32]).unwrap() && !rows.end_flow(&[3; 32]).unwrap());
    begin(4, 200, 101);
    let kept: i64 = db.with_writer(|writer| {
        let count = "SELECT count(*) FROM sign_in_flow";
        writer.query_row(count, [], |row| row.get(0)).unwrap()
    });
    assert_eq!(kept, 1, "expired ones are deleted");
}

#[test]
fn an_administrator_with_an_identity_alone_can_sign_in() {
    let folder = tempfile::tempdir().unwrap();
    let old = AppDb::create_old_version(folder.path(), 10);
    old.execute_batch(
        "INSERT INTO account(id, email, admin, status, created_at_ms, password)
           VALUES('one', 'a@example.com', 1, 'active', 1, 'hash'), ('two', 'b@example.com', 1, 'active', 1, NULL);",
    )
    .unwrap();
    drop(old);
    let accounts = crate::Accounts::open(folder.path()).unwrap();
    let by = crate::Actor {
        actor: "uid 0".into(),
        address: String::new(),
    };
    let acting = accounts.with_actor(&by, 2);
    let lower = || acting.set_role("one", crate::Role::Member).unwrap();
    assert_eq!(lower(), crate::CloseAccountOutcome::LastAdministrator);
    let identity = crate::ProviderIdentity {
        provider: "company".into(),
        issuer: "https://id.example.com".into(),
        subject: "s1".into(),
        email: String::new(),
        email_verified: false,
        role: "member".into(),
    };
    assert!(acting.link_identity("two", &identity).unwrap());
    assert!(
        !acting.link_identity("one", &identity).unwrap(),
        "it has an account"
    );
    assert_eq!(lower(), crate::CloseAccountOutcome::Done);
    assert_eq!(acting.unlink_identities("two", "other").unwrap(), 0);
    assert_eq!(acting.unlink_identities("two", "company").unwrap(), 1);
}

#[test]
fn an_account_with_many_lines_in_the_audit_log_has_a_page_of_them() {
    const ATTEMPTS: i64 = 10_000;
    let (_folder, db) = world();
    let lines = "WITH RECURSIVE line(seq) AS (VALUES(1001) UNION ALL SELECT seq + 2 FROM line WHERE seq < 1001 + 2 * ?1 - 2)
                 INSERT INTO audit(seq, at_ms, actor, address, act, object, before, after, prev, hash)";
    db.with_writer(|connection| {
        for rest in [
            "SELECT seq, seq, 'me', '', 'attempt:key.create', 'b', '', '', zeroblob(32), zeroblob(32) FROM line",
            "SELECT seq + 1, seq, 'me', '', 'outcome', 'line ' || seq, '', '{}', zeroblob(32), zeroblob(32) FROM line",
        ] {
            connection.execute(&format!("{lines} {rest}"), [ATTEMPTS]).unwrap();
        }
    });
    let of_b = AuditFilter {
        account: Some("b".to_owned()),
        ..AuditFilter::default()
    };
    // A read with much work fails.
    let rows = db.audit().find_audit_rows(&of_b, None, 50).unwrap();
    let newest: Vec<_> = rows.iter().map(|row| row.seq).take(2).collect();
    assert_eq!((rows.len(), newest), (50, vec![20_999, 20_997]));
}
