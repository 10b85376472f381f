//! The request that the unit tests of readers and writers translate.

use super::TranslationRequest;
use crate::Protocol;
use crate::capabilities::{ModelCapabilities, TranslationTarget};
use crate::profile::VendorProfile;
use crate::usage::UsageEstimator;

impl<'a> TranslationRequest<'a> {
    /// Creates the request as the readers' and writers' unit tests need it: for the vendor that
    /// defined the protocol, without a limit of ours.
    pub(crate) fn in_test(
        surface: Protocol,
        body: &'a [u8],
        max_output_tokens: u64,
        accepts: &'a ModelCapabilities,
    ) -> Self {
        let target = TranslationTarget {
            upstream_model: "upstream-model",
            public_model: "public-model",
            max_output_tokens,
            profile: VendorProfile::official(accepts.protocol()),
            accepts,
        };
        let account_id = "acct_1";
        let request_id = "req_0";
        let estimator = UsageEstimator::default();
        TranslationRequest {
            surface,
            body,
            target,
            account_id,
            output_limit: None,
            strict: false,
            clock: || 0,
            request_id,
            estimator,
        }
    }
}
