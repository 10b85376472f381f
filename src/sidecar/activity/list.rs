//! Lists the rows of an account's activity, newest first. The responses come from the ledger, the
//! refused requests from `refused.db`.
//!
//! This file must not render a page.

use super::query::ListFilter;
use super::row::{ActivityRow, complete, row};
use crate::billing::Receipt;
use crate::billing::activity::ActivityCursor;
use crate::refused_requests::{RefusedCursor, RefusedRequest, or_left_out};
use crate::sidecar::key_names::KeyNames;
use crate::sidecar::state::SidecarState;
use crate::sidecar::viewed_account::ViewedAccount;
use ledger::{EndingDetail, StoreError};

const LATEST_ROWS: u32 = 5;

enum Item {
    Response(Box<Receipt>),
    Refused(Box<RefusedRequest>),
}

/// Lists at most `limit` rows below `before`. With more, the last row's position is returned too.
pub fn list(
    app: &SidecarState,
    viewed: &ViewedAccount,
    filter: &ListFilter,
    before: Option<ActivityCursor>,
    limit: u32,
) -> Result<(Vec<ActivityRow>, Option<ActivityCursor>), StoreError> {
    let account = &viewed.id;
    // One more row than the page shows is read, to know whether another page follows.
    let more = limit.saturating_add(1);
    let mut items = Vec::new();
    if let Some(filter) = &filter.responses {
        let receipts = app
            .billing
            .pages()
            .activity(account, filter, before, more)?;
        items.extend(
            receipts
                .into_iter()
                .map(|receipt| (receipt.cursor(), Item::Response(Box::new(receipt)))),
        );
    }
    if let (Some(filter), Some(refused)) = (&filter.refused, &app.refused) {
        let before = before.map(refused_cursor);
        let refused = or_left_out(refused.list(account, filter, before, more));
        items.extend(
            refused
                .into_iter()
                .map(|(at, refused)| (position(at), Item::Refused(Box::new(refused)))),
        );
    }
    items.sort_by_key(|(at, _)| std::cmp::Reverse((at.at_ms, at.seq)));
    let shown = items
        .len()
        .min(usize::try_from(limit).unwrap_or(usize::MAX));
    let older = (items.len() > shown)
        .then(|| items.get(..shown)?.last().map(|(at, _)| *at))
        .flatten();
    items.truncate(shown);
    let keys = items.iter().flat_map(|(_, item)| {
        let (response, refused) = match item {
            Item::Response(receipt) => (Some(&receipt.detail), None),
            Item::Refused(refused) => (None, Some(&*refused.key_id)),
        };
        let spenders = response.into_iter().flat_map(EndingDetail::spenders);
        spenders.chain(refused)
    });
    let names = KeyNames::load(&app.accounts, account, keys)?;
    let rows = items.iter().map(|(_, item)| match item {
        Item::Response(receipt) => {
            let mut row = row(viewed, receipt, &names);
            complete(app, viewed, &mut row)?;
            Ok(row)
        }
        Item::Refused(refused) => Ok(ActivityRow::from_refused(viewed, refused, &names)),
    });
    Ok((rows.collect::<Result<_, StoreError>>()?, older))
}

/// Returns the latest responses and refused requests for the overview.
pub fn latest(app: &SidecarState, viewed: &ViewedAccount) -> Result<Vec<ActivityRow>, StoreError> {
    let (rows, _) = list(app, viewed, &ListFilter::default(), None, LATEST_ROWS)?;
    Ok(rows)
}

/// Returns the position of a refused request among all rows. Its sequence numbers lie below those
/// of the ledger, so one cursor fits both.
fn position(RefusedCursor { at_ms, seq }: RefusedCursor) -> ActivityCursor {
    ActivityCursor {
        at_ms,
        seq: seq.saturating_add(i64::MIN),
    }
}

/// Returns the cursor of the refused requests that follow a position.
fn refused_cursor(ActivityCursor { at_ms, seq }: ActivityCursor) -> RefusedCursor {
    RefusedCursor {
        at_ms,
        seq: if seq < 0 { seq - i64::MIN } else { i64::MAX },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_refused_requests_continues_where_the_last_one_ended() {
        for seq in [0, 1, i64::MAX] {
            let cursor = RefusedCursor { at_ms: 7, seq };
            assert!(position(cursor).seq < 0);
            assert_eq!(refused_cursor(position(cursor)), cursor);
        }
        // Below a response, all refused requests of its millisecond follow.
        let response = ActivityCursor { at_ms: 7, seq: 3 };
        assert_eq!(refused_cursor(response).seq, i64::MAX);
    }
}
