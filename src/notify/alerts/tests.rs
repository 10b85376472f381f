//! When alerts fire, what they send, and how long a check of many accounts takes.

use super::*;
use crate::billing::Billing;
use crate::notify::NotifyContext;
use crate::notify::webhooks::{AddressPolicy, WebhookUrl, Webhooks};
use accounts::{Accounts, Actor, NewAccount, Role, open_account};
use arc_swap::ArcSwap;
use credits::limits::Period;
use credits::money::Micro;
use ledger::{Ending, EndingDetail, Ledger, RequestOutcome};
use std::sync::Arc;
use std::time::Instant;
use tempfile::TempDir;

const DAY_MS: i64 = 86_400_000;
/// A Wednesday, at noon.
const NOW: i64 = 1_795_003_200_000;

const MAIL: &str = "mail:\n  smtp: smtps://mail.example\n  from: gateway@example.com\n";

struct World {
    folder: TempDir,
    context: NotifyContext,
    engine: AlertEngine,
}

fn world(more: &str) -> World {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{}\n{more}", include_str!("../../../conf/local.yaml"));
    let settings = config::parse(&text, &|_| None).unwrap();
    let context = NotifyContext {
        accounts: Accounts::open(folder.path()).unwrap(),
        billing: Billing::open(folder.path()).unwrap(),
        settings: Arc::new(ArcSwap::from_pointee(settings)),
    };
    let engine = AlertEngine::new(&context);
    World {
        folder,
        context,
        engine,
    }
}

fn amount(text: &str) -> Micro {
    text.parse().unwrap()
}

impl World {
    fn account(&self, email: &str, credits: &str) -> String {
        let new = NewAccount::new(email);
        let NotifyContext {
            accounts, billing, ..
        } = &self.context;
        let id = open_account(accounts, billing.ledger(), &new, NOW)
            .unwrap()
            .id;
        self.top_up(&id, credits);
        id
    }

    fn top_up(&self, account: &str, credits: &str) {
        let reference = format!("invoice {:?}", Instant::now());
        let billing = &self.context.billing;
        billing
            .corrections()
            .grant(account, amount(credits), &reference, NOW)
            .unwrap();
    }

    fn rules(&self, account: &str, rules: AlertRules) {
        assert!(save_rules(&self.context.accounts, account, &rules).unwrap());
    }

    fn webhook(&self, account: &str) {
        let url = WebhookUrl::parse("https://example.com", &AddressPolicy::default()).unwrap();
        Webhooks::new(&self.context.accounts)
            .set(account, &url, NOW)
            .unwrap();
    }

    /// Debits credits of an account.
    fn spend(&self, account: &str, n: u32, credits: &str, at_ms: i64) {
        let settings = self.context.settings.load();
        let price = &settings.catalog.models()[0].price;
        let ledger = Ledger::open(self.folder.path()).unwrap();
        ledger.rows().store_price(price, 0).unwrap();
        let plain = Ending::in_test(
            &format!("req_{n:032x}"),
            account,
            at_ms,
            RequestOutcome::Completed,
        );
        let ending = Ending {
            paid: amount(credits),
            trial: Micro::ZERO,
            detail: EndingDetail {
                price_version: price.version.clone(),
                ..plain.detail
            },
            ..plain
        };
        assert_eq!(
            ledger
                .enter_endings(&[(&ending, Default::default())], "")
                .unwrap(),
            1
        );
    }

    fn fired(&mut self, now_ms: i64) -> usize {
        let report = self.engine.tick(now_ms).unwrap();
        assert_eq!(report.error, None);
        report.fired
    }

    fn messages(&self, account: &str) -> Vec<String> {
        let log = Webhooks::new(&self.context.accounts).log(account).unwrap();
        log.into_iter().map(|row| row.event).collect()
    }
}

fn low(credits: &str) -> AlertRules {
    AlertRules {
        low_balance: Some(amount(credits)),
        ..AlertRules::default()
    }
}

fn spend_rule(credits: &str, period: Period) -> AlertRules {
    AlertRules {
        spend: Some(SpendAlert {
            credits: amount(credits),
            period,
        }),
        ..AlertRules::default()
    }
}

#[test]
fn a_low_balance_fires_once_and_again_after_a_top_up() {
    let mut world = world("");
    let account = world.account("a@example.com", "10");
    world.webhook(&account);
    world.rules(&account, low("10"));
    assert_eq!(world.fired(NOW), 0, "10 is not below 10");
    world.spend(&account, 1, "0.000001", NOW);
    assert_eq!(world.fired(NOW), 1);
    assert_eq!(world.fired(NOW), 0, "once");
    world.spend(&account, 2, "3", NOW);
    assert_eq!(world.fired(NOW), 0);
    // A top-up that does not suffice is answered by one more alert.
    world.top_up(&account, "1");
    assert_eq!(world.fired(NOW), 1);
    assert_eq!(world.fired(NOW), 0);
    // One that does, arms the rule, also if the balance is hardly above the amount.
    world.top_up(&account, "2.5");
    assert_eq!(world.fired(NOW), 0);
    world.spend(&account, 3, "1", NOW);
    assert_eq!(world.fired(NOW), 1);
    assert_eq!(world.messages(&account), ["credits.low_balance"; 3]);
}

#[test]
fn a_balance_around_the_amount_fires_once_and_one_well_above_arms_the_rule() {
    let mut world = world("");
    let account = world.account("a@example.com", "20");
    world.rules(&account, low("10"));
    world.spend(&account, 1, "10.5", NOW);
    assert_eq!(world.fired(NOW), 1);
    let fired = || {
        let db = world.context.accounts.database();
        db.alerts().fired_alerts(&account).unwrap().len()
    };
    world.top_up(&account, "1.499999");
    let mut engine = AlertEngine::new(&world.context);
    assert_eq!(engine.tick(NOW).unwrap().fired, 0);
    assert_eq!(fired(), 1, "10.999999 is less than a tenth above 10");
    world.top_up(&account, "0.000001");
    assert_eq!(engine.tick(NOW).unwrap().fired, 0);
    assert_eq!(fired(), 0, "armed");
}

#[test]
fn a_changed_rule_fires_again_and_an_unchanged_one_does_not() {
    let mut world = world("");
    let account = world.account("a@example.com", "5");
    world.rules(&account, low("10"));
    assert_eq!(world.fired(NOW), 1);
    let with_mail = AlertRules {
        mail: true,
        ..low("10")
    };
    world.rules(&account, with_mail);
    assert_eq!(world.fired(NOW), 0);
    world.rules(&account, low("11"));
    assert_eq!(world.fired(NOW), 1);
    world.rules(&account, AlertRules::default());
    assert_eq!(world.engine.tick(NOW).unwrap().accounts, 0);
}

#[test]
fn spend_fires_once_in_each_period_that_has_more() {
    let mut world = world("");
    let account = world.account("a@example.com", "1000");
    world.webhook(&account);
    world.rules(&account, spend_rule("50", Period::Day));
    world.spend(&account, 1, "50", NOW);
    assert_eq!(world.fired(NOW), 0, "50 is not more than 50");
    world.spend(&account, 2, "0.000001", NOW);
    assert_eq!(world.fired(NOW), 1);
    world.spend(&account, 3, "70", NOW);
    assert_eq!(world.fired(NOW), 0, "once a day");
    assert_eq!(world.fired(NOW + DAY_MS), 0, "nothing was spent yet");
    world.spend(&account, 4, "51", NOW + DAY_MS);
    assert_eq!(world.fired(NOW + DAY_MS), 1);
    // The week has all of it, and began on Monday.
    world.rules(&account, spend_rule("171", Period::Week));
    assert_eq!(world.fired(NOW + DAY_MS), 1);
    assert_eq!(world.fired(NOW + 4 * DAY_MS), 0, "Sunday");
    world.spend(&account, 5, "172", NOW + 5 * DAY_MS);
    assert_eq!(world.fired(NOW + 5 * DAY_MS), 1, "Monday");
    assert_eq!(world.messages(&account), ["credits.spend_limit"; 4]);
}

#[test]
fn a_notice_about_a_payment_is_shown_and_goes_by_mail_to_each_recipient() {
    let world = world(MAIL);
    let accounts = &world.context.accounts;
    let people = ["root@example.com", "other@example.com"].map(|email| {
        let id = world.account(email, "5");
        let by = Actor {
            actor: "uid 0".into(),
            address: String::new(),
        };
        let acting = accounts.with_actor(&by, NOW);
        acting.set_role(&id, Role::Admin).unwrap();
        let links = accounts.one_time_links();
        let purpose = accounts::LinkPurpose::Verify;
        let link = links.create_own_link(&id, purpose, NOW).unwrap();
        links.verify_email_by_link(&link.token, NOW).unwrap();
        id
    });
    let notice = PaymentNotice {
        rule: FiredRule::PaymentDisputed,
        period: 1,
        text: "The bank has taken 10.00 USD back.",
        account: None,
        order: Some("pay_1"),
    };
    notice.send(accounts, &world.context.settings.load(), NOW);
    let mails = accounts.database().mail().take_due_mail(NOW, 1, 9).unwrap();
    let mut mails: Vec<_> = mails.iter().map(|it| (&*it.account, &*it.kind)).collect();
    mails.sort_unstable();
    let mut expected = people.each_ref().map(|id| (&**id, "payment"));
    expected.sort_unstable();
    assert_eq!(mails, expected);
    for id in &people {
        let fired = accounts.database().alerts().fired_alerts(id).unwrap();
        assert_eq!(fired.len(), 1, "a banner");
    }
}

#[test]
fn mail_goes_to_verified_addresses_only_and_only_if_the_gateway_sends_mail() {
    for (more, verified, queued) in [(MAIL, true, 1), (MAIL, false, 0), ("", true, 0)] {
        let mut world = world(more);
        let account = world.account("a@example.com", "5");
        if verified {
            let accounts = &world.context.accounts;
            let purpose = accounts::LinkPurpose::Verify;
            let link = accounts
                .one_time_links()
                .create_own_link(&account, purpose, NOW)
                .unwrap();
            accounts
                .one_time_links()
                .verify_email_by_link(&link.token, NOW)
                .unwrap();
        }
        let rules = AlertRules {
            mail: true,
            ..low("10")
        };
        world.rules(&account, rules);
        assert_eq!(world.fired(NOW), 1, "the rule fires either way");
        let mails = world
            .context
            .accounts
            .database()
            .mail()
            .take_due_mail(NOW, 1, 9)
            .unwrap();
        assert_eq!(mails.len(), queued, "{verified}");
        if let Some(mail) = mails.first() {
            assert_eq!(mail.kind, "low_balance");
            assert_eq!(mail.detail, r#"{"balance":"5","threshold":"10"}"#);
        }
    }
}

#[test]
fn an_alert_that_had_no_destination_is_sent_when_one_appears() {
    let mut world = world("");
    let account = world.account("a@example.com", "5");
    world.rules(&account, low("10"));
    assert_eq!(world.fired(NOW), 1, "it is a banner");
    assert_eq!(world.fired(NOW), 0);
    assert_eq!(world.messages(&account), [""; 0]);
    let notices = |world: &World| {
        let fired = FiredAlert::load_all(&world.context.accounts, &account).unwrap();
        fired[0].describe_notices()
    };
    assert!(notices(&world).contains("on these pages only"));
    world.webhook(&account);
    assert_eq!(world.fired(NOW), 1);
    assert_eq!(world.messages(&account), ["credits.low_balance"]);
    assert_eq!(notices(&world), "by webhook: waits");
    assert_eq!(world.fired(NOW), 0, "once");
}

#[test]
fn two_processes_fire_a_rule_once() {
    let mut world = world("");
    let account = world.account("a@example.com", "5");
    world.webhook(&account);
    world.rules(&account, low("10"));
    let mut other = AlertEngine::new(&NotifyContext {
        accounts: Accounts::open(world.folder.path()).unwrap(),
        ..world.context.clone()
    });
    assert_eq!(world.fired(NOW) + other.tick(NOW).unwrap().fired, 1);
    assert_eq!(world.messages(&account).len(), 1);
}

#[test]
fn an_account_that_cannot_be_checked_does_not_hide_the_others() {
    let mut world = world("");
    let broken = world.account("a@example.com", "5");
    let account = world.account("b@example.com", "5");
    let db = world.context.accounts.database();
    db.alerts().set_alerts(&broken, "{\"future\":1}").unwrap();
    world.rules(&account, low("10"));
    let report = world.engine.tick(NOW).unwrap();
    assert_eq!((report.accounts, report.fired, report.failed), (2, 1, 1));
    assert!(report.error.unwrap().contains("alert rules"));
}

#[test]
fn webhooks_that_are_switched_off_get_no_messages() {
    let mut world = world("notifications: {webhooks: false}");
    let account = world.account("a@example.com", "5");
    world.webhook(&account);
    world.rules(&account, low("10"));
    assert_eq!(world.fired(NOW), 1);
    assert_eq!(world.messages(&account), [""; 0]);
}

/// The bar is 1 s for a release build on two idle cores; this one is neither.
#[test]
fn ten_thousand_accounts_are_checked_in_seconds() {
    let mut world = world("");
    let account = world.account("a@example.com", "50");
    let path = world.folder.path().join("app.db");
    let app = rusqlite::Connection::open(path).unwrap();
    let ledger = rusqlite::Connection::open(world.folder.path().join("ledger.db")).unwrap();
    let rules = r#"{"low_balance":"10","spend":{"credits":"50","period":"month"},"mail":false}"#;
    app.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
         INSERT INTO account(id, email, admin, status, created_at_ms, alerts)
         SELECT printf('acct_%032d', i), i || '@example.com', admin, status, 1, ?2 FROM n, account WHERE id = ?1",
        rusqlite::params![account, rules],
    )
    .unwrap();
    ledger
        .execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
             INSERT INTO account(id, paid, trial, trial_ends_at, credited, opened_at)
             SELECT printf('acct_%032d', i), paid, trial, trial_ends_at, credited, opened_at
             FROM n, account WHERE id = ?1",
            [&account],
        )
        .unwrap();
    for round in ["first", "second"] {
        let began = Instant::now();
        let report = world.engine.tick(NOW).unwrap();
        let took = began.elapsed();
        assert_eq!(
            (report.accounts, report.fired, report.failed),
            (10_000, 0, 0)
        );
        println!("{round} check of 10 000 accounts: {took:?}");
        assert!(took.as_secs() < 50, "{took:?}");
    }
}
