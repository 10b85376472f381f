//! Counts tokens in one convention: input excludes cache reads, cache writes and audio, output
//! excludes audio.
//!
//! This module must not depend on JSON, a price or a protocol's framing.
//!
//! Read next: `usage/tokens.rs` (the usage itself), `usage/counters.rs` (the counters of a
//! vendor), `usage/metering.rs` (their meaning), `counters.rs` (reads them from a usage object),
//! `usage/estimator.rs` (the estimate without them).

mod bounds;
mod counted_unit;
mod counters;
mod estimator;
mod metering;
mod passes;
mod server_tool;
mod tier;
mod tokens;

pub use bounds::{MeteringTerms, UsageBounds};
pub use counted_unit::CountedUnit;
pub use counters::{
    CacheWrites, ChatCounters, MessagesCounters, MessagesUsage, UnknownUsage, VendorCounters,
};
pub use estimator::{HUNDREDTHS_PER_TEXT_BYTE, TokenRate, UsageEstimator, text_tokens};
pub use metering::{Excess, MeteredUsage, UsageVerdict, meter};
pub use passes::{CompactionPass, CompactionPasses};
pub use server_tool::{PerTool, ServerTool};
pub use tier::{InferenceGeo, ServiceTier, Speed};
pub use tokens::Usage;
