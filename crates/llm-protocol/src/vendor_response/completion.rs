//! Decides when a vendor's answer is complete. It applies to every vendor protocol and surface, to
//! passthrough and translation, to streams and whole answers.
//!
//! | stop reason | usage | last event | what follows                              | verdict                           |
//! |-------------|-------|------------|-------------------------------------------|-----------------------------------|
//! | no          | any   | any        | anything                                  | cut off, not billed               |
//! | yes         | any   | yes        | anything                                  | complete                          |
//! | no          | last  | `[DONE]`, or a clean end (chat)    ||| complete, the reason is derived   |
//! | yes         | yes   | no         | end, reset, silence, garbage, error event | complete                          |
//! | yes         | no    | no         | end, reset, silence, garbage              | complete, the usage is estimated  |
//! | yes         | no    | no         | error event                               | failed with the vendor's error    |
//!
//! * The stop reason: `finish_reason` of every requested choice (chat), `stop_reason`
//!   (messages), `response.completed` or `response.incomplete` (responses), or the response's
//!   `status` in a whole body.
//! * The last event: `[DONE]` (chat), `message_stop` (messages), the stop reason itself
//!   (responses), the end of a whole body. Proxies write `[DONE]` when their own vendor broke off,
//!   so it proves nothing without a stop reason.
//! * A complete answer is billed and ends cleanly: the gateway writes a missing usage and last
//!   event.
//! * A stop reason without usage and last event completes the answer, because the client has every
//!   token of it. An error would make the client pay for a second answer.
//! * Content after a stop reason withdraws it until the last event: some vendors send a reason
//!   with every chunk.
//!
//! This file must not depend on a protocol, or on how long the gateway waits for the rest:
//! `edge/intake/buffered_session.rs` does.

use crate::ir::event::{ReadResult, UpstreamError};

/// The part of an answer that has a stop reason.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum StopReasonStatus {
    /// At least one of the choices that began has no stop reason.
    #[default]
    Missing,
    /// Each choice that began has a stop reason. The client requested more choices, and some
    /// servers return fewer.
    Begun,
    /// Each requested choice has a stop reason.
    All,
}

impl StopReasonStatus {
    /// Returns the stop reason of an answer with one choice.
    pub fn from_bool(has_come: bool) -> Self {
        if has_come { Self::All } else { Self::Missing }
    }
}

/// The position of the usage in a chat stream. Some vendors end an answer with the usage instead of
/// a finish reason.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum UsagePlace {
    /// No usage has arrived.
    #[default]
    Missing,
    /// Output followed the usage.
    BeforeOutput,
    /// The usage came with output, or more than once: some vendors send a running count.
    WithOutput,
    /// One usage came, after the last output.
    AfterOutput,
}

impl UsagePlace {
    pub fn record_chunk(&mut self, has_usage: bool, has_output: bool) {
        *self = match (*self, has_usage, has_output) {
            (Self::Missing | Self::AfterOutput, true, false) => Self::AfterOutput,
            (_, true, _) => Self::WithOutput,
            (Self::Missing, false, true) => Self::Missing,
            (_, false, true) => Self::BeforeOutput,
            (place, false, false) => place,
        };
    }

    /// Returns whether the answer is complete if its stream ends here. `is_done` says that `[DONE]`
    /// has arrived, not only the end of the body.
    pub fn ends_answer(self, is_done: bool) -> bool {
        self == Self::AfterOutput || self == Self::WithOutput && is_done
    }
}

/// The parts of an answer's end that have arrived so far.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    stop_reason: StopReasonStatus,
    is_withdrawn: bool,
    has_last_event: bool,
}

impl Completion {
    /// Creates the state of an answer for which the gateway itself wrote the stop reason and the
    /// last event.
    pub fn from_gateway_end() -> Self {
        Self {
            stop_reason: StopReasonStatus::All,
            is_withdrawn: false,
            has_last_event: true,
        }
    }

    /// Sets which part of the answer has a stop reason.
    pub fn set_stop_reason(&mut self, stop_reason: StopReasonStatus) {
        self.stop_reason = stop_reason;
    }

    /// Records content that came after its own stop reason.
    pub fn withdraw_stop_reason(&mut self) {
        self.is_withdrawn = true;
    }

    /// Records the protocol's last event, or the end of a whole body.
    ///
    /// # Errors
    /// Returns [`UpstreamError::Cut`] if no stop reason has arrived.
    pub fn record_last_event(&mut self) -> ReadResult {
        if self.stop_reason == StopReasonStatus::Missing {
            return Err(UpstreamError::Cut);
        }
        self.has_last_event = true;
        Ok(())
    }

    /// Returns whether the stop reason has arrived. The answer is then complete even if no byte
    /// follows.
    pub fn has_stopped(&self) -> bool {
        self.has_last_event || self.stop_reason == StopReasonStatus::All && !self.is_withdrawn
    }

    pub fn is_complete(&self) -> bool {
        self.has_last_event
    }

    /// Returns whether the stop reason has arrived and the last event has not.
    pub fn is_finishing(&self) -> bool {
        self.has_stopped() && !self.has_last_event
    }

    /// Decides whether an answer without a last event is complete. `fault` is the error that
    /// prevents further reading, or `None` if the body ended.
    ///
    /// # Errors
    /// Returns the error, or [`UpstreamError::Cut`], if the answer is not complete.
    pub fn check_end(&self, has_usage: bool, fault: Option<UpstreamError>) -> ReadResult {
        match fault {
            Some(UpstreamError::Vendor(error)) if !(self.has_stopped() && has_usage) => {
                Err(UpstreamError::Vendor(error))
            }
            _ if self.has_stopped() => Ok(()),
            fault => Err(fault.unwrap_or(UpstreamError::Cut)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::VendorError;

    #[test]
    fn a_usage_ends_an_answer_where_no_output_follows_it() {
        let (text, counted, usage) = ((false, true), (true, true), (true, false));
        // By `[DONE]`, and by the end of the body.
        for (chunks, expected) in [
            (&[text][..], [false, false]),
            (&[text, usage], [true, true]),
            (&[text, usage, usage], [true, true]),
            (&[text, counted], [true, false]),
            (&[counted, counted], [true, false]),
            (&[counted, usage], [true, false]),
            (&[usage, text], [false, false]),
            (&[text, usage, text], [false, false]),
            (&[usage, text, usage], [true, false]),
        ] {
            let mut place = UsagePlace::default();
            for (has_usage, has_output) in chunks {
                place.record_chunk(*has_usage, *has_output);
            }
            assert_eq!(
                [true, false].map(|is_done| place.ends_answer(is_done)),
                expected,
                "{chunks:?}"
            );
        }
    }

    fn faults() -> [Option<UpstreamError>; 5] {
        let error = UpstreamError::Vendor(VendorError::default());
        [
            None,
            Some(UpstreamError::NotJson),
            Some(UpstreamError::TooLarge),
            Some(UpstreamError::Cut),
            Some(error),
        ]
    }

    /// Tests each row of the table in the module's documentation.
    #[test]
    fn an_answer_is_complete_once_its_stop_reason_has_come() {
        for has_usage in [false, true] {
            for fault in faults() {
                let mut completion = Completion::default();
                let expected = fault.clone().unwrap_or(UpstreamError::Cut);
                assert_eq!(
                    completion.check_end(has_usage, fault.clone()),
                    Err(expected),
                    "{has_usage}"
                );
                assert_eq!(completion.record_last_event(), Err(UpstreamError::Cut));
                assert!(!completion.is_complete() && !completion.is_finishing());

                completion.set_stop_reason(StopReasonStatus::All);
                assert!(completion.is_finishing() && !completion.is_complete());
                let is_error = matches!(fault, Some(UpstreamError::Vendor(_)));
                assert_eq!(
                    completion.check_end(has_usage, fault.clone()).is_ok(),
                    has_usage || !is_error,
                    "{fault:?}"
                );

                assert_eq!(completion.record_last_event(), Ok(()));
                assert!(completion.is_complete() && !completion.is_finishing());
            }
        }
    }

    #[test]
    fn content_behind_a_stop_reason_withdraws_it_until_the_last_event() {
        let mut completion = Completion::default();
        completion.set_stop_reason(StopReasonStatus::All);
        completion.withdraw_stop_reason();
        completion.set_stop_reason(StopReasonStatus::All);
        assert!(!completion.is_finishing());
        assert_eq!(completion.check_end(true, None), Err(UpstreamError::Cut));
        assert!(matches!(
            completion.check_end(true, faults()[4].clone()),
            Err(UpstreamError::Vendor(_))
        ));
        assert_eq!(completion.record_last_event(), Ok(()));
        assert!(completion.has_stopped());
    }

    #[test]
    fn fewer_choices_than_were_asked_for_need_the_last_event() {
        let mut completion = Completion::default();
        completion.set_stop_reason(StopReasonStatus::Begun);
        assert_eq!(completion.check_end(true, None), Err(UpstreamError::Cut));
        assert_eq!(completion.record_last_event(), Ok(()));
        assert!(completion.is_complete());
    }
}
