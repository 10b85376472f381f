//! Parses the filters of the table and of the download from the URL.
//!
//! This file must not read the ledger.

use crate::billing::activity::{ActivityCursor, ActivityFilter, RequestOutcome};
use crate::refused_requests::RefusedFilter;
use crate::sidecar::error::PageError;
use crate::sidecar::form::FormFault;
use crate::sidecar::page_cursor::parse_cursor;
use crate::sidecar::state::SidecarState;
use crate::sidecar::viewed_account::ViewedAccount;
use accounts::db::KeyFilter;
use base::clock::{day_start_ms, now_ms};
use serde::Deserialize;

const DAY_MS: i64 = 86_400_000;

/// Value of the outcome filter for requests that the gateway refused, which have no response.
pub const REFUSED: &str = "refused";

/// The parts of a filtered list. A part that is `None` has no rows in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListFilter {
    pub responses: Option<ActivityFilter>,
    pub refused: Option<RefusedFilter>,
}

impl Default for ListFilter {
    fn default() -> Self {
        Self {
            responses: Some(ActivityFilter::default()),
            refused: Some(RefusedFilter::default()),
        }
    }
}

/// Filters from the URL's query. An empty value means no filter.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct ActivityQuery {
    pub(super) key: String,
    pub(super) model: String,
    pub(super) outcome: String,
    pub(super) from: String,
    pub(super) to: String,
    /// Id of a request or a conversation whose page to open.
    pub(super) q: String,
    /// Position of the last row of the previous page.
    pub(super) before: String,
}

impl ActivityQuery {
    /// # Errors
    /// Returns the fault of the filter as a text for the user.
    pub(super) fn filter(&self) -> Result<ListFilter, FormFault> {
        let non_empty = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let day = |field: &'static str, text: &str| match text {
            "" => Ok(None),
            text => day_start_ms(text)
                .map(Some)
                .ok_or_else(|| FormFault::at(field, "Write a day as 2026-11-21.")),
        };
        let outcome = match self.outcome.as_str() {
            "" | REFUSED => None,
            name => Some(RequestOutcome::parse(name).ok_or_else(|| {
                FormFault::at("outcome", "Unknown outcome. Choose one from the list.")
            })?),
        };
        let (from_ms, to_ms) = (
            day("from", &self.from)?,
            day("to", &self.to)?.map(|start_ms| start_ms.saturating_add(DAY_MS)),
        );
        if from_ms.zip(to_ms).is_some_and(|(from, to)| from >= to) {
            let fault = "The first day must not be after the last day.";
            return Err(FormFault::at("from", fault));
        }
        let responses = ActivityFilter {
            model: non_empty(&self.model),
            key_id: non_empty(&self.key),
            outcome,
            conversation: None,
            from_ms,
            to_ms,
        };
        let refused = RefusedFilter {
            model: non_empty(&self.model),
            key_id: non_empty(&self.key),
            status: None,
            from_ms,
            to_ms,
        };
        Ok(ListFilter {
            responses: (self.outcome != REFUSED).then_some(responses),
            refused: outcome.is_none().then_some(refused),
        })
    }

    pub(super) fn cursor(&self) -> Result<Option<ActivityCursor>, PageError> {
        parse_cursor(&self.before)
    }

    pub(super) fn is_filtered(&self) -> bool {
        [&self.key, &self.model, &self.outcome, &self.from, &self.to]
            .iter()
            .any(|text| !text.is_empty())
    }
}

/// Restricts the rows of a member of whom alone `viewed` shows any to one key: the chosen one, or
/// else the newest. A chosen key that is not shown, such as one of another account, is not found.
pub fn restrict(
    app: &SidecarState,
    viewed: &ViewedAccount,
    query: ActivityQuery,
) -> Result<ActivityQuery, PageError> {
    if !query.key.is_empty() {
        let key = app.accounts.api_keys().key(Some(&viewed.id), &query.key)?;
        let is_shown = key.is_some_and(|(_, key)| match &viewed.member {
            Some(_) => key.member == viewed.member,
            None => true,
        });
        return is_shown.then_some(query).ok_or(PageError::NotFound);
    }
    let Some(member) = &viewed.member else {
        return Ok(query);
    };
    let filter = KeyFilter {
        member: Some(member),
        now_ms: now_ms(),
        ..KeyFilter::default()
    };
    let newest = app.accounts.api_keys().page(&viewed.id, &filter, None, 1)?;
    // Without a key, nothing has been used. No key has this id.
    let key = newest
        .into_iter()
        .next()
        .map_or_else(|| "none".to_owned(), |key| key.id);
    Ok(ActivityQuery { key, ..query })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query_with(change: impl FnOnce(&mut ActivityQuery)) -> ActivityQuery {
        let mut query = ActivityQuery::default();
        change(&mut query);
        query
    }

    #[test]
    fn the_last_day_of_a_filter_is_in_it() {
        let filter = query_with(|query| {
            query.from = "1970-01-02".into();
            query.to = "1970-01-02".into();
            query.outcome = "vendor_cut".into();
        });
        let expected = ActivityFilter {
            outcome: Some(RequestOutcome::VendorCut),
            from_ms: Some(DAY_MS),
            to_ms: Some(2 * DAY_MS),
            ..ActivityFilter::default()
        };
        let expected = ListFilter {
            responses: Some(expected),
            refused: None,
        };
        assert_eq!(filter.filter(), Ok(expected));
        assert_eq!(query_with(|_| ()).filter(), Ok(ListFilter::default()));
        let refused = query_with(|query| query.outcome = REFUSED.into());
        let expected = ListFilter {
            responses: None,
            ..ListFilter::default()
        };
        assert_eq!(refused.filter(), Ok(expected));
        for wrong in [
            query_with(|query| query.from = "yesterday".into()),
            query_with(|query| query.to = "2026-02-30".into()),
            query_with(|query| query.outcome = "lost".into()),
            query_with(|query| {
                query.from = "1970-01-03".into();
                query.to = "1970-01-02".into();
            }),
        ] {
            assert!(wrong.filter().is_err());
        }
    }

    #[test]
    fn a_page_begins_at_a_place_or_nowhere() {
        let cursor = |text: &str| query_with(|query| query.before = text.into()).cursor();
        assert!(matches!(
            cursor("17.-3"),
            Ok(Some(ActivityCursor { at_ms: 17, seq: -3 }))
        ));
        assert!(matches!(cursor(""), Ok(None)));
        for bad in ["17", "17.", "x.1", "17.1.1", "99999999999999999999.1"] {
            assert!(matches!(cursor(bad), Err(PageError::NotFound)), "{bad}");
        }
    }
}
