//! Many accounts with keys, made through the library, and whose turn it is: each request is of a
//! random account and key, and continues one of the account's conversations.
//!
//! Must not settle anything.

use accounts::{Account, Accounts, NewAccount, open_account};
use base::clock;
use credits::money::Micro;
use ledger::sqlite;
use model_gateway::billing::Billing;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Credits of each account, which pay for everything: nine of these would not fit one balance.
const CREDITS: Micro = Micro::new(1_000_000_000_000_000);

/// How many there are of everything.
#[derive(Clone, Copy)]
pub struct Shape {
    pub accounts: usize,
    /// For each account.
    pub keys: usize,
    /// At one time, of all accounts together; each account has at least one.
    pub conversations: usize,
    /// After this many turns on average a conversation ends, and another one begins.
    pub turns: u64,
}

/// An account and its keys.
pub struct Holder {
    pub account: Arc<str>,
    pub keys: Vec<HeldKey>,
}

pub struct HeldKey {
    pub id: Arc<str>,
    pub shown: Arc<str>,
    /// The key in plain text; empty if it was made in an earlier run.
    pub text: String,
}

/// Opens the accounts in `dir` with their credits and keys, or finds them there.
///
/// No gateway may serve from `dir` yet.
pub fn open_accounts(dir: &Path, shape: &Shape) -> Vec<Holder> {
    let mut texts = HashMap::new();
    if !dir.join("app.db").exists() {
        texts = create_accounts(dir, shape);
    }
    let accounts = Accounts::open(dir).unwrap();
    let mut known = accounts.directory().list().unwrap();
    assert_eq!(
        known.len(),
        shape.accounts,
        "{} has another number of accounts",
        dir.display()
    );
    known.sort_by(|one, other| one.id.cmp(&other.id));
    let holder = |account: &Account| Holder {
        account: account.id.as_str().into(),
        keys: held_keys(&accounts, &account.id, &mut texts),
    };
    known.iter().map(holder).collect()
}

/// Creates the accounts in memory, and copies the files into `dir`: thousands of commits that a
/// disk syncs one by one would take a minute. Returns each key in plain text, by its id.
fn create_accounts(dir: &Path, shape: &Shape) -> HashMap<String, String> {
    let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let memory = memory.unwrap();
    let mut texts = HashMap::new();
    {
        let billing = Billing::open(memory.path()).unwrap();
        let accounts = Accounts::open(memory.path()).unwrap();
        for number in 0..shape.accounts {
            create_account(&accounts, &billing, number, shape.keys, &mut texts);
        }
    }
    sqlite::create_dir(dir).unwrap();
    for file in std::fs::read_dir(memory.path()).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), dir.join(file.file_name())).unwrap();
    }
    texts
}

fn create_account(
    accounts: &Accounts,
    billing: &Billing,
    number: usize,
    keys: usize,
    texts: &mut HashMap<String, String>,
) {
    let now_ms = clock::now_ms();
    let email = format!("holder-{number}@example.test");
    let new = NewAccount::new(&email);
    let account = open_account(accounts, billing.ledger(), &new, now_ms).unwrap();
    let reference = format!("bench-{number}");
    assert!(
        billing
            .corrections()
            .grant(&account.id, CREDITS, &reference, now_ms)
            .unwrap()
    );
    for key in 0..keys {
        let name = format!("key {key}");
        let new = accounts
            .api_keys()
            .create_key(&account.id, &name, now_ms)
            .unwrap();
        texts.insert(new.key_id, new.key);
    }
}

fn held_keys(
    accounts: &Accounts,
    account: &str,
    texts: &mut HashMap<String, String>,
) -> Vec<HeldKey> {
    let keys = accounts.api_keys().keys(account).unwrap();
    assert!(!keys.is_empty(), "account {account} has no key");
    keys.into_iter()
        .map(|key| HeldKey {
            text: texts.remove(&key.id).unwrap_or_default(),
            shown: key.shown.as_str().into(),
            id: key.id.as_str().into(),
        })
        .collect()
}

/// Credits of all accounts together, in µc.
pub fn total_balance(dir: &Path) -> i128 {
    let billing = Billing::open(dir).unwrap();
    let now_ms = clock::now_ms();
    let balance = |account: Account| {
        let funds = billing.posted_funds(&account.id, now_ms).unwrap();
        i128::from(funds.unwrap().balance.get())
    };
    let accounts = Accounts::open(dir).unwrap().directory().list().unwrap();
    accounts.into_iter().map(balance).sum()
}

/// Whose turn it is, and in which conversation.
#[derive(Clone, Copy)]
pub struct Turn {
    pub account: usize,
    pub key: usize,
    /// Names the conversation among all that ever were.
    pub conversation: u64,
}

/// Chooses each turn at random. The same seed chooses the same turns, in other conversations.
pub struct Turns {
    shape: Shape,
    random: Random,
    /// Makes the conversations of each run differ.
    run: u64,
    /// For each place of a conversation, how many have ended there.
    ended: Vec<u32>,
}

impl Turns {
    pub fn new(shape: Shape, seed: u64) -> Self {
        let places = (shape.conversations / shape.accounts).max(1) * shape.accounts;
        Self {
            shape,
            random: Random(seed),
            run: u64::try_from(clock::now_ms()).unwrap(),
            ended: vec![0; places],
        }
    }

    pub fn take(&mut self) -> Turn {
        let account = self.random.below(self.shape.accounts);
        let key = self.random.below(self.shape.keys);
        let places = self.ended.len() / self.shape.accounts;
        let place = account * places + self.random.below(places);
        let ended = self.ended[place];
        if self.random.next().is_multiple_of(self.shape.turns) {
            self.ended[place] += 1;
        }
        let name = (u64::try_from(place).unwrap() << 32) | u64::from(ended);
        Turn {
            account,
            key,
            conversation: Random(self.run ^ mix(name)).next(),
        }
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.random.below(limit)
    }
}

/// SplitMix64, which needs no more than its state.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).unwrap();
        usize::try_from(self.next() % limit).unwrap()
    }
}

fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
