//! Maintains the ledger's anchor, a file next to `ledger.db` that names the last committed entry.
//!
//! The anchor is written after each commit that adds entries, before the commit is reported as
//! successful. It is never synced, because the ledger is synced before. So after any crash the
//! anchor can only be behind, and its entry is in the ledger. A ledger without that entry is an
//! older or a different one. The ledger records since when it has an anchor (table `anchored`). The
//! first anchor is on disk before that row, so an anchor that is missing or empty next to such a
//! ledger was lost. The anchor's content must not flow back into the ledger.

#[cfg(test)]
mod tests;

use crate::StoreError;
use crate::entry::chain::{ChainHead, HASH_BYTES};
use crate::entry::hex::{decode_hex, encode_hex};
use crate::sealed::files::sealed_hash;
use crate::sqlite;
use crate::statements::chain::chain_head;
use base::regular_file::{open_regular_with, read_regular};
use base::telemetry::METRICS;
use base::{clock, file_owner};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

pub const ANCHOR_FILE: &str = "ledger.anchor";
/// Maximum number of bytes to read. The file's only line is shorter.
const MAX_READ_BYTES: usize = 256;

/// The reason why a ledger does not match its anchor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnchorFault {
    /// The anchor is missing, although the ledger has entries.
    Missing,
    Empty,
    Unreadable,
    /// The ledger ends before the anchor's entry.
    Older {
        anchor: ChainHead,
        ledger: ChainHead,
    },
    /// The ledger has a different entry at the anchor's position.
    Other {
        anchor: ChainHead,
        ledger: ChainHead,
    },
}

impl fmt::Display for AnchorFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => write!(
                f,
                "{ANCHOR_FILE} is missing: without it, the gateway cannot detect an older ledger.db"
            ),
            Self::Empty => write!(f, "{ANCHOR_FILE} is empty: it is damaged"),
            Self::Unreadable => write!(f, "{ANCHOR_FILE} cannot be read: it is damaged"),
            Self::Older { anchor, ledger } => {
                write!(
                    f,
                    "ledger.db is older than it was: it ends with {ledger}, but {ANCHOR_FILE} names {anchor}"
                )
            }
            Self::Other { anchor, ledger } => {
                write!(
                    f,
                    "ledger.db is not the one that was written last: it ends with {ledger} and lacks {anchor}, which {ANCHOR_FILE} names"
                )
            }
        }
    }
}

pub struct LedgerAnchor(File);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnchorContent {
    Nothing,
    Empty,
    Garbage,
    Head(ChainHead),
}

impl LedgerAnchor {
    /// Opens the anchor in `dir`, or creates it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created or opened.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let mut options = OpenOptions::new();
        let options = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        open_regular_with(options, &dir.join(ANCHOR_FILE))
            .map(Self)
            .map_err(|source| StoreError::io("open the ledger's anchor", source))
    }

    /// Writes `head`. If this fails, the previous content remains, which is behind but not wrong.
    pub fn write(&self, head: &ChainHead) {
        if let Err(error) = self.0.write_all_at(encode(head).as_bytes(), 0) {
            METRICS.ledger_error("anchor");
            log::error!(
                "cannot write {ANCHOR_FILE}: {error}; it lags behind the ledger until the next commit"
            );
        }
    }
}

/// Returns the time in ms since 1970 at which the anchor in `dir` was last written; 0 if unknown.
pub(crate) fn modified_ms(dir: &Path) -> i64 {
    let since = std::fs::metadata(dir.join(ANCHOR_FILE))
        .and_then(|metadata| metadata.modified())
        .ok();
    let since = since.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    since
        .and_then(|since| i64::try_from(since.as_millis()).ok())
        .unwrap_or_default()
}

/// Reads the anchor in `dir`.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub fn read(dir: &Path) -> Result<AnchorContent, StoreError> {
    let bytes = match read_regular(&dir.join(ANCHOR_FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(AnchorContent::Nothing),
        bytes => bytes.map_err(|source| StoreError::io("read the ledger's anchor", source))?,
    };
    Ok(if bytes.is_empty() {
        AnchorContent::Empty
    } else {
        parse(&bytes).map_or(AnchorContent::Garbage, AnchorContent::Head)
    })
}

/// Copies the anchor of `from` to the new folder `to`, if it has valid content.
///
/// # Errors
/// Returns an error if a file cannot be read or written.
pub fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    if let AnchorContent::Head(head) = read(from)? {
        let copy = LedgerAnchor::open(to)?;
        copy.write(&head);
        copy.0
            .sync_all()
            .map_err(|source| StoreError::io("copy the ledger's anchor", source))?;
    }
    Ok(())
}

fn parse(bytes: &[u8]) -> Option<ChainHead> {
    let line = std::str::from_utf8(bytes.get(..bytes.len().min(MAX_READ_BYTES))?)
        .ok()?
        .strip_suffix('\n')?;
    let (text, crc) = line.rsplit_once(' ')?;
    if crc != format!("{:08x}", crc32fast::hash(text.as_bytes())) {
        return None;
    }
    let (seq, hash) = text.split_once(' ')?;
    let hash = decode_hex(hash)?;
    Some(ChainHead {
        seq: seq.parse().ok()?,
        hash,
    })
    .filter(|head| head.hash.len() == HASH_BYTES)
}

/// Strictness with which the opened ledger must match its anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnchorTrust {
    /// The ledger must match its anchor.
    Anchored,
    /// The ledger is opened for reading, whether or not it matches. The anchor does not change.
    Any,
    /// The ledger need not match. The anchor is set to this ledger.
    Accepted,
}

/// Checks the ledger behind `connection` against its anchor, which was read before the ledger.
pub(crate) fn check(
    connection: &Connection,
    named: AnchorContent,
) -> rusqlite::Result<Option<AnchorFault>> {
    let ledger = chain_head(connection)?;
    let anchor = match named {
        AnchorContent::Nothing | AnchorContent::Empty if ledger.seq == 0 => return Ok(None),
        AnchorContent::Nothing => return Ok(Some(AnchorFault::Missing)),
        AnchorContent::Empty => return Ok(Some(AnchorFault::Empty)),
        AnchorContent::Garbage => return Ok(Some(AnchorFault::Unreadable)),
        AnchorContent::Head(anchor) => anchor,
    };
    if anchor.seq == 0 {
        return Ok(None);
    }
    let known: Option<Vec<u8>> = connection
        .query_row(
            "SELECT hash FROM entry WHERE seq = ?1",
            [anchor.seq],
            |row| row.get(0),
        )
        .optional()?;
    let known = match known {
        Some(hash) => Some(hash),
        None => sealed_hash(connection, anchor.seq, &anchor.hash)?,
    };
    Ok(match known {
        Some(hash) if hash == anchor.hash => None,
        None if ledger.seq < anchor.seq => Some(AnchorFault::Older { anchor, ledger }),
        _ => Some(AnchorFault::Other { anchor, ledger }),
    })
}

impl AnchorFault {
    /// Returns the advice for the operator.
    fn remedy(&self) -> &'static str {
        match self {
            Self::Missing | Self::Empty | Self::Unreadable => {
                "Put the anchor back; if you are certain that ledger.db is the newest one, start once with --accept-older-ledger"
            }
            Self::Older { .. } | Self::Other { .. } => {
                "Put the newest ledger.db back; after restoring a backup on purpose, start once with --accept-older-ledger"
            }
        }
    }
}

/// Opens the anchor of the ledger behind `connection`. Returns `None` for a read-only ledger.
pub(crate) fn open_for_ledger(
    dir: &Path,
    connection: &Connection,
    named: AnchorContent,
    trust: AnchorTrust,
) -> Result<Option<LedgerAnchor>, StoreError> {
    if trust == AnchorTrust::Any {
        return Ok(None);
    }
    let sql = |source| StoreError::sqlite("compare the ledger with its anchor", source);
    let mut fault = check(connection, named).map_err(sql)?;
    if fault == Some(AnchorFault::Missing) {
        // Another process may have created the ledger and the anchor since the first read.
        fault = check(connection, read(dir)?).map_err(sql)?;
    }
    match &fault {
        None => {}
        Some(AnchorFault::Missing) if !is_anchored(connection).map_err(sql)? => {
            log::warn!(
                "{ANCHOR_FILE} is missing because the ledger is from an earlier version; created it from the current ledger"
            );
        }
        Some(fault) if trust == AnchorTrust::Accepted => {
            log::warn!("{fault}; accepted because of --accept-older-ledger")
        }
        Some(fault) => return Err(StoreError::Unusable(format!("{fault}. {}", fault.remedy()))),
    }
    establish(dir, connection)?;
    let anchor = LedgerAnchor::open(dir)?;
    if fault.is_some() {
        anchor.write(&chain_head(connection).map_err(sql)?);
    }
    Ok(Some(anchor))
}

/// Returns whether the ledger has had an anchor before.
fn is_anchored(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("SELECT EXISTS (SELECT 1 FROM anchored)", [], |row| {
        row.get(0)
    })
}

/// Creates the anchor unless a valid one exists, and records in the ledger that it has an anchor.
/// The function runs under the ledger's lock, so that only one of several starting processes
/// creates the anchor.
fn establish(dir: &Path, connection: &Connection) -> Result<(), StoreError> {
    let sql = |source| StoreError::sqlite("create the ledger's anchor", source);
    let is_there = || Ok::<_, StoreError>(matches!(read(dir)?, AnchorContent::Head(_)));
    if is_there()? && is_anchored(connection).map_err(sql)? {
        return Ok(());
    }
    let transaction =
        Transaction::new_unchecked(connection, TransactionBehavior::Immediate).map_err(sql)?;
    if !is_there()? {
        create(dir, &chain_head(&transaction).map_err(sql)?)
            .map_err(|source| StoreError::io("create the ledger's anchor", source))?;
    }
    let mark = "INSERT INTO anchored (since) SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM anchored)";
    transaction.execute(mark, [clock::now_ms()]).map_err(sql)?;
    transaction.commit().map_err(sql)
}

/// Creates a complete anchor in place of a missing or unreadable one, and syncs it to disk.
fn create(dir: &Path, head: &ChainHead) -> io::Result<()> {
    let path = dir.join(format!("{ANCHOR_FILE}.new"));
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true);
    let file = file_owner::open(options.mode(0o600), &path)?;
    file.write_all_at(encode(head).as_bytes(), 0)?;
    file.sync_all()?;
    std::fs::rename(path, dir.join(ANCHOR_FILE))?;
    sqlite::sync_dir(dir)
}

fn encode(head: &ChainHead) -> String {
    let text = format!("{:020} {}", head.seq, encode_hex(&head.hash));
    format!("{text} {:08x}\n", crc32fast::hash(text.as_bytes()))
}
