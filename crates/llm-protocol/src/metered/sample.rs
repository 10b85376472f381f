//! Small requests, by which an operator sees that a vendor serves an endpoint.

use crate::json::edit;

const BOUNDARY: &str = "gateway-sample-boundary";

/// A tenth of a second of silence: 16-bit samples at 8 kHz.
const SILENCE_BYTES: u32 = 1_600;

pub(super) fn json(upstream_model: &str, members: &str) -> (&'static str, Vec<u8>) {
    let model = edit::json_string(upstream_model);
    let body = format!("{{\"model\":{model},{members}}}");
    ("application/json", body.into_bytes())
}

/// A form with the model and a file of silence under this name.
pub(super) fn form(upstream_model: &str, file: &str) -> (&'static str, Vec<u8>) {
    let mut body = format!(
        "--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\n{upstream_model}\r\n\
         --{BOUNDARY}\r\ncontent-disposition: form-data; name=\"{file}\"; filename=\"silence.wav\"\r\n\
         content-type: audio/wav\r\n\r\n"
    )
    .into_bytes();
    body.extend(silence());
    body.extend(format!("\r\n--{BOUNDARY}--\r\n").into_bytes());
    (
        "multipart/form-data; boundary=gateway-sample-boundary",
        body,
    )
}

fn silence() -> Vec<u8> {
    let mut wav = b"RIFF".to_vec();
    wav.extend(SILENCE_BYTES.saturating_add(36).to_le_bytes());
    wav.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    wav.extend(8_000_u32.to_le_bytes());
    wav.extend(16_000_u32.to_le_bytes());
    wav.extend(b"\x02\0\x10\0data");
    wav.extend(SILENCE_BYTES.to_le_bytes());
    wav.extend(std::iter::repeat_n(0, 1_600));
    wav
}
