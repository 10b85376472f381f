//! Reads slices of entries in the order of the chain, from the ledger or from its segments. The
//! next slice is read while the previous one is checked.
//!
//! This file must not check an entry.

use super::pace::Pace;
use crate::{IndexFingerprint, LedgerEntry};
use std::sync::mpsc::sync_channel;

/// Calls `check` for every slice, up to the first one that cannot be read, and adds its entries to
/// the fingerprint. At full speed, another thread reads and adds the next slices meanwhile.
///
/// # Errors
/// Returns why a slice cannot be read.
pub(crate) fn for_each_slice<E: Send>(
    slices: &mut (dyn Iterator<Item = Result<Vec<LedgerEntry>, E>> + Send),
    mut fingerprint: Option<&mut IndexFingerprint>,
    pace: &mut Pace,
    check: &mut dyn FnMut(&[LedgerEntry]),
) -> Result<(), E> {
    let slices = slices.inspect(move |slice| {
        if let (Some(fingerprint), Ok(slice)) = (fingerprint.as_deref_mut(), slice) {
            slice.iter().for_each(|entry| fingerprint.add(entry));
        }
    });
    if !pace.share.is_full() {
        for slice in slices {
            check(&slice?);
            pace.rest();
        }
        return Ok(());
    }
    std::thread::scope(|scope| {
        // Three slices are in memory: one being read, one in the channel, and one being checked.
        let (sender, receiver) = sync_channel(1);
        scope.spawn(move || {
            for slice in slices {
                if sender.send(slice).is_err() {
                    break;
                }
            }
        });
        for slice in receiver {
            check(&slice?);
        }
        Ok(())
    })
}
