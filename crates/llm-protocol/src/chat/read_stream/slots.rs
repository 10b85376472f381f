//! Numbers the parts of an answer. The number of a part is its slot.

#[derive(Debug, Default)]
pub(crate) struct SlotAllocator(u32);

impl SlotAllocator {
    pub fn is_used(&self) -> bool {
        self.0 > 0
    }

    pub fn allocate(&mut self) -> u32 {
        let slot = self.0;
        self.0 = slot.saturating_add(1);
        slot
    }
}
