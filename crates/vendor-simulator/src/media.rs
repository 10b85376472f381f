//! Images, speech and transcriptions as OpenAI serves them. The text of the request may have a
//! marker; of its keys, those about the usage, the size, errors and the wire have their effect.
//!
//! It must not know that the answer is billed. Source: the types of openai 3.57 for Python.

use base64::Engine;
use serde::Deserialize;
use serde_json::{Value, json};

use super::behaviour::Behaviour;
use super::count;
use super::errors::SimulatedError;
use super::metered::{MeteredCall, behaviour, read};
use super::usage::SimUsage;

/// Output tokens of an image of low quality.
const IMAGE_TOKENS: u64 = 272;
/// Input tokens of an image that is edited.
const EDITED_TOKENS: u64 = 300;
/// Tokens of a second of audio.
const AUDIO_TOKENS: u64 = 10;
/// Bytes of an image and of speech, if the request does not say.
const MEDIA_BYTES: usize = 1_200;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ImageParams {
    #[serde(rename = "model")]
    _model: String,
    prompt: String,
    #[serde(default = "one")]
    n: u64,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    partial_images: u64,
    #[serde(default, rename = "background")]
    _background: Option<String>,
    #[serde(default, rename = "moderation")]
    _moderation: Option<String>,
    #[serde(default, rename = "input_fidelity")]
    _input_fidelity: Option<String>,
    #[serde(default, rename = "output_compression")]
    _output_compression: Option<u64>,
    #[serde(default)]
    output_format: Option<String>,
    #[serde(default)]
    quality: Option<String>,
    #[serde(default, rename = "response_format")]
    _response_format: Option<String>,
    #[serde(default)]
    size: Option<String>,
    #[serde(default, rename = "style")]
    _style: Option<String>,
    #[serde(default, rename = "user")]
    _user: Option<String>,
}

fn one() -> u64 {
    1
}

/// Answers a request for images.
///
/// # Errors
/// Returns the vendor's refusal.
pub fn generate_images(body: &[u8]) -> Result<MeteredCall, SimulatedError> {
    images(&read(body)?, 0, "image_generation")
}

/// Answers a request to edit images.
///
/// # Errors
/// Returns the vendor's refusal.
pub fn edit_images(content_type: &str, body: &[u8]) -> Result<MeteredCall, SimulatedError> {
    let form = SimForm::read(content_type, body)?;
    let files = form.parts.iter().filter(|part| part.is_file);
    let is_image = |part: &&SimFormPart<'_>| part.name == "image" || part.name == "image[]";
    if files.clone().filter(is_image).count() == 0 {
        return Err(refused("image", "Missing required parameter: 'image'."));
    }
    let mut params = serde_json::Map::new();
    for part in form.parts.iter().filter(|part| !part.is_file) {
        let text = String::from_utf8_lossy(part.value).into_owned();
        // A form has texts only.
        let value = match part.name.as_str() {
            "n" | "partial_images" | "output_compression" => text.parse::<u64>().map(Value::from),
            "stream" => Ok(Value::from(text == "true" || text == "1")),
            _ => Ok(Value::from(text.clone())),
        };
        let value = value.map_err(|_| refused(&part.name, "Expected a number."))?;
        params.insert(part.name.clone(), value);
    }
    let params = read(Value::Object(params).to_string().as_bytes())?;
    images(&params, files.count() as u64, "image_edit")
}

fn images(params: &ImageParams, files: u64, event: &str) -> Result<MeteredCall, SimulatedError> {
    if params.prompt.is_empty() || !(1..=10).contains(&params.n) {
        return Err(refused("n", "Invalid 'n' or 'prompt'."));
    }
    let text = count::tokens(params.prompt.len());
    let (behaviour, mut usage) = behaviour(&params.prompt, text)?;
    let edited = files * EDITED_TOKENS;
    usage.output = behaviour.output.unwrap_or(params.n * IMAGE_TOKENS);
    let image = media(&behaviour);
    let format = params.output_format.as_deref().unwrap_or("png");
    let common = json!({
        "background": "opaque",
        "output_format": format,
        "quality": params.quality.as_deref().unwrap_or("low"),
        "size": params.size.as_deref().unwrap_or("1024x1024"),
    });
    let usage_of = |share: u64| {
        let (input, output) = (usage.input + edited, usage.output / share);
        let counts = [input, input - edited, edited, output, input + output];
        let counts: Option<Vec<Value>> = counts
            .map(|number| serde_json::from_str(&usage.count(number)?).ok())
            .into_iter()
            .collect();
        let [input, text, images, output, total] = counts?.try_into().ok()?;
        Some(json!({
            "input_tokens": input,
            "input_tokens_details": {"text_tokens": text, "image_tokens": images},
            "output_tokens": output,
            "total_tokens": total,
        }))
    };
    if !params.stream {
        let data = vec![json!({"b64_json": image}); usize::try_from(params.n).unwrap_or(1)];
        let mut answer = json!({"created": 1_790_000_000, "data": data});
        merge(&mut answer, &common);
        if let Some(usage) = usage_of(1) {
            answer["usage"] = usage;
        }
        return Ok(MeteredCall {
            answer: answer.to_string().into_bytes(),
            content_type: "application/json",
            behaviour,
            usage,
        });
    }
    let mut events = Vec::new();
    for _ in 0..params.n {
        for index in 0..params.partial_images {
            let mut partial = json!({
                "type": format!("{event}.partial_image"),
                "b64_json": image,
                "created_at": 1_790_000_000,
                "partial_image_index": index,
            });
            merge(&mut partial, &common);
            events.push(partial);
        }
        let mut completed = json!({
            "type": format!("{event}.completed"),
            "b64_json": image,
            "created_at": 1_790_000_000,
        });
        merge(&mut completed, &common);
        if let Some(usage) = usage_of(params.n) {
            completed["usage"] = usage;
        }
        events.push(completed);
    }
    Ok(event_stream(&events, behaviour, usage))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SpeechParams {
    #[serde(rename = "model")]
    _model: String,
    input: String,
    #[serde(rename = "voice")]
    _voice: String,
    #[serde(default, rename = "instructions")]
    _instructions: Option<String>,
    #[serde(default)]
    response_format: Option<String>,
    #[serde(default, rename = "speed")]
    _speed: Option<f64>,
    #[serde(default)]
    stream_format: Option<String>,
}

/// Speaks a text.
///
/// # Errors
/// Returns the vendor's refusal.
pub fn speak(body: &[u8]) -> Result<MeteredCall, SimulatedError> {
    let params: SpeechParams = read(body)?;
    if params.input.is_empty() || params.input.chars().count() > 4_096 {
        return Err(refused("input", "Expected 1 to 4096 characters."));
    }
    let content_type = match params.response_format.as_deref().unwrap_or("mp3") {
        "mp3" => "audio/mpeg",
        "opus" => "audio/opus",
        "aac" => "audio/aac",
        "flac" => "audio/flac",
        "wav" => "audio/wav",
        "pcm" => "audio/pcm",
        _ => return Err(refused("response_format", "Unknown format.")),
    };
    let (behaviour, usage) = behaviour(&params.input, count::tokens(params.input.len()))?;
    if params.stream_format.as_deref() == Some("sse") {
        let delta = json!({"type": "speech.audio.delta", "audio": media(&behaviour)});
        let mut done = json!({"type": "speech.audio.done"});
        if usage.count(1).is_some() {
            let (input, output) = (usage.input, usage.input * 12);
            done["usage"] = json!({
                "input_tokens": input,
                "output_tokens": output,
                "total_tokens": input + output,
            });
        }
        return Ok(event_stream(&[delta, done], behaviour, usage));
    }
    Ok(MeteredCall {
        answer: bytes(&behaviour),
        content_type,
        behaviour,
        usage,
    })
}

/// The text fields of a form for a transcription; a translation has those marked `true`.
const TRANSCRIPTION_FIELDS: [(&str, bool); 14] = [
    ("model", true),
    ("prompt", true),
    ("response_format", true),
    ("temperature", true),
    ("language", false),
    ("languages[]", false),
    ("stream", false),
    ("chunking_strategy", false),
    ("include[]", false),
    ("keywords[]", false),
    ("known_speaker_names[]", false),
    ("known_speaker_references[]", false),
    ("timestamp_granularities[]", false),
    ("timestamp_granularities", false),
];

/// Transcribes a file, or translates it to English.
///
/// # Errors
/// Returns the vendor's refusal.
pub fn transcribe(
    content_type: &str,
    body: &[u8],
    translates: bool,
) -> Result<MeteredCall, SimulatedError> {
    let form = SimForm::read(content_type, body)?;
    let files: Vec<_> = form.parts.iter().filter(|part| part.is_file).collect();
    let [file] = files.as_slice() else {
        return Err(refused("file", "Expected exactly one file."));
    };
    for part in form.parts.iter().filter(|part| !part.is_file) {
        let mut known = TRANSCRIPTION_FIELDS.iter();
        let is_known =
            |(name, is_common): &&(&str, bool)| *name == part.name && (*is_common || !translates);
        if known.find(is_known).is_none() {
            let message = format!("Unknown parameter: '{}'.", part.name);
            return Err(refused(&part.name, &message));
        }
    }
    let text = |name: &str| form.text(name).unwrap_or_default();
    let model = text("model");
    if model.is_empty() {
        return Err(super::errors::FixedError::ChatWithoutModel.into());
    }
    if model.starts_with("missing-") {
        return Err(SimulatedError::chat_no_such_model(&model));
    }
    let (behaviour, mut usage) = behaviour(&text("prompt"), count::tokens(text("prompt").len()))?;
    // Other audio has 16 bytes a millisecond.
    let milliseconds = wav_milliseconds(file.value).unwrap_or(file.value.len() as u64 / 16);
    let milliseconds = behaviour
        .input
        .map_or(milliseconds, |seconds| seconds * 1_000);
    let said = behaviour
        .text
        .clone()
        .unwrap_or_else(|| "It is said.".to_owned());
    let by_tokens = model.starts_with("gpt-4o");
    let whole = milliseconds.div_ceil(1_000);
    usage.output = behaviour.output.unwrap_or(count::tokens(said.len()));
    let reported = match by_tokens {
        true => {
            let (prompt, audio) = (count::tokens(text("prompt").len()), whole * AUDIO_TOKENS);
            json!({
                "type": "tokens",
                "input_tokens": prompt + audio,
                "input_token_details": {"text_tokens": prompt, "audio_tokens": audio},
                "output_tokens": usage.output,
                "total_tokens": prompt + audio + usage.output,
            })
        }
        false => {
            let count = usage
                .count(whole)
                .and_then(|count| serde_json::from_str(&count).ok());
            json!({"type": "duration", "seconds": count.unwrap_or(Value::Null)})
        }
    };
    let reported = usage.count(1).map(|_| reported);
    if text("stream") == "true" {
        let delta = json!({"type": "transcript.text.delta", "delta": said});
        let mut done = json!({"type": "transcript.text.done", "text": said});
        if let Some(reported) = reported {
            done["usage"] = reported;
        }
        return Ok(event_stream(&[delta, done], behaviour, usage));
    }
    let cue = |mark: char| {
        let (minutes, rest) = (whole / 60, whole % 60);
        format!("00:00:00{mark}000 --> 00:{minutes:02}:{rest:02}{mark}000\n{said}\n\n")
    };
    let (content_type, answer) = match text("response_format").as_str() {
        "" | "json" => {
            let mut answer = json!({"text": said});
            if let Some(reported) = reported {
                answer["usage"] = reported;
            }
            ("application/json", answer.to_string())
        }
        "verbose_json" if usage.count(1).is_none() => (
            "application/json",
            json!({"task": "transcribe", "language": "english", "text": said}).to_string(),
        ),
        "verbose_json" => (
            "application/json",
            json!({
                "task": "transcribe", "language": "english", "text": said,
                "duration": decimal_seconds(milliseconds),
                "segments": [], "usage": reported,
            })
            .to_string(),
        ),
        "text" => ("text/plain; charset=utf-8", format!("{said}\n")),
        "srt" => ("text/plain; charset=utf-8", format!("1\n{}", cue(','))),
        "vtt" => ("text/vtt", format!("WEBVTT\n\n{}", cue('.'))),
        _ => return Err(refused("response_format", "Unknown format.")),
    };
    Ok(MeteredCall {
        answer: answer.into_bytes(),
        content_type,
        behaviour,
        usage,
    })
}

fn decimal_seconds(milliseconds: u64) -> Value {
    let text = format!("{}.{:03}", milliseconds / 1_000, milliseconds % 1_000);
    serde_json::from_str(&text).unwrap_or_default()
}

/// The length of a WAV file with one `fmt ` and one `data` chunk.
fn wav_milliseconds(file: &[u8]) -> Option<u64> {
    let rate = file.get(28..32).filter(|_| file.starts_with(b"RIFF"))?;
    let rate = u64::from(u32::from_le_bytes(rate.try_into().ok()?));
    let bytes = file.len().saturating_sub(44) as u64;
    (bytes * 1_000).checked_div(rate)
}

/// A form, split at its boundary.
struct SimForm<'b> {
    parts: Vec<SimFormPart<'b>>,
}

struct SimFormPart<'b> {
    name: String,
    is_file: bool,
    value: &'b [u8],
}

impl<'b> SimForm<'b> {
    fn read(content_type: &str, body: &'b [u8]) -> Result<Self, SimulatedError> {
        let broken = || SimulatedError::new(400, "Could not parse multipart form".to_owned());
        let boundary = content_type
            .strip_prefix("multipart/form-data; boundary=")
            .ok_or_else(broken)?;
        let boundary = boundary.trim_matches('"');
        let ending = format!("\r\n--{boundary}--");
        let end = memchr::memmem::rfind(body, ending.as_bytes()).ok_or_else(broken)?;
        let body = body.get(..end).unwrap_or_default();
        let opening = format!("--{boundary}\r\n");
        let body = body.strip_prefix(opening.as_bytes()).ok_or_else(broken)?;
        let between = format!("\r\n--{boundary}\r\n");
        let mut parts = Vec::new();
        let mut from = 0;
        let cuts = memchr::memmem::find_iter(body, between.as_bytes());
        for cut in cuts.chain([body.len()]) {
            let part = body.get(from..cut).unwrap_or_default();
            from = cut + between.len();
            let at = memchr::memmem::find(part, b"\r\n\r\n").ok_or_else(broken)?;
            let head = String::from_utf8_lossy(part.get(..at).unwrap_or_default()).into_owned();
            let named = head
                .split("name=\"")
                .nth(1)
                .and_then(|rest| rest.split('"').next());
            parts.push(SimFormPart {
                name: named.ok_or_else(broken)?.to_owned(),
                is_file: head.contains("filename="),
                value: part.get(at + 4..).unwrap_or_default(),
            });
        }
        Ok(Self { parts })
    }

    fn text(&self, name: &str) -> Option<String> {
        let mut parts = self.parts.iter();
        let part = parts.find(|part| part.name == name && !part.is_file)?;
        Some(String::from_utf8_lossy(part.value).into_owned())
    }
}

fn event_stream(events: &[Value], behaviour: Behaviour, usage: SimUsage) -> MeteredCall {
    let events = events.iter().map(|event| {
        let kind = event["type"].as_str().unwrap_or_default();
        format!("event: {kind}\ndata: {event}\n\n")
    });
    MeteredCall {
        answer: events.collect::<String>().into_bytes(),
        content_type: "text/event-stream; charset=utf-8",
        behaviour,
        usage,
    }
}

fn merge(into: &mut Value, from: &Value) {
    for (name, value) in from.as_object().into_iter().flatten() {
        into[name] = value.clone();
    }
}

fn bytes(behaviour: &Behaviour) -> Vec<u8> {
    let length = behaviour.bytes.unwrap_or(MEDIA_BYTES);
    (0..length).map(|index| (index * 7 % 251) as u8).collect()
}

fn media(behaviour: &Behaviour) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes(behaviour))
}

fn refused(param: &str, message: &str) -> SimulatedError {
    SimulatedError::from_param(message, param, None)
}
