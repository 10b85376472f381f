//! Codes that account holders redeem.

use super::*;
use accounts::{NewCodes, hash_code};

const DAY_MS: i64 = 86_400_000;

impl World {
    fn create_codes(&self, count: u32, per_account: u32) -> Vec<String> {
        let by = Actor {
            actor: "uid 0".into(),
            address: "test".into(),
        };
        let new = NewCodes {
            credits: Micro::new(50_000_000),
            count,
            expires_at_ms: now_ms() + DAY_MS,
            per_account,
        };
        let created = self.accounts.with_actor(&by, now_ms()).create_codes(&new);
        created.unwrap().codes
    }

    fn redeem(&self, account: &str, code: &str, at_ms: i64) -> Result<Micro, PaymentError> {
        self.payments.redeem(account, code, at_ms)
    }
}

#[tokio::test]
async fn of_a_hundred_redeems_at_once_one_gets_the_credits() {
    let world = world();
    let accounts: Vec<_> = (0..10)
        .map(|number| world.open_account(&format!("{number}@example.com")))
        .collect();
    let code = world.create_codes(1, 1).remove(0);
    let redeemed = AtomicU64::new(0);
    std::thread::scope(|threads| {
        for number in 0..100 {
            let (world, code, redeemed, account) =
                (&world, &code, &redeemed, &accounts[number % accounts.len()]);
            threads.spawn(move || {
                if world.redeem(account, code, now_ms()).is_ok() {
                    redeemed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let balance = |account: &String| world.billing.balance(account, now_ms()).unwrap().balance;
    let sum = accounts.iter().map(balance).fold(Micro::ZERO, Micro::plus);
    assert_eq!(sum.to_string(), "50");
    // Another thread of the same account may have entered it first.
    assert!(redeemed.load(Ordering::Relaxed) >= 1);
    assert_eq!(world.findings(), Vec::<String>::new());
    let lines = world.accounts.audit_log().rows(None, 500).unwrap();
    let redeems = lines.iter().filter(|row| row.act == "code.redeem");
    assert_eq!(redeems.count(), 1);
}

#[tokio::test]
async fn a_code_that_is_not_valid_never_says_why() {
    let world = world();
    let (account, other) = (world.account.clone(), world.open_account("b@example.com"));
    let codes = world.create_codes(4, 1);
    let by = Actor {
        actor: "uid 0".into(),
        address: String::new(),
    };
    assert_eq!(
        world
            .redeem(&account, &codes[0], now_ms())
            .unwrap()
            .to_string(),
        "50"
    );
    let acting = world.accounts.with_actor(&by, now_ms());
    assert_eq!(acting.void_codes(&codes[1]).unwrap(), Some(1));
    let typo = codes[2].replace("gw-code-", "gw-code-a");
    let suspended = world.open_account("c@example.com");
    let status = accounts::AccountStatus::Suspended;
    world.accounts.set_status(&suspended, status).unwrap();
    let now_ms = now_ms();
    for (what, account, code, at_ms) in [
        ("redeemed", &account, &codes[0], now_ms),
        ("redeemed by another account", &other, &codes[0], now_ms),
        ("void", &other, &codes[1], now_ms),
        ("a typo", &other, &typo, now_ms),
        ("a second one of its batch", &account, &codes[2], now_ms),
        ("expired", &other, &codes[2], now_ms + DAY_MS),
        ("of a suspended account", &suspended, &codes[2], now_ms),
    ] {
        let refused = world.redeem(account, code, at_ms).unwrap_err();
        assert_eq!(refused.to_string(), "this code is not valid", "{what}");
    }
    // At the last moment.
    assert!(
        world
            .redeem(&other, &codes[2], now_ms + DAY_MS - 1_000)
            .is_ok()
    );
    let batch = world.accounts.codes().batches("", 9).unwrap().remove(0);
    assert_eq!((batch.count, batch.redeemed, batch.voided), (4, 2, 1));
    assert_eq!(acting.void_codes(&batch.id).unwrap(), Some(1));
    assert_eq!(acting.void_codes("codes_none").unwrap(), None);
    assert_eq!(world.findings(), Vec::<String>::new());
}

#[tokio::test]
async fn the_files_have_the_hash_of_a_code_and_not_its_text() {
    let world = world();
    let code = world.create_codes(1, 1).remove(0);
    let hash = hash_code(&code).unwrap();
    world.redeem(&world.account, &code, now_ms()).unwrap();
    let contains = |bytes: &[u8]| {
        let files = std::fs::read_dir(world.folder.path()).unwrap();
        let files = files.map(|file| file.unwrap().path());
        let mut files = files.filter(|path| path.is_file());
        files.any(|path| {
            let content = std::fs::read(path).unwrap();
            content.windows(bytes.len()).any(|part| part == bytes)
        })
    };
    let text = code.strip_prefix("gw-code-").unwrap();
    assert!(contains(&hash) && !contains(text.as_bytes()));
    assert!(!contains(text.to_uppercase().as_bytes()));
}

#[tokio::test]
async fn a_redemption_that_a_crash_interrupted_is_finished_once() {
    let world = world();
    let codes = world.create_codes(2, 2);
    let hash = hash_code(&codes[0]).unwrap();
    let rows = world.accounts.database().codes();
    rows.claim_code(&hash, &world.account, now_ms())
        .unwrap()
        .unwrap();
    world.payments.finish_codes(now_ms()).unwrap();
    assert_eq!(world.balance(), "0", "it may still run");
    world.payments.finish_codes(now_ms() + 61_000).unwrap();
    assert_eq!(world.balance(), "50");
    // A crash between the entry and the mark.
    world.redeem(&world.account, &codes[1], now_ms()).unwrap();
    world.sql("UPDATE credit_code SET is_entered = 0");
    world.payments.finish_codes(now_ms() + 61_000).unwrap();
    world.sql("UPDATE credit_code SET is_entered = 0");
    world.redeem(&world.account, &codes[1], now_ms()).unwrap();
    assert_eq!(world.balance(), "100");
    assert_eq!(world.findings(), Vec::<String>::new());
    // An audit misses the entry of a redeemed code, and the code of an entry.
    world.sql(
        "UPDATE credit_code SET credits = credits + 1 WHERE is_entered;
         DELETE FROM credit_code WHERE NOT is_entered",
    );
    let findings = world.findings();
    assert!(
        findings.len() == 2 && findings.iter().all(|it| it.starts_with("code: ")),
        "{findings:?}"
    );
}
