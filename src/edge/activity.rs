//! What each account has under way at this process, beside the holds that `billing` knows: the bytes of its bodies.
//!
//! An entry lives as long as somebody uses it. Must not decide limits.

use super::intake::BodyBytes;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Entries from which on unused ones are removed.
const ENTRIES_MIN: usize = 1_024;

/// The activity of accounts, by their ids.
#[derive(Default)]
pub struct ActivityRegistry(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    by_id: HashMap<Arc<str>, Arc<Activity>>,
    /// The number of entries at which unused ones are removed next.
    sweep_at: usize,
}

/// What one account has under way.
#[derive(Default)]
pub struct Activity {
    pub body_bytes: BodyBytes,
}

impl Activity {
    /// Nobody would miss it.
    fn is_idle(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && Arc::strong_count(&self.body_bytes) == 1
    }
}

impl ActivityRegistry {
    pub fn get(&self, id: &Arc<str>) -> Arc<Activity> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = entries.by_id.get(id) {
            return Arc::clone(known);
        }
        if entries.by_id.len() >= entries.sweep_at.max(ENTRIES_MIN) {
            entries.by_id.retain(|_, activity| !activity.is_idle());
            entries.sweep_at = entries.by_id.len().saturating_mul(2);
        }
        Arc::clone(entries.by_id.entry(Arc::clone(id)).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn entries_are_kept_while_they_are_used_and_removed_in_numbers() {
        let registry = ActivityRegistry::default();
        let used: Arc<str> = "used".into();
        let bytes = Arc::clone(&registry.get(&used).body_bytes);
        bytes.store(7, Ordering::Relaxed);
        for number in 0..3 * ENTRIES_MIN {
            registry.get(&number.to_string().into());
        }
        assert_eq!(registry.get(&used).body_bytes.load(Ordering::Relaxed), 7);
        let kept = registry.0.lock().unwrap().by_id.len();
        assert!(kept <= 2 * ENTRIES_MIN, "{kept} entries are kept");
    }
}
