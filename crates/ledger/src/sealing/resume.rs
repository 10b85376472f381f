//! Finishes or discards the incomplete work of a process that died while it sealed or archived.
//!
//! This file must not remove the only copy of an entry.

use super::{BackgroundPace, EXTENSION, PARTIAL};
use crate::StoreError;
use crate::entry::hex::encode_hex;
use crate::sealed::files::sealed_end;
use crate::sealing::archive::set_aside;
use crate::segment::SegmentReader;
use crate::views::Segments;
use base::file_owner;
use rusqlite::OptionalExtension;
use std::path::Path;

impl Segments<'_> {
    /// Finishes or discards the incomplete work of a dead process.
    pub(super) fn resume_sealing(&self, pace: BackgroundPace<'_>) -> Result<(), StoreError> {
        let failed = |source| StoreError::io("look through the folder of segments", source);
        let records = self.segment_records()?;
        for file in file_owner::read_dir(self.0.segments.dir()).map_err(failed)? {
            let path = file.map_err(failed)?.path();
            let is_recorded = records.iter().any(|record| {
                path.file_name()
                    .is_some_and(|name| name == record.file.as_str())
            });
            match path.extension().and_then(|extension| extension.to_str()) {
                Some(PARTIAL) => std::fs::remove_file(&path).map_err(failed)?,
                Some(EXTENSION) if !is_recorded => self.discard_unrecorded(&path)?,
                _ => {}
            }
        }
        for record in records.iter().filter(|record| !record.is_emptied) {
            self.delete_endings(record, pace)?;
        }
        self.remove_archived(&records, pace)
    }

    /// Removes a segment that the ledger has not recorded if the ledger still has its entries. Any
    /// other unrecorded segment is set aside.
    fn discard_unrecorded(&self, path: &Path) -> Result<(), StoreError> {
        let failed = |source| StoreError::io("remove a segment that is not recorded", source);
        let is_in_ledger = match SegmentReader::open(path) {
            Ok(reader) => {
                let last = reader.manifest().last;
                let hash: Option<Vec<u8>> = self.0.read("compare a segment", |connection| {
                    connection
                        .query_row("SELECT hash FROM entry WHERE seq = ?1", [last], |row| {
                            row.get(0)
                        })
                        .optional()
                })?;
                let (done, _) = self.0.read("compare a segment", sealed_end)?;
                reader.manifest().first > done
                    && hash.is_some_and(|hash| encode_hex(&hash) == reader.manifest().last_hash)
            }
            Err(_) => false,
        };
        if is_in_ledger {
            return std::fs::remove_file(path).map_err(failed);
        }
        let why = "the ledger has not recorded this segment, and it is no copy of entries that the ledger has";
        set_aside(path, why).map_err(failed)
    }
}
