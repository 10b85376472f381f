//! The ending that tests begin with. It has only the required fields; each test sets the values
//! that it checks.

use super::ending::{Ending, EndingDetail, RequestOutcome};
use credits::money::Micro;
use llm_protocol::Protocol;
use llm_protocol::usage::Usage;

impl Ending {
    /// An ending without usage and cost.
    pub(crate) fn in_test(
        request_id: &str,
        account: &str,
        at_ms: i64,
        outcome: RequestOutcome,
    ) -> Self {
        Self {
            request_id: request_id.into(),
            account: account.into(),
            at_ms,
            paid: Micro::ZERO,
            trial: Micro::ZERO,
            writeoff: Micro::ZERO,
            detail: EndingDetail {
                key_id: "key_1".into(),
                key_shown: "gw-sk-…".into(),
                model: "beta-5.2".into(),
                surface: Protocol::Chat,
                vendor: "beta".into(),
                outcome,
                usage: Usage::default(),
                price_version: "pv_1".into(),
                estimated: false,
                implausible: false,
                conversation: None,
                took_ms: None,
                first_token_ms: None,
            },
        }
    }
}
