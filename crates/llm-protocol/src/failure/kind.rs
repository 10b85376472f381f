//! The kinds of failures, as far as a caller can distinguish them.
//!
//! This file must not know a status, a text or a surface: `failure/table.rs` does.
//!
//! Read next: `failure/table.rs`.

/// Declares `Kind` and lists its variants in `Kind::ALL`.
macro_rules! kinds {
    ($(#[$doc:meta])* pub enum Kind { $($(#[$variant_doc:meta])* $variant:ident,)* }) => {
        $(#[$doc])*
        pub enum Kind { $($(#[$variant_doc])* $variant,)* }

        impl Kind {
            /// All kinds, in the order of the declaration.
            pub const ALL: &[Kind] = &[$(Kind::$variant,)*];
        }
    };
}

kinds! {
/// Kind of a failure, as far as a caller can distinguish it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Kind {
    InvalidRequest,
    MissingKey,
    BadKey,
    KeyExpired,
    KeyDisabled,
    /// The account of the key is suspended.
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
    /// Too many unknown keys arrive at this process to look this one up.
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
    /// A vendor's 409.
    Conflict,
    /// A vendor's 422.
    Unprocessable,
    /// A vendor's 408.
    VendorRequestTimeout,
    /// A vendor's 404 that does not concern the model.
    VendorNotFound,
    /// A vendor does not know the model that the catalog names. The operator must fix it.
    VendorModelMissing,
    /// A vendor refused the operator's credentials. The operator must fix it.
    VendorRefusedUs,
    /// The operator's account at the vendor is out of credit. The operator must fix it.
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
    /// Too many ended requests wait for the ledger, and more of this account than its share.
    LedgerBacklog,
    LedgerUnavailable,
    /// The receipt is in a part of the ledger that was moved away.
    ReceiptArchived,
    Internal,
}
}

impl Kind {
    /// Returns whether the cause is the vendor or the connection to it, not the request: another
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

    /// Returns whether the gateway itself ended the answer, so that its vendor has not failed: the
    /// answer exceeds the gateway's buffer, or its debit cannot be recorded.
    pub fn is_of_gateway(self) -> bool {
        matches!(self, Kind::UpstreamEventTooLarge | Kind::LedgerUnavailable)
    }
}
