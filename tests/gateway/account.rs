//! Accounts, keys and the ledger: an account's credit, and its entries in the ledger.

use crate::client::{self, Answer, Connection, Request};
use crate::surface::Surface;
use crate::world::{Plan, SOON, World, wait_for, wait_until};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Parses a decimal number of credits into µc.
#[track_caller]
pub fn micro(value: &Value) -> i64 {
    let text = value
        .as_str()
        .unwrap_or_else(|| panic!("not a decimal string: {value}"));
    let (negative, digits) = text
        .strip_prefix('-')
        .map_or((false, text), |digits| (true, digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    assert!(fraction.len() <= 6, "finer than a µc: {text}");
    let amount = whole.parse::<i64>().unwrap() * 1_000_000
        + format!("{fraction:0<6}").parse::<i64>().unwrap();
    if negative { -amount } else { amount }
}

/// Formats µc as a decimal number of credits.
pub fn credits(micro: i64) -> String {
    format!("{}.{:06}", micro / 1_000_000, micro % 1_000_000)
}

/// The balance, held and available credit of an account, in µc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    pub balance: i64,
    pub held: i64,
    pub available: i64,
}

impl Standing {
    #[track_caller]
    fn of(value: &Value) -> Self {
        let standing = Self {
            balance: micro(&value["balance"]),
            held: micro(&value["held"]),
            available: micro(&value["available"]),
        };
        assert_eq!(
            standing.available,
            standing.balance - standing.held,
            "{value}"
        );
        assert!(standing.available >= 0, "{value}");
        standing
    }
}

/// An account and one of its API keys.
pub struct Account {
    pub id: String,
    pub email: String,
    pub key: String,
    pub key_id: String,
}

impl Plan {
    /// Starts a world with an account.
    pub fn with_account(self) -> (World, Account) {
        let world = self.start();
        let account = world.account();
        (world, account)
    }
}

impl World {
    /// A world like [`World::new`], with an account.
    pub fn with_account() -> (Self, Account) {
        Plan::default().with_account()
    }

    /// A world like [`World::new`], with an account that has this amount, in µc.
    pub fn with_funds(micro: i64) -> (Self, Account) {
        let world = Self::new();
        let account = world.funded(micro);
        (world, account)
    }

    /// Creates an account with its sign-up grant.
    pub fn account(&self) -> Account {
        self.account_with("trial@example.test", &[])
    }

    /// Creates an account without a trial and grants it this amount, in µc.
    pub fn funded(&self, micro: i64) -> Account {
        let account = self.account_with("paid@example.test", &["--no-trial"]);
        if micro > 0 {
            self.grant(&account, &credits(micro), "funds");
        }
        account
    }

    /// Grants credits, a decimal number, to an account.
    pub fn grant(&self, account: &Account, credits: &str, reference: &str) {
        match self.admin_api() {
            Some(api) => {
                let path = format!("/accounts/{}/grants", account.id);
                api.post(&path, &json!({"credits": credits, "ref": reference}));
            }
            None => {
                let id = &account.id;
                self.json(&["account", "grant", id, credits, "--ref", reference]);
            }
        }
    }

    /// Creates an account, with the options of `account create`.
    pub fn account_with(&self, email: &str, options: &[&str]) -> Account {
        let id = match (self.admin_api(), options) {
            (Some(api), [] | ["--no-trial"]) => {
                let body = json!({"email": email, "trial": options.is_empty()});
                api.post("/accounts", &body)["account_id"].clone()
            }
            // Only the command line creates administrators.
            _ => {
                let create = [&["account", "create", "--email", email], options].concat();
                self.json(&create)["account_id"].clone()
            }
        };
        let id = id.as_str().unwrap().to_owned();
        let (key_id, key) = if options.contains(&"--admin") {
            self.key_by_command(&id, "test")
        } else {
            self.key(&id, "test")
        };
        Account {
            id,
            email: email.to_owned(),
            key,
            key_id,
        }
    }

    /// Creates a key; returns its id and the key itself.
    pub fn key(&self, account: &str, name: &str) -> (String, String) {
        let Some(api) = self.admin_api() else {
            return self.key_by_command(account, name);
        };
        let made = api.post(&format!("/accounts/{account}/keys"), &json!({"name": name}));
        self.known_key(&made)
    }

    /// Creates a key by `key create`; returns its id and the key itself.
    pub fn key_by_command(&self, account: &str, name: &str) -> (String, String) {
        let made = self.json(&["key", "create", "--account", account, "--name", name]);
        self.known_key(&made)
    }

    /// Waits until the edge knows a new key; returns its id and the key itself.
    fn known_key(&self, made: &Value) -> (String, String) {
        let key = made["key"].as_str().unwrap().to_owned();
        if self.beside.is_some() {
            let credits = Request::get("/v1/credits").bearer(&key);
            wait_until("the edge to know the key", SOON, || {
                self.ask(&credits).status == 200
            });
        }
        (made["key_id"].as_str().unwrap().to_owned(), key)
    }

    /// The credit of the account as `account show` prints it. The command reads the holds that the
    /// gateway publishes for other processes.
    pub fn shown(&self, account: &Account) -> Standing {
        Standing::of(&self.json(&["account", "show", &account.id]))
    }

    /// The credit of the account as `GET /v1/credits` returns it.
    #[track_caller]
    pub fn standing(&self, account: &Account) -> Standing {
        let answer = self.ask(&Request::get("/v1/credits").bearer(&account.key));
        assert_eq!(answer.status, 200, "{}", answer.text());
        Standing::of(&answer.json())
    }

    /// The receipt of a request. The gateway waits two seconds for it; on a busy machine it then
    /// says when to come back.
    #[track_caller]
    pub fn receipt(&self, account: &Account, request_id: &str) -> Value {
        let request = Request::get(&format!("/v1/receipts/{request_id}")).bearer(&account.key);
        wait_for("the receipt", SOON, || {
            let answer = self.ask(&request);
            if answer.status == 404 && answer.header("retry-after").is_some() {
                return None;
            }
            assert_eq!(answer.status, 200, "{}", answer.text());
            Some(answer.json())
        })
    }

    /// The account's debits and voids in the ledger, newest first.
    #[track_caller]
    pub fn endings(&self, account: &Account) -> Vec<Value> {
        let mut rows = self.entries(account);
        rows.retain(|row| row["kind"] == "debit" || row["kind"] == "void");
        rows
    }

    /// The account's entries in the ledger, newest first.
    #[track_caller]
    pub fn entries(&self, account: &Account) -> Vec<Value> {
        match self.admin_api() {
            Some(api) => {
                let path = format!("/accounts/{}/entries", account.id);
                api.all(&path, "entries", "before")
            }
            None => self.entries_by_command(account),
        }
    }

    /// The account's entries as `ledger show` prints them, newest first.
    pub fn entries_by_command(&self, account: &Account) -> Vec<Value> {
        let rows = self.json(&["ledger", "show", &account.id, "--last", "1000000"]);
        rows.as_array().unwrap().clone()
    }

    /// Waits until exactly `count` requests have ended and no credit is held; returns the newest
    /// ending.
    #[track_caller]
    pub fn ended(&self, account: &Account, count: usize) -> Value {
        let rows = wait_for("a request to end", SOON, || {
            Some(self.endings(account)).filter(|rows| rows.len() >= count)
        });
        assert_eq!(rows.len(), count, "{rows:?}");
        assert_eq!(self.standing(account).held, 0);
        rows[0].clone()
    }

    /// Waits for the account's endings, whose number is `N`.
    pub fn ended_all<const N: usize>(&self, account: &Account) -> [Value; N] {
        self.ended(account, N);
        let endings = self.endings(account);
        endings.try_into().expect("no more endings")
    }

    /// Sends one request on its own connection.
    #[track_caller]
    pub fn ask(&self, request: &Request) -> Answer {
        client::ask(self.edge, request)
    }

    /// Like [`World::ask`], for an answer that must have this status.
    #[track_caller]
    pub fn expect(&self, status: u16, request: &Request) -> Answer {
        let answer = self.ask(request);
        assert_eq!(answer.status, status, "{}", answer.text());
        answer
    }

    pub fn connect(&self) -> Connection {
        Connection::open(self.edge)
    }

    /// Sends a request on its own connection, and reads no more than the head of the answer.
    #[track_caller]
    pub fn begin(&self, request: &Request) -> (Connection, Answer) {
        let mut connection = self.connect();
        assert!(connection.send(&request.bytes()));
        let answer = connection.begin();
        (connection, answer)
    }

    /// Like [`World::begin`], for a stream that must begin; the client has its first bytes.
    #[track_caller]
    pub fn begin_stream(&self, request: &Request) -> (Connection, Answer) {
        let (mut connection, mut answer) = self.begin(request);
        let has_begun = answer.status == 200 && connection.more(&mut answer);
        assert!(has_begun, "{}", answer.text());
        (connection, answer)
    }

    /// Sends a request that must succeed.
    #[track_caller]
    pub fn works(&self, surface: Surface, key: &str) -> Answer {
        self.expect(200, &surface.whole(key, "input=10 output=10"))
    }
}

/// How long a hold may outlive its request's ending: it is released when that is in the ledger.
const RELEASED_WITHIN: Duration = Duration::from_secs(5);

/// All accounts with their balances, as the admin API returns them once no account has a hold.
/// `None` if only commands reach the ledger, or while a hold waits for something that is missing.
pub fn accounts(world: &World) -> Option<Vec<Value>> {
    let api = world.admin_api()?;
    let listed = api.all("/accounts", "accounts", "cursor");
    let deadline = Instant::now() + RELEASED_WITHIN;
    let show = |account: &Value| {
        let id = account["account_id"].as_str().unwrap();
        loop {
            let shown = api.get(&format!("/accounts/{id}"));
            if micro(&shown["held"]) == 0 {
                return Some(shown);
            }
            if Instant::now() > deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    listed.iter().map(show).collect()
}

/// Audits the ledger of a gateway that has ended: there are no findings, no credit is held, and no
/// account has spent more than it was granted.
pub fn audit(world: &World) {
    let show = |account: &Value| {
        let id = account["account_id"].as_str().unwrap();
        world.json(&["account", "show", id])
    };
    let listed = world.json(&["account", "list"]);
    let accounts: Vec<_> = listed.as_array().unwrap().iter().map(show).collect();
    audit_with(world, &accounts);
}

/// Like [`audit`], with the accounts as they were when the gateway had nothing left to do.
pub fn audit_with(world: &World, accounts: &[Value]) {
    let verdict = world.json(&["ledger", "verify"]);
    assert_eq!(verdict["findings"], Value::Array(Vec::new()), "{verdict}");
    for account in accounts {
        let standing = Standing::of(account);
        assert_eq!(standing.held, 0, "{account}");
        assert!(standing.balance >= 0, "{account}");
    }
}

/// The sum that the endings charged, in µc.
pub fn taken(endings: &[Value]) -> i64 {
    endings.iter().map(|ending| micro(&ending["credits"])).sum()
}
