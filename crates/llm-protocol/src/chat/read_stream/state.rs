//! Emits the opaque state that a chat vendor wants back with a message or a call.
//!
//! This file must not parse the state: `chat/opaque_state.rs` does.

use super::slots::SlotAllocator;
use crate::chat::opaque_state::OpaqueState;
use crate::ir::event::{Event, EventSink, OutputPart};
use crate::json::JsonStr;
use crate::reasoning_token::{self, StatePlace};

/// Warning for state that the vendor wants back with the next request and that is too long for a
/// token.
const DROPPED_STATE: &str = "dropped:state";

/// Emits the state in a token, and clears it.
pub(super) fn emit_state(
    state: &mut OpaqueState,
    place: StatePlace,
    slots: &mut SlotAllocator,
    to: &mut dyn EventSink,
) {
    if state.is_empty() {
        return;
    }
    match reasoning_token::pack_state(place, |json| state.write(json)) {
        Some(token) => to.event(Event::Open {
            slot: slots.allocate(),
            piece: OutputPart::State {
                token: JsonStr::from_value(token),
            },
        }),
        None => to.event(Event::Warning(DROPPED_STATE)),
    }
    *state = OpaqueState::default();
}
