//! Defines the rows of accounts and API keys in `app.db`, and reads them from query results.
//!
//! This file must not run a query.

use credits::limits::SpendLimit;
use credits::money::Micro;
use credits::trial::Trial;
use ledger::StoreError;
use rusqlite::Row;
use std::sync::Arc;

/// Rights of a person beyond the use of their own account, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The person has no further rights.
    Member,
    /// The person may read the operator pages.
    Viewer,
    /// The person may read the operator pages and make changes there.
    Admin,
}

impl Role {
    pub(crate) fn from_flags(admin: bool, viewer: bool) -> Self {
        match (admin, viewer) {
            (true, _) => Self::Admin,
            (false, true) => Self::Viewer,
            (false, false) => Self::Member,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Member => "member",
            Self::Viewer => "viewer",
            Self::Admin => "administrator",
        }
    }

    /// Parses the name of a role, or an alias that commands accept.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "member" | "holder" => Some(Self::Member),
            "viewer" => Some(Self::Viewer),
            "administrator" | "admin" | "operator" => Some(Self::Admin),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountRow {
    pub id: String,
    pub email: String,
    pub role: Role,
    pub active: bool,
    /// True if the holder closed the account, so that nobody can sign in to it.
    pub deleted: bool,
    pub created_at_ms: i64,
    pub trial: Option<(Micro, i64)>,
    pub granted: bool,
    /// Name of the organisation that the account belongs to; `None` if it is one person's.
    pub organisation: Option<String>,
}

impl AccountRow {
    pub fn trial(&self) -> Option<Trial> {
        self.trial.map(|(credits, ends_at_ms)| Trial {
            credits,
            ends_at_ms,
        })
    }
}

/// The data of a key that admission reads by the key's hash.
pub struct KeyOwner {
    pub key: Arc<str>,
    pub account: Arc<str>,
    pub shown: Arc<str>,
    pub status: String,
    pub account_active: bool,
    /// JSON, or an empty text.
    pub settings: String,
    pub account_rates: String,
    /// Id, budget and allowed models of the key's membership, or empty texts.
    pub member_id: String,
    pub budget: String,
    pub models: String,
    /// When the text by which the key was found ends; `None` but for a login.
    pub token_ends_at_ms: Option<i64>,
}

/// The member of an organisation whose key it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyMember {
    /// Id of the membership: `ORGANISATION/PERSON`, by the ids of their accounts.
    pub id: Arc<str>,
    pub budget: Option<SpendLimit>,
    /// Catalog ids of the models that the member's keys may use; empty allows all.
    pub allowed_models: Arc<[String]>,
}

impl KeyMember {
    /// Converts the fields as the database and the shared store have them. An empty text is none.
    ///
    /// # Errors
    /// Returns an error if the budget cannot be read. Without a budget, the member could spend
    /// everything.
    pub fn decode(id: &str, budget: &str, models: &str) -> Result<Option<Self>, StoreError> {
        if id.is_empty() {
            return Ok(None);
        }
        let budget = (!budget.is_empty()).then(|| budget.parse()).transpose();
        let budget = budget.map_err(|error| {
            StoreError::Unusable(format!(
                "the budget of the member {id} cannot be read: {error}"
            ))
        })?;
        Ok(Some(Self {
            id: id.into(),
            budget,
            allowed_models: decode_models(models).into(),
        }))
    }
}

/// Reads the allowed models of a member from their text. No id has whitespace.
pub(crate) fn decode_models(text: &str) -> Vec<String> {
    text.split_whitespace().map(ToOwned::to_owned).collect()
}

/// Returns the id of a person's membership, by which the ledger counts what the member spends. It
/// stays the same if the person leaves the organisation and joins it again.
pub fn membership_id(account: &str, person: &str) -> String {
    format!("{account}/{person}")
}

/// An API key as stored, without its hash.
pub struct KeyRow {
    pub id: String,
    pub account: String,
    pub name: String,
    pub shown: String,
    pub status: String,
    pub created_at_ms: i64,
    pub revoked_at_ms: Option<i64>,
    /// JSON, or an empty text.
    pub settings: String,
    /// The person who made the key, if its account is an organisation's.
    pub member: Option<String>,
    /// Allowed models of that person, as in [`KeyOwner`].
    pub member_models: String,
    /// Whether it is the login of a program.
    pub is_login: bool,
}

pub(crate) const ACCOUNT_COLUMNS: &str = "id, email, admin, viewer, status, deleted_at_ms, created_at_ms, trial_micro, trial_ends_at_ms, granted_at_ms, organisation";

/// SQL for whether an account takes part: it is active, and its holder has not deleted it. The
/// statement must name the table `account`.
pub(crate) const IS_ACTIVE: &str = "account.status = 'active' AND account.deleted_at_ms IS NULL";

/// SQL for whether the account `a` may begin requests: it is active, and no request holds credits
/// of a payment that was taken back.
pub(crate) const MAY_SPEND: &str =
    "a.status = 'active' AND NOT EXISTS(SELECT 1 FROM payment_order p
  WHERE p.account = a.id AND p.clawback <> 'none' AND p.clawback = 'held')";

/// SQL for the membership of the key `k`, its budget and its models, as [`KeyMember::decode`] takes
/// them.
pub(crate) const KEY_MEMBER: &str = "CASE WHEN k.member IS NULL THEN '' ELSE k.account || '/' || k.member END,
  ifnull((SELECT m.budget FROM membership m WHERE m.account = k.account AND m.person = k.member), ''),
  ifnull((SELECT m.models FROM membership m WHERE m.account = k.account AND m.person = k.member), '')";

pub(crate) const KEY_COLUMNS: &str =
    "id, account, name, shown, status, created_at_ms, revoked_at_ms, settings, member,
     EXISTS(SELECT 1 FROM login WHERE login.key = api_key.id),
     ifnull((SELECT m.models FROM membership m WHERE m.account = api_key.account AND m.person = api_key.member), '')";

pub(crate) fn account_row(row: &Row<'_>) -> rusqlite::Result<AccountRow> {
    let trial = row
        .get::<_, Option<i64>>("trial_micro")?
        .zip(row.get("trial_ends_at_ms")?);
    Ok(AccountRow {
        id: row.get("id")?,
        email: row.get("email")?,
        role: Role::from_flags(row.get("admin")?, row.get("viewer")?),
        active: row.get::<_, String>("status")? == "active",
        deleted: row.get::<_, Option<i64>>("deleted_at_ms")?.is_some(),
        created_at_ms: row.get("created_at_ms")?,
        trial: trial.map(|(micro, ends)| (Micro::new(micro), ends)),
        granted: row.get::<_, Option<i64>>("granted_at_ms")?.is_some(),
        organisation: row.get("organisation")?,
    })
}

pub(crate) fn key_row(row: &Row<'_>) -> rusqlite::Result<KeyRow> {
    Ok(KeyRow {
        id: row.get(0)?,
        account: row.get(1)?,
        name: row.get(2)?,
        shown: row.get(3)?,
        status: row.get(4)?,
        created_at_ms: row.get(5)?,
        revoked_at_ms: row.get(6)?,
        settings: row.get(7)?,
        member: row.get(8)?,
        is_login: row.get(9)?,
        member_models: row.get(10)?,
    })
}

pub(crate) fn first_column<T: rusqlite::types::FromSql>(row: &Row<'_>) -> rusqlite::Result<T> {
    row.get(0)
}
