//! Observes the HTTP/2 frames of a connection. Frames that this process sends may refuse a request;
//! frames that the client sends may be a flood.
//!
//! Pingora and its HTTP/2 library end malformed streams and connections by themselves and do not
//! report it. The only trace that they leave is a RST_STREAM, a GOAWAY with an error, or a bare
//! 400. They also accept an unlimited number of control frames (WINDOW_UPDATE, PRIORITY, PING,
//! frames of an unknown type). This file must not keep or change bytes.

use base::telemetry::refusals::RefusalReason;

const HEAD_BYTES: usize = 9;
/// Number of payload bytes that the observer keeps: the code of a RST_STREAM, the stream and code
/// of a GOAWAY.
const RETAINED_PAYLOAD_BYTES: usize = 8;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

/// Number of bytes in control frames that a client may send for each byte of content in either
/// direction. A client that sends a WINDOW_UPDATE after each frame needs 26 bytes for a frame of
/// content.
const CONTROL_BYTES_PER_CONTENT_BYTE: u64 = 8;
/// Maximum number of control bytes in excess of that allowance: 60 000 PINGs, or a PING every ten
/// seconds for a week.
const MAX_CONTROL_BYTES: u64 = 1_048_576;

const NO_ERROR: u32 = 0;
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;

/// HPACK's static index of `:status: 400`. A response that the gateway writes itself has more
/// fields than that.
const BARE_STATUS_400: u8 = 0x8c;
/// HPACK encoding of `:status: 431`. The status is not in the static table, so the encoder sends it
/// literally the first time on a connection, and as the first dynamic index afterwards.
const BARE_STATUS_431: [u8; 5] = [0x48, 0x83, 0x69, 0x90, 0xff];
const FIRST_DYNAMIC_INDEX: u8 = 0xbe;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusedFrame {
    /// A RST_STREAM or a GOAWAY, with its error code.
    Error(RefusalReason, u32),
    /// A response that consists of a status alone.
    Answer(RefusalReason, u16),
}

#[derive(Debug, Default)]
pub struct FrameObserver {
    sent: FrameReader,
    received: FrameReader,
    /// The stream that last got a bare status. A reset of that stream is not a second refusal.
    answered: [u8; 4],
    /// Number of the client's control bytes that no content byte has offset yet.
    control_bytes: u64,
}

impl FrameObserver {
    /// Parses the next bytes that this process sends, and calls `refused` for each frame that
    /// refuses something.
    pub fn observe_sent(&mut self, bytes: &[u8], mut refused: impl FnMut(RefusedFrame)) {
        let Self {
            sent,
            answered,
            control_bytes,
            ..
        } = self;
        sent.read(bytes, |frame| {
            if frame.is_content() {
                make_up_for(control_bytes, frame.length());
            }
            let Some(refusal) = frame.classify_refusal(*answered) else {
                return;
            };
            if let RefusedFrame::Answer(..) = refusal {
                *answered = frame.stream();
            }
            refused(refusal);
        });
    }

    /// Parses the next bytes of the client, and returns whether the client floods the connection
    /// with control frames.
    pub fn observe_received(&mut self, bytes: &[u8]) -> bool {
        let control_bytes = &mut self.control_bytes;
        self.received.read(bytes, |frame| {
            *control_bytes = control_bytes.saturating_add(HEAD_BYTES as u64);
            if frame.is_content() {
                make_up_for(control_bytes, frame.length());
            } else {
                *control_bytes = control_bytes.saturating_add(frame.length());
            }
        });
        self.control_bytes > MAX_CONTROL_BYTES
    }
}

fn make_up_for(control_bytes: &mut u64, content_bytes: u64) {
    let allowed = content_bytes.saturating_mul(CONTROL_BYTES_PER_CONTENT_BYTE);
    *control_bytes = control_bytes.saturating_sub(allowed);
}

#[derive(Debug, Default)]
struct FrameReader {
    /// The frame's header, followed by the part of the payload that is kept.
    seen: [u8; HEAD_BYTES + RETAINED_PAYLOAD_BYTES],
    filled: usize,
    /// Number of payload bytes that are still missing, once the frame's header is complete.
    left: usize,
}

impl FrameReader {
    /// Parses the next bytes, and calls `found` for each frame that is complete with them.
    fn read(&mut self, mut bytes: &[u8], mut found: impl FnMut(&Self)) {
        while !bytes.is_empty() {
            if self.filled < HEAD_BYTES {
                bytes = self.fill(bytes, HEAD_BYTES);
                if self.filled < HEAD_BYTES {
                    return;
                }
                self.left = usize::try_from(self.length()).unwrap_or(usize::MAX);
            } else {
                let payload = bytes.len().min(self.left);
                let (now, after) = bytes.split_at(payload);
                self.fill(now, HEAD_BYTES + RETAINED_PAYLOAD_BYTES);
                self.left -= payload;
                bytes = after;
            }
            if self.left == 0 {
                found(self);
                self.filled = 0;
            }
        }
    }

    /// Keeps bytes until `until` bytes are kept, and returns the rest.
    fn fill<'a>(&mut self, bytes: &'a [u8], until: usize) -> &'a [u8] {
        let taken = bytes.len().min(until.saturating_sub(self.filled));
        let (now, after) = bytes.split_at(taken);
        self.seen[self.filled..self.filled + taken].copy_from_slice(now);
        self.filled += taken;
        after
    }

    /// Returns the length of the payload in bytes.
    fn length(&self) -> u64 {
        u32::from_be_bytes([0, self.seen[0], self.seen[1], self.seen[2]]).into()
    }

    fn stream(&self) -> [u8; 4] {
        [self.seen[5], self.seen[6], self.seen[7], self.seen[8]]
    }

    /// Returns whether the frame carries a part of a header or of a body.
    fn is_content(&self) -> bool {
        matches!(self.seen[3], DATA | HEADERS | CONTINUATION)
    }

    /// Returns the refusal in a frame, if it is one. `answered` is the stream that last got a bare
    /// status.
    fn classify_refusal(&self, answered: [u8; 4]) -> Option<RefusedFrame> {
        let payload = &self.seen[HEAD_BYTES..self.filled];
        let code = |at: usize| {
            payload
                .get(at..at + 4)
                .and_then(|code| code.try_into().ok())
                .map(u32::from_be_bytes)
        };
        match self.seen[3] {
            HEADERS if payload == [BARE_STATUS_400] => {
                Some(RefusedFrame::Answer(RefusalReason::Http2Stream, 400))
            }
            HEADERS if payload == BARE_STATUS_431 || is_remembered(payload) => {
                Some(RefusedFrame::Answer(RefusalReason::HeaderTooLarge, 431))
            }
            RST_STREAM if self.stream() == answered => None,
            RST_STREAM => match code(0)? {
                // The gateway, or Pingora for it, ends a request that it no longer needs with such
                // a code.
                NO_ERROR | CANCEL | REFUSED_STREAM => None,
                ENHANCE_YOUR_CALM => Some(RefusedFrame::Error(
                    RefusalReason::Http2Flood,
                    ENHANCE_YOUR_CALM,
                )),
                code => Some(RefusedFrame::Error(RefusalReason::Http2Stream, code)),
            },
            GOAWAY => match code(4)? {
                NO_ERROR => None,
                ENHANCE_YOUR_CALM => Some(RefusedFrame::Error(
                    RefusalReason::Http2Flood,
                    ENHANCE_YOUR_CALM,
                )),
                code => Some(RefusedFrame::Error(RefusalReason::Http2Connection, code)),
            },
            _ => None,
        }
    }
}

/// Returns whether a header is one index into the connection's dynamic table.
fn is_remembered(header: &[u8]) -> bool {
    matches!(header, [index] if *index >= FIRST_DYNAMIC_INDEX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_stream(id: u8, kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, id], payload].concat()
    }

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        on_stream(1, kind, payload)
    }

    fn refusals(bytes: &[u8], pieces: usize) -> Vec<RefusedFrame> {
        let mut observer = FrameObserver::default();
        let mut found = Vec::new();
        for piece in bytes.chunks(pieces) {
            observer.observe_sent(piece, |frame| found.push(frame));
        }
        found
    }

    #[test]
    fn frames_that_refuse_are_found_however_they_are_cut() {
        let bytes = [
            frame(4, &[]),
            frame(HEADERS, &[0x88, 0x76, 0x01]),
            frame(0, &[7; 70_000]),
            frame(RST_STREAM, &1_u32.to_be_bytes()),
            frame(RST_STREAM, &CANCEL.to_be_bytes()),
            frame(HEADERS, &[BARE_STATUS_400]),
            frame(HEADERS, &BARE_STATUS_431),
            frame(RST_STREAM, &1_u32.to_be_bytes()),
            on_stream(3, HEADERS, &[FIRST_DYNAMIC_INDEX]),
            frame(RST_STREAM, &ENHANCE_YOUR_CALM.to_be_bytes()),
            frame(GOAWAY, &[0; 8]),
            frame(GOAWAY, &[0, 0, 0, 1, 0, 0, 0, 9, b'w', b'h', b'y']),
        ]
        .concat();
        let expected = [
            RefusedFrame::Error(RefusalReason::Http2Stream, 1),
            RefusedFrame::Answer(RefusalReason::Http2Stream, 400),
            RefusedFrame::Answer(RefusalReason::HeaderTooLarge, 431),
            RefusedFrame::Answer(RefusalReason::HeaderTooLarge, 431),
            RefusedFrame::Error(RefusalReason::Http2Flood, 11),
            RefusedFrame::Error(RefusalReason::Http2Connection, 9),
        ];
        for pieces in [1, 2, 3, 7, 9, 16, 4_096, bytes.len()] {
            assert_eq!(refusals(&bytes, pieces), expected, "in pieces of {pieces}");
        }
    }

    const WINDOW_UPDATE: u8 = 8;

    /// Returns how many of these frames a client may send.
    fn allowed(observer: &mut FrameObserver, frame: &[u8]) -> u64 {
        (0..MAX_CONTROL_BYTES)
            .find(|_| observer.observe_received(frame))
            .unwrap()
    }

    #[test]
    fn frames_that_ask_for_nothing_are_a_flood() {
        for (kind, payload) in [
            (WINDOW_UPDATE, &[0, 0, 0, 1][..]),
            (2, &[0, 0, 0, 0, 1]),
            (4, &[]),
            (6, &[0; 8]),
            (0xf5, &[7; 3_000]),
            (DATA, &[]),
        ] {
            let frame = frame(kind, payload);
            let length = frame.len() as u64;
            let mut observer = FrameObserver::default();
            let count = allowed(&mut observer, &frame);
            assert_eq!(count, MAX_CONTROL_BYTES / length, "frames of type {kind}");
        }
        // A byte of content offsets eight control bytes, and unused content is not carried over.
        let mut observer = FrameObserver::default();
        observer.observe_sent(&frame(DATA, &[7; 100_000]), |_| {});
        let update = frame(WINDOW_UPDATE, &[0, 0, 0, 1]);
        assert_eq!(allowed(&mut observer, &update), MAX_CONTROL_BYTES / 13);
        observer.observe_sent(&frame(DATA, &[7; 130]), |_| {});
        assert_eq!(allowed(&mut observer, &update), 130 * 8 / 13 - 1);
    }

    #[test]
    fn a_client_that_opens_its_windows_after_each_event_is_no_flood() {
        let mut observer = FrameObserver::default();
        let updates = frame(WINDOW_UPDATE, &[0, 0, 0, 1]).repeat(2);
        for _ in 0..100_000 {
            observer.observe_sent(&frame(DATA, b": keep-alive\n\n"), |_| {});
            assert!(!observer.observe_received(&updates));
        }
        for _ in 0..1_000 {
            assert!(!observer.observe_received(&frame(DATA, &[7; 16_384]).repeat(10)));
        }
    }
}
