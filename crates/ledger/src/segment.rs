//! A segment is a signed file with a range of the ledger's entries, and names its predecessor.
//!
//! The file has the entries in compressed blocks, the balance of every account at its end, an index
//! of references, and a manifest that the installation has signed. docs/segments.md describes the
//! bytes, so that other programs can read segments. This module must not open a database, and must
//! not decide which entries are sealed: `sealing.rs` does. Read next: `segment/writer.rs`,
//! `segment/reader.rs`, `segment/block.rs`, `segment/block_cache.rs`.

mod block;
mod block_cache;
mod detail;
mod fault;
mod identity;
mod manifest;
mod reader;
mod reference_index;
mod varint;
mod writer;

pub(crate) use block::ENTRY_KINDS;
pub use block::request_time_ms;
pub use block_cache::BlockCache;
pub use fault::SegmentFault;
pub use identity::InstallationKey;
pub use manifest::{SealedBalance, SegmentManifest};
pub use reader::SegmentReader;
pub use writer::{SegmentStart, SegmentWriter};
