//! Manages the accounts in `app.db`: their e-mails, roles, statuses and rates.
//!
//! This file must not depend on money, because an account's ledger is in `billing`. Next:
//! `api_key.rs` (the keys of an account), `sign_up.rs` (how an account is opened).

use super::error::AccountError;
use super::mailbox;
use crate::db::{AccountRow, AppDb, Role};
use crate::key_settings::RateSettings;
use config::redis_address::RedisAddress;
use ledger::StoreError;
use ledger::postgres::PostgresHome;
use ledger::sqlite::missing;
use std::path::Path;
use std::sync::Arc;

/// Access to `app.db`. Clones share one database.
#[derive(Clone)]
pub struct Accounts {
    pub(crate) db: Arc<AppDb>,
    /// Address of the shared store in which edges read keys, if there is one.
    pub(crate) shared_store: Option<RedisAddress>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountStatus {
    Active,
    Suspended,
    /// The holder closed the account permanently. Only [`Accounts::delete`] sets this status.
    Deleted,
}

impl AccountStatus {
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Suspended => "suspended",
            Self::Deleted => "deleted",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub id: String,
    pub email: String,
    pub role: Role,
    pub status: AccountStatus,
    pub created_at_ms: i64,
    /// Name of the organisation that the account belongs to; `None` if it is one person's.
    pub organisation: Option<String>,
}

impl Account {
    /// Returns what people call the account: the name of its organisation, or its e-mail.
    pub fn label(&self) -> &str {
        self.organisation.as_deref().unwrap_or(&self.email)
    }
}

impl Accounts {
    /// Opens `app.db` in `data_dir`.
    ///
    /// # Errors
    /// Returns an error if `app.db` cannot be opened or migrated, or if it has no account although
    /// the ledger has entries.
    pub fn open(data_dir: &Path) -> Result<Self, StoreError> {
        Self::open_with_home(data_dir, None)
    }

    /// Opens the connections for point reads, so that no thread that serves requests opens a file.
    ///
    /// # Errors
    /// Returns an error if a connection cannot be opened.
    pub fn open_readers(&self) -> Result<(), StoreError> {
        self.db.open_readers()
    }

    /// Opens `app.db` like [`Accounts::open`]; with `home`, the file is a copy of that PostgreSQL
    /// database.
    ///
    /// # Errors
    /// Returns the errors of [`Accounts::open`].
    pub fn open_with_home(
        data_dir: &Path,
        home: Option<&PostgresHome>,
    ) -> Result<Self, StoreError> {
        // A copy receives its missing rows from PostgreSQL, so only an original is checked.
        if home.is_none()
            && let Some(fault) = missing::app(data_dir)?
        {
            return Err(StoreError::Unusable(fault));
        }
        Ok(Self {
            db: Arc::new(AppDb::open(data_dir, home)?),
            shared_store: None,
        })
    }

    /// Sets the shared store in which edges read keys; `None` if there is none.
    #[must_use]
    pub fn with_shared_store(self, address: Option<RedisAddress>) -> Self {
        Self {
            shared_store: address,
            ..self
        }
    }

    /// Returns the shared store in which edges read keys, if there is one.
    pub fn shared_store(&self) -> Option<&RedisAddress> {
        self.shared_store.as_ref()
    }

    /// Returns the rows of `app.db` other than accounts: notices, webhooks, published keys.
    pub fn database(&self) -> &Arc<AppDb> {
        &self.db
    }

    /// Finds an account by its id or its e-mail.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn find(&self, id_or_email: &str) -> Result<Option<Account>, StoreError> {
        // An id contains no @, so a text with an @ is an e-mail.
        let found = if id_or_email.contains('@') {
            let email = mailbox::email_key(id_or_email);
            self.db
                .people()
                .account_by_email(&email)?
                .map(|(row, _)| row)
        } else {
            self.db.people().account(id_or_email)?
        };
        Ok(found.map(Account::from))
    }

    /// Sets an account's status. Returns false if there is no such account. The keys of a suspended
    /// account are refused from the next request on.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn set_status(&self, id: &str, status: AccountStatus) -> Result<bool, StoreError> {
        self.db
            .people()
            .set_active(id, status == AccountStatus::Active, None)
    }

    /// Returns the rates of an account (by id), which replace the defaults of the config file.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn account_rates(&self, account: &str) -> Result<RateSettings, StoreError> {
        RateSettings::decode(&self.db.people().account_rates(account)?.unwrap_or_default())
    }

    /// Sets the rate settings of an account from the next request on. Returns false if there is no
    /// such account.
    ///
    /// # Errors
    /// Returns an error if a rate is above the maximum, or if the database fails.
    pub fn set_account_rates(
        &self,
        account: &str,
        rates: &RateSettings,
    ) -> Result<bool, AccountError> {
        rates.validate()?;
        Ok(self
            .db
            .people()
            .set_account_rates(account, &rates.encode())?)
    }
}

impl From<AccountRow> for Account {
    fn from(row: AccountRow) -> Self {
        let status = match (row.deleted, row.active) {
            (true, _) => AccountStatus::Deleted,
            (false, true) => AccountStatus::Active,
            (false, false) => AccountStatus::Suspended,
        };
        Self {
            id: row.id,
            email: row.email,
            role: row.role,
            status,
            created_at_ms: row.created_at_ms,
            organisation: row.organisation,
        }
    }
}
