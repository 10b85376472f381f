//! Lists the kinds of failures that a client can distinguish.
//!
//! This file must not contain a status, a text or a surface: `failure/table.rs` has them.
//!
//! Read next: `failure/table.rs`.

/// Declares `Kind` and lists its variants in `Kind::ALL`.
macro_rules! kinds {
    ($(#[$doc:meta])* pub enum Kind { $($(#[$variant_doc:meta])* $variant:ident,)* }) => {
        $(#[$doc])*
        pub enum Kind { $($(#[$variant_doc])* $variant,)* }

        impl Kind {
            pub const ALL: &[Kind] = &[$(Kind::$variant,)*];
        }
    };
}

kinds! {
/// Kind of a failure. Failures of one kind look the same to a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Kind {
    InvalidRequest,
    MissingKey,
    BadKey,
    KeyExpired,
    KeyDisabled,
    AccountSuspended,
    ModelNotAllowed,
    ModelNotFound,
    UnknownPath,
    /// The path belongs to a known API that the gateway does not serve.
    NotSupported,
    WrongMethod,
    /// The client asked for a WebSocket.
    NoWebSocket,
    InsufficientCredits,
    TrialExpired,
    KeySpendLimit,
    /// The member whose key it is has spent their budget.
    MemberBudget,
    RateLimited,
    /// The key or its account has reached its limit of requests, or of tokens, per minute.
    RequestsPerMinute,
    TokensPerMinute,
    /// The key or its account has reached its limit of concurrent requests.
    Concurrent,
    /// The account has reached its limit of requests in flight.
    TooManyOpen,
    /// The key or its account has reached its limit of free requests per minute.
    FreeRequests,
    /// Too many unknown keys arrive at this process, so it does not look this one up.
    KeyLookups,
    /// The requests in flight of the account, or of the connection, have reached the limit of body
    /// bytes in memory.
    AccountBodies,
    ConnectionBodies,
    BodyTooLarge,
    /// The request head has too many bytes or fields.
    HeaderTooLarge,
    /// The client did not send its body in time.
    BodyTimeout,
    ContextTooLong,
    /// A vendor refused the content of the input.
    ContentPolicy,
    UnpricedFeature,
    /// A message thread cannot continue here. The official runner then resends the whole
    /// conversation.
    ThreadUnsupported,
    /// A request with the same idempotency key and body is running.
    IdempotencyRunning,
    /// The idempotency key was used with another body.
    IdempotencyConflict,
    /// The request was completed but its answer is not stored.
    IdempotencyResultUnavailable,
    /// The vendor answered 409.
    Conflict,
    /// The vendor answered 422.
    Unprocessable,
    /// The vendor answered 408.
    VendorRequestTimeout,
    /// The vendor answered 404, and the error does not concern the model.
    VendorNotFound,
    /// A vendor does not know the model that the catalog names. The operator must fix the catalog.
    VendorModelMissing,
    /// A vendor refused the operator's credentials. The operator must fix the key.
    VendorRefusedUs,
    /// The operator's account at the vendor is out of credit. The operator must add credit.
    VendorQuota,
    UpstreamUnreachable,
    UpstreamTimeout,
    /// The vendor's body ended before the answer was complete.
    UpstreamClosed,
    /// The vendor failed, or sent an answer that cannot be read.
    UpstreamFailed,
    /// One event of the vendor exceeds the gateway's limit.
    UpstreamEventTooLarge,
    Overloaded,
    /// Too many large bodies wait for a worker thread, or one has waited too long.
    CpuQueueFull,
    /// This process is low on memory.
    MemoryShort,
    /// This process is low on file descriptors.
    FilesShort,
    /// This process has reached its limit of request body bytes in memory.
    BodiesFull,
    /// This process, or this client's address, has reached its limit of open pages.
    TooManyPages,
    TooManyPagesOfAddress,
    /// This process, or this client's address, has reached its limit of dashboard event streams.
    TooManyLiveStreams,
    TooManyLiveStreamsOfAddress,
    Draining,
    /// Too many ended requests wait for the ledger, and this account has more than its share of
    /// them.
    LedgerBacklog,
    LedgerUnavailable,
    /// The receipt is in a part of the ledger that was moved away.
    ReceiptArchived,
    Internal,
}
}

impl Kind {
    /// Returns whether the vendor or the connection to it caused the failure, so that another
    /// endpoint or model may succeed.
    pub fn is_retryable_elsewhere(self) -> bool {
        matches!(
            self,
            Kind::RateLimited
                | Kind::Overloaded
                | Kind::VendorRequestTimeout
                | Kind::VendorRefusedUs
                | Kind::VendorQuota
                | Kind::VendorModelMissing
                | Kind::UpstreamUnreachable
                | Kind::UpstreamTimeout
                | Kind::UpstreamClosed
                | Kind::UpstreamFailed
        )
    }

    /// Returns whether the gateway itself ended the answer, so its vendor has not failed. Reasons
    /// are an answer that exceeds the gateway's buffer, and a debit that cannot be recorded.
    pub fn is_of_gateway(self) -> bool {
        matches!(self, Kind::UpstreamEventTooLarge | Kind::LedgerUnavailable)
    }
}
