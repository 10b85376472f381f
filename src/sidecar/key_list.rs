//! A page of the list of an account's keys: for their holder and for operators.
//!
//! Must not change a key.

use super::display::group_digits;
use super::spending::encode;
use super::state::SidecarState;
use accounts::ApiKey;
use accounts::db::KeyFilter;
use base::clock::now_ms;
use ledger::StoreError;

/// Keys per page.
const ROWS_PER_PAGE: u32 = 50;
/// Maximum length of a search term, in characters.
const MAX_TERM_CHARS: usize = 254;
/// Value of the query for revoked keys.
const REVOKED: &str = "revoked";

/// The part of a page's query that chooses keys.
#[derive(Debug, Clone, Default)]
pub struct KeyListQuery {
    /// A part of a key's name or of the text that it is shown with, or its id.
    pub term: String,
    /// `revoked`; any other text means the keys that are not.
    pub which: String,
    /// Id of the last key of the page before; empty for the first page.
    pub after: String,
}

/// A page of keys.
pub struct KeyList {
    pub keys: Vec<ApiKey>,
    pub term: String,
    pub max_chars: usize,
    /// The revoked keys are listed.
    pub is_revoked: bool,
    /// Numbers of all keys that are not revoked, and that are.
    pub live: String,
    pub revoked: String,
    /// No key exists at all.
    pub is_empty: bool,
    pub live_url: String,
    pub revoked_url: String,
    pub first: Option<String>,
    pub older: Option<String>,
}

impl KeyList {
    /// Reads the page that `query` names; with `member`, of the keys of that member of an
    /// organisation. `path`: of the page that shows it.
    pub fn load(
        app: &SidecarState,
        account: &str,
        member: Option<&str>,
        path: &str,
        query: &KeyListQuery,
    ) -> Result<Self, StoreError> {
        let (keys, now_ms) = (app.accounts.api_keys(), now_ms());
        let term: String = query.term.trim().chars().take(MAX_TERM_CHARS).collect();
        let is_revoked = query.which == REVOKED;
        let filter = KeyFilter {
            // A search finds each key, whatever became of it.
            is_revoked: term.is_empty().then_some(is_revoked),
            term: &term,
            member,
            now_ms,
        };
        let after = (!query.after.is_empty()).then_some(&*query.after);
        // One more than is shown, to know whether there is another page.
        let mut found = keys.page(account, &filter, after, ROWS_PER_PAGE + 1)?;
        let shown = usize::try_from(ROWS_PER_PAGE).unwrap_or(usize::MAX);
        let has_more = found.len() > shown;
        found.truncate(shown);
        let url = |which: &str, after: &str| {
            let mut fields = vec![("key_q", &*term), ("keys", which), ("after", after)];
            fields.retain(|(_, value)| !value.is_empty());
            format!("{path}?{}#keys", encode(&fields))
        };
        let which = if is_revoked { REVOKED } else { "" };
        let (live, revoked) = keys.count(account, member, now_ms)?;
        Ok(Self {
            first: after.map(|_| url(which, "")),
            older: found
                .last()
                .filter(|_| has_more)
                .map(|last| url(which, &last.id)),
            live_url: format!("{path}#keys"),
            revoked_url: format!("{path}?keys={REVOKED}#keys"),
            keys: found,
            term,
            max_chars: MAX_TERM_CHARS,
            is_revoked,
            is_empty: live + revoked == 0,
            live: group_digits(live),
            revoked: group_digits(revoked),
        })
    }
}
