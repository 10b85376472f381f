//! Converts a line of the audit log to a sentence with e-mails and names of keys.
//!
//! A stored line has ids and JSON, so that it never changes and its hash stays valid. This file
//! must not write to the log, and must show lines of unknown actions too.

use super::super::display::format_time;
use super::prices::token_prices;
use super::role_text::describe_role;
use accounts::db::audit::{AuditOutcome, AuditRow, OutcomeKind};
use accounts::prices::{PRICES_ACT, PriceChange, parse_price_changes};
use accounts::{Accounts, RateSettings, Role};
use credits::money::Micro;
use credits::price_list::{PriceList, TokenPrices};
use ledger::StoreError;
use serde_json::Value;
use std::collections::BTreeMap;

/// Maximum number of models whose new prices a sentence names.
const MAX_MODELS: usize = 5;

/// Actions, with their names in the filter.
pub const ACTS: [(&str, &str); 55] = [
    ("account.create", "Account created"),
    ("account.create-link", "Password link made"),
    ("account.use-link", "Password link used"),
    ("account.set-password", "Password set"),
    ("account.role", "Role changed"),
    ("account.keep-role", "Role kept"),
    ("account.link", "Provider linked"),
    ("account.unlink", "Provider unlinked"),
    ("account.suspend", "Account suspended"),
    ("account.resume", "Account resumed"),
    ("account.delete", "Account deleted"),
    ("account.merge", "Accounts merged"),
    ("account.limit", "Rate limits of an account"),
    ("account.extend-trial", "Trial extended"),
    ("account.grant", "Credits granted"),
    ("account.topup", "Credits sold"),
    ("account.adjust", "Balance corrected"),
    ("request.refund", "Request refunded"),
    ("payment.refund", "Payment refunded"),
    ("code.create", "Codes created"),
    ("code.void", "Codes voided"),
    ("code.redeem", "Code redeemed"),
    ("auto-topup.set", "Automatic top-up set"),
    ("auto-topup.card", "Card saved"),
    ("auto-topup.stop", "Automatic top-up off"),
    ("account.read", "Account read"),
    ("key.create", "Key created"),
    ("key.set", "Key changed"),
    ("key.rotate", "Key rotated"),
    ("key.move", "Key moved"),
    ("key.enable", "Key enabled"),
    ("key.disable", "Key disabled"),
    ("key.revoke", "Key revoked"),
    ("login.approve", "Program signed in"),
    ("login.refuse", "Program refused"),
    ("login.reuse", "Login ended: token used twice"),
    ("organisation.create", "Organisation created"),
    ("organisation.add", "Member added"),
    ("organisation.invite", "Member invited"),
    ("organisation.revoke", "Member's invitation revoked"),
    ("organisation.join", "Member joined"),
    ("organisation.role", "Role of a member changed"),
    ("organisation.budget", "Budget of a member changed"),
    ("organisation.models", "Models of a member changed"),
    ("organisation.claim", "Domain claimed"),
    ("organisation.release", "Domain released"),
    ("organisation.remove", "Member removed"),
    ("invite.create", "Invitations created"),
    ("invite.withdraw", "Invitation revoked"),
    (PRICES_ACT, "Prices changed"),
    ("ledger.verify", "Ledger verified"),
    ("ledger.seal", "Ledger sealed"),
    ("ledger.archive", "Ledger archived"),
    ("ledger.reindex", "Ledger indexed anew"),
    ("ledger.rebuild-aggregates", "Totals rebuilt"),
];

/// Sentences of actions that need no code, one a line: the action, and its text. `{base|past}` is a
/// verb, and a name in braces a value: see [`Line::fill`].
const SENTENCES: &str = include_str!("sentences.txt");

/// Outcomes, with their names in the filter.
pub const OUTCOMES: [(OutcomeKind, &str); 5] = [
    (OutcomeKind::Done, "Done"),
    (OutcomeKind::Refused, "Refused"),
    (OutcomeKind::Failed, "Failed"),
    (OutcomeKind::Repeated, "Already posted"),
    (OutcomeKind::Unknown, "Unknown"),
];

/// E-mails of accounts and names of keys, by the ids in lines.
pub struct AuditNames {
    emails: BTreeMap<String, String>,
    /// Name and account id of each key.
    keys: BTreeMap<String, (String, String)>,
}

impl AuditNames {
    /// Reads the names that `rows` need, each once.
    pub fn load(accounts: &Accounts, rows: &[AuditRow]) -> Result<Self, StoreError> {
        let mut names = Self {
            emails: BTreeMap::new(),
            keys: BTreeMap::new(),
        };
        for row in rows {
            for id in [&row.actor, &row.object] {
                names.load_id(accounts, id)?;
            }
            for side in [json(&row.before), json(&row.after)] {
                for id in ["account", "person", "keys_to"] {
                    if let Some(account) = side[id].as_str() {
                        names.load_id(accounts, account)?;
                    }
                }
            }
        }
        Ok(names)
    }

    fn load_id(&mut self, accounts: &Accounts, id: &str) -> Result<(), StoreError> {
        if id.starts_with("acct_") && !self.emails.contains_key(id) {
            if let Some(account) = accounts.find(id)? {
                self.emails
                    .insert(id.to_owned(), account.label().to_owned());
            }
        } else if id.starts_with("key_")
            && !self.keys.contains_key(id)
            && let Some((account, key)) = accounts.api_keys().key(None, id)?
        {
            self.load_id(accounts, &account)?;
            self.keys.insert(id.to_owned(), (key.name, account));
        }
        Ok(())
    }

    /// Returns the e-mail of an account, "the command line" for a command, or the text itself.
    pub fn person(&self, id: &str) -> String {
        match (self.emails.get(id), id) {
            (Some(email), _) => email.clone(),
            (None, "config file") => "The config file".to_owned(),
            (None, id) if id.starts_with("provider ") => format!("The {id}"),
            (None, id) if id.starts_with("uid ") => format!("The command line ({id})"),
            (None, id) => id.to_owned(),
        }
    }

    fn key(&self, id: &str) -> String {
        match self.keys.get(id) {
            Some((name, account)) => format!("the key ‘{name}’ of {}", self.person(account)),
            None => format!("the key {id}"),
        }
    }

    /// Returns the id of the account that a line concerns.
    pub fn account(&self, row: &AuditRow) -> Option<String> {
        let of_key = self
            .keys
            .get(&row.object)
            .map(|(_, account)| account.clone());
        let of_detail = || json(&row.after)["account"].as_str().map(ToOwned::to_owned);
        match row.object.starts_with("acct_") {
            true => Some(row.object.clone()),
            false => of_key.or_else(of_detail),
        }
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or(Value::Null)
}

/// Returns the action of a line without its actor. If the action did not succeed, the text says
/// what was tried and why it failed.
pub fn sentence(row: &AuditRow, names: &AuditNames) -> String {
    let is_done = row.outcome.kind == OutcomeKind::Done;
    let line = Line {
        row,
        before: json(&row.before),
        after: json(&row.after),
        names,
        tense: if is_done { Tense::Past } else { Tense::Base },
    };
    let template = SENTENCES
        .lines()
        .find_map(|line| line.strip_prefix(&*row.act)?.strip_prefix(": "));
    let what = match (template, row.act.split_once('.')) {
        (Some(template), _) => line.fill(template),
        (None, Some(("account", act))) => line.account(act),
        (None, Some(("key", act))) => line.key(act),
        (None, Some(("organisation", act))) => line.organisation(act),
        (None, _) => line.other(),
    };
    if is_done {
        return what;
    }
    let outcome = AuditOutcome {
        // The text of an error names accounts by their ids, and may end with details as JSON.
        why: (row.outcome.why.split(" {").next().unwrap_or_default())
            .replace(&row.object, &line.whom()),
        ..row.outcome.clone()
    };
    format!("tried to {what}: {outcome}")
}

/// Verb form of a sentence, for an action that was done or only tried.
#[derive(Clone, Copy)]
enum Tense {
    Past,
    Base,
}

impl Tense {
    fn verb(self, base: &'static str, past: &'static str) -> &'static str {
        match self {
            Self::Past => past,
            Self::Base => base,
        }
    }
}

/// A line with its JSON parsed.
struct Line<'a> {
    row: &'a AuditRow,
    before: Value,
    after: Value,
    names: &'a AuditNames,
    tense: Tense,
}

impl Line<'_> {
    fn verb(&self, base: &'static str, past: &'static str) -> &'static str {
        self.tense.verb(base, past)
    }

    fn word(&self, name: &str) -> String {
        self.after[name].as_str().unwrap_or_default().to_owned()
    }

    fn whom(&self) -> String {
        self.names.person(&self.row.object)
    }

    fn reference(&self) -> String {
        match self.word("ref") {
            reference if reference.is_empty() => String::new(),
            reference => format!(", reference {reference}"),
        }
    }

    /// Returns the person whom the line concerns beside its object.
    fn person(&self) -> String {
        match self.after["person"].as_str() {
            Some(person) => self.names.person(person),
            None => self.word("email"),
        }
    }

    /// Fills a sentence of [`SENTENCES`].
    fn fill(&self, mut template: &'static str) -> String {
        let mut text = String::new();
        while let Some((before, rest)) = template.split_once('{')
            && let Some((name, rest)) = rest.split_once('}')
        {
            text += before;
            text += &match (name, name.split_once('|')) {
                (_, Some((base, past))) => self.verb(base, past).to_owned(),
                ("whom", _) => self.whom(),
                ("key", _) => self.names.key(&self.row.object),
                ("object", _) => self.row.object.clone(),
                ("person", _) => self.person(),
                ("reference", _) => self.reference(),
                (member, _) => self.word(member),
            };
            template = rest;
        }
        text + template
    }

    fn account(&self, act: &str) -> String {
        let Self {
            row, before, after, ..
        } = self;
        let whom = self.whom();
        let role = |value: &Value| role_text(value["role"].as_str()).unwrap_or("account holder");
        let is_own = row.actor == row.object;
        match act {
            "create" => {
                let trial = match self.word("trial") {
                    trial if trial.is_empty() => "without a trial".to_owned(),
                    trial => format!("with a trial of {trial} credits"),
                };
                format!("created the account {whom} ({}) {trial}", role(after))
            }
            "use-link" if is_own => "used a password link".to_owned(),
            "use-link" => format!("used a password link of {whom}"),
            "role" => format!(
                "changed the role of {whom} from {} to {}",
                role(before),
                role(after)
            ),
            "keep-role" => format!(
                "gave {whom} no group of a role, but the last administrator stays {}",
                role(before)
            ),
            "delete" if is_own => "deleted the own account".to_owned(),
            "delete" => format!("deleted the account {whom}"),
            "merge" => {
                let name = |side: &Value| match side["account"].as_str() {
                    Some(account) => self.names.person(account),
                    None => String::new(),
                };
                let verb = self.verb("merge", "merged");
                format!("{verb} the account {} into {}", name(before), name(after))
            }
            // The verb is the same in both tenses.
            "limit" => format!(
                "set the rate limits of {whom}: {}",
                list(&rate_changes(&before["rates"], &after["rates"]))
            ),
            "extend-trial" => format!(
                "{} the trial of {whom} from {} to {}",
                self.verb("extend", "extended"),
                time(&before["trial_ends_at_ms"]),
                time(&after["trial_ends_at_ms"]),
            ),
            "adjust" => {
                let credits = self.word("credits");
                let (verb, amount, to) = match credits.strip_prefix('-') {
                    Some(amount) => (self.verb("deduct", "deducted"), amount, "from"),
                    None => (self.verb("add", "added"), credits.as_str(), "to"),
                };
                let (reason, reference) = (self.word("reason"), self.reference());
                format!("{verb} {amount} credits {to} {whom} as a correction: {reason}{reference}")
            }
            "read" => {
                let page = self.word("page");
                let what = match (after["receipt"].as_str(), after["conversation"].as_str()) {
                    (Some(id), _) => format!("the receipt {id}"),
                    (None, Some(id)) => format!("the conversation {id}"),
                    (None, None) if page == "activity.csv" => "the file of responses".to_owned(),
                    (None, None) => format!("the {page}"),
                };
                format!("read {what} of {whom}")
            }
            // The line comes from another version of the program.
            act => format!("account.{act} {whom}"),
        }
    }

    fn key(&self, act: &str) -> String {
        let Self {
            row, before, after, ..
        } = self;
        let key = self.names.key(&row.object);
        match act {
            "create" => {
                let set = settings_changes(&Value::Null, &after["settings"]);
                let set = match set.is_empty() {
                    true => String::new(),
                    false => format!(", {}", list(&set)),
                };
                format!(
                    "{} the key ‘{}’ of {}{set}",
                    self.verb("create", "created"),
                    self.word("name"),
                    self.whom()
                )
            }
            "set" => key_set(&key, &before["settings"], &after["settings"], self.tense),
            "rotate" => {
                let minutes = after["overlap_ms"].as_i64().unwrap_or_default() / 60_000;
                let verb = self.verb("rotate", "rotated");
                format!("{verb} {key}: the old one works for another {minutes} minutes")
            }
            "move" => {
                let to = self.names.person(&self.word("account"));
                match (self.names.keys.get(&row.object), before["account"].as_str()) {
                    (Some((name, _)), Some(from)) => {
                        let from = self.names.person(from);
                        format!("moved the key ‘{name}’ from {from} to {to}")
                    }
                    _ => format!("{} {key} to {to}", self.verb("move", "moved")),
                }
            }
            act => format!("key.{act} {key}"),
        }
    }

    fn organisation(&self, act: &str) -> String {
        let (organisation, role, person) = (self.whom(), self.word("role"), self.person());
        match act {
            "join" => match self.after["domain"].as_str() {
                Some(domain) => format!("joined {organisation} as {role}, by the domain {domain}"),
                None => format!("joined {organisation} as {role}"),
            },
            "role" => {
                let before = self.before["role"].as_str().unwrap_or_default();
                format!("changed the role of {person} in {organisation} from {before} to {role}")
            }
            "budget" => {
                let text = |value: &Value| value["budget"].as_str().unwrap_or("none").to_owned();
                let (from, to) = (text(&self.before), text(&self.after));
                format!("changed the budget of {person} in {organisation} from {from} to {to}")
            }
            "models" => {
                let models = self.after["models"].as_array().into_iter().flatten();
                let models: Vec<_> = models.filter_map(Value::as_str).collect();
                let models = match models.is_empty() {
                    true => "all models".to_owned(),
                    false => models.join(", "),
                };
                format!("let {person} in {organisation} use {models}")
            }
            "remove" => match self.after["keys_to"].as_str() {
                Some(to) => {
                    let to = self.names.person(to);
                    format!("removed {person} from {organisation}, with the keys to {to}")
                }
                None => format!("removed {person} from {organisation}"),
            },
            act => format!("organisation.{act} {organisation}"),
        }
    }

    fn other(&self) -> String {
        let Self { row, after, .. } = self;
        let object = &row.object;
        match row.act.as_str() {
            "request.refund" => {
                let asked = Some(self.word("credits")).filter(|amount| !amount.is_empty());
                let amount = match row.outcome.credits.clone().or(asked) {
                    None => "all that was left of".to_owned(),
                    Some(amount) => format!("{amount} credits of"),
                };
                let of = match after["account"].as_str() {
                    Some(account) => format!(" of {}", self.names.person(account)),
                    None => String::new(),
                };
                let reference = self.reference();
                let verb = self.verb("refund", "refunded");
                format!("{verb} {amount} the request {object}{of}{reference}")
            }
            "payment.refund" => {
                let amount = match self.word("amount") {
                    amount if amount.is_empty() => "all that was left of".to_owned(),
                    amount => format!("{amount} of"),
                };
                let whom = self.names.person(&self.word("account"));
                let reference = self.reference();
                let verb = self.verb("refund", "refunded");
                format!("{verb} {amount} the payment {object} of {whom}{reference}")
            }
            "auto-topup.stop" => {
                let why = match self.word("why") {
                    why if why.is_empty() => String::new(),
                    why => format!(": {why}"),
                };
                let card = match after["removes_card"] == true {
                    true => ", and removed the card",
                    false => "",
                };
                format!("turned automatic top-up off for {}{card}{why}", self.whom())
            }
            "code.create" => format!(
                "created {} codes of {} credits, {object}",
                after["count"],
                self.word("credits")
            ),
            "invite.create" => match after["ids"].as_array().map(Vec::len) {
                Some(1) => "created an invitation".to_owned(),
                count => format!("created {} invitations", count.unwrap_or_default()),
            },
            PRICES_ACT => match parse_price_changes(row) {
                Ok(changes) => prices(&changes, row.before.is_empty()),
                Err(_) => "changed prices".to_owned(),
            },
            // Earlier versions wrote a separate line for a refusal, after that of the action.
            "refused" => {
                let (act, why) = (self.word("act"), self.word("why"));
                let title = ACTS.iter().find(|(name, _)| *name == act);
                let title = title
                    .map_or(act.as_str(), |(_, title)| title)
                    .to_lowercase();
                // The text of an error may end with details as JSON.
                let why = why.split(" {").next().unwrap_or_default();
                format!("was refused ({title}, {}): {why}", self.whom())
            }
            other => format!("{other} {}", self.whom()),
        }
    }
}

fn role_text(name: Option<&str>) -> Option<&'static str> {
    describe_role(Role::parse(name?)?)
}

fn time(ms: &Value) -> String {
    ms.as_i64().map_or_else(|| "none".to_owned(), format_time)
}

/// The rates in a sentence, in the order of [`RateSettings::NAMES`].
const RATE_WORDS: [&str; 3] = [
    "requests a minute",
    "tokens a minute",
    "concurrent requests",
];

fn rate_changes(before: &Value, after: &Value) -> Vec<String> {
    let number = |value: &Value| match value.as_u64() {
        Some(0) => "no limit".to_owned(),
        Some(number) => number.to_string(),
        None => "the default".to_owned(),
    };
    let named = RateSettings::NAMES.into_iter().zip(RATE_WORDS);
    named
        .filter(|(member, _)| before[*member] != after[*member])
        .map(|(member, name)| {
            let new = number(&after[member]);
            match before[member].is_null() {
                true => format!("{new} {name}"),
                false => format!("from {} to {new} {name}", number(&before[member])),
            }
        })
        .collect()
}

fn list(parts: &[String]) -> String {
    match parts {
        [] => "nothing".to_owned(),
        parts => parts.join(", "),
    }
}

/// Formats a limit as `2 credits a day`.
fn limit_text(limit: &Value) -> Option<(String, String)> {
    let period = match limit["period"].as_str()? {
        "total" => "credits in total".to_owned(),
        period => format!("credits a {period}"),
    };
    Some((limit["credits"].as_str()?.to_owned(), period))
}

/// Describes the changes of a key's settings, except its spending limit.
fn settings_changes(before: &Value, after: &Value) -> Vec<String> {
    let mut parts = Vec::new();
    if before.is_null() {
        let limit = limit_text(&after["spend_limit"]);
        parts.extend(limit.map(|(amount, period)| format!("with a limit of {amount} {period}")));
    }
    if before["expires_at_ms"] != after["expires_at_ms"] {
        parts.push(match after["expires_at_ms"].as_i64() {
            Some(ms) => format!("expiring {}", format_time(ms)),
            None => "without expiry".to_owned(),
        });
    }
    if before["allowed_models"] != after["allowed_models"] {
        let models = after["allowed_models"].as_array().into_iter().flatten();
        let models: Vec<_> = models.filter_map(Value::as_str).collect();
        parts.push(match models.is_empty() {
            true => "for all models".to_owned(),
            false => format!("for {} only", models.join(", ")),
        });
    }
    if before["scope"] != after["scope"] {
        parts.push(match after["scope"].as_str() {
            Some(scope) => format!("for {scope} only"),
            None => "for everything".to_owned(),
        });
    }
    parts.extend(rate_changes(&before["rates"], &after["rates"]));
    parts
}

fn key_set(key: &str, old: &Value, new: &Value, tense: Tense) -> String {
    // Lines of earlier versions lack the previous settings.
    if old.is_null() {
        return format!("set {key}: {}", list(&settings_changes(&Value::Null, new)));
    }
    let limits = (
        limit_text(&old["spend_limit"]),
        limit_text(&new["spend_limit"]),
    );
    let mut parts = Vec::new();
    if old["spend_limit"] != new["spend_limit"] {
        parts.push(match limits {
            (Some((from, one)), Some((to, other))) if one == other => {
                let number = |text: &str| text.parse::<Micro>().unwrap_or(Micro::ZERO);
                let verb = match number(&to) < number(&from) {
                    true => tense.verb("lower", "lowered"),
                    false => tense.verb("raise", "raised"),
                };
                format!("{verb} the limit of {key} from {from} to {to} {one}")
            }
            (Some((from, one)), Some((to, other))) => {
                let verb = tense.verb("change", "changed");
                format!("{verb} the limit of {key} from {from} {one} to {to} {other}")
            }
            (None, Some((to, period))) => format!("set the limit of {key} to {to} {period}"),
            (_, None) => format!("{} the limit of {key}", tense.verb("remove", "removed")),
        });
    }
    let others = settings_changes(old, new);
    if !others.is_empty() {
        let what = list(&others);
        parts.push(match parts.is_empty() {
            true => format!("{} {key}: {what}", tense.verb("change", "changed")),
            false => format!("{} it {what}", tense.verb("make", "made")),
        });
    }
    match parts.is_empty() {
        true => format!("{} {key} without a change", tense.verb("save", "saved")),
        false => parts.join("; "),
    }
}

/// Describes changes of prices. `is_first` is true if no earlier line exists.
fn prices(changes: &[PriceChange], is_first: bool) -> String {
    let count = |count: usize| match count {
        1 => "1 model".to_owned(),
        count => format!("{count} models"),
    };
    if is_first {
        return format!("set the first prices, of {}", count(changes.len()));
    }
    let mut parts: Vec<_> = changes.iter().take(MAX_MODELS).map(price_change).collect();
    if changes.len() > MAX_MODELS {
        parts.push(format!("and of {} more", count(changes.len() - MAX_MODELS)));
    }
    format!("changed prices: {}", parts.join("; "))
}

fn price_change(change: &PriceChange) -> String {
    let rates = |price: &PriceList| {
        token_prices(&TokenPrices {
            input: price.input,
            cache_read: price.cache_read,
            cache_write_5m: price.cache_write_5m,
            cache_write_1h: price.cache_write_1h,
            output: price.output,
        })
    };
    let model = &change.model;
    match (&change.before, &change.after) {
        (Some(old), Some(new)) => {
            let pairs = rates(old).into_iter().zip(rates(new));
            let changed: Vec<_> = pairs
                .filter(|(old, new)| old.1 != new.1)
                .map(|((name, old), (_, new))| format!("{name} {old} → {new}"))
                .collect();
            match changed.is_empty() {
                true => format!("{model}: prices of features or tiers"),
                false => format!("{model}: {}", changed.join(", ")),
            }
        }
        (None, Some(new)) => {
            let rates = rates(new);
            let [input, .., output] = &rates;
            format!("{model} is new, input {}, output {}", input.1, output.1)
        }
        (_, None) => format!("{model} is not offered any more"),
    }
}
