//! The load: raw sockets that do as little as possible, so that the load leaves the vendor's core
//! free for many requests. Must not start processes.

use super::system::System;
use super::ways::Way;
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const GAP: Duration = Duration::from_millis(20);
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Streams start one after the other, so that their events do not arrive at the same time.
const STAGGER: Duration = Duration::from_micros(400);

/// Maximum size of all requests of a load together, in bytes. It limits the number of keys.
const MAX_LOAD_BYTES: usize = 16 * 1_048_576;

/// One request for each key, of a conversation of its own.
fn requests(system: &System, way: Way, bytes: usize, marker: &str, stream: bool) -> Vec<Vec<u8>> {
    let count = (MAX_LOAD_BYTES / bytes).clamp(1, system.keys.len());
    system.keys[..count]
        .iter()
        .map(|key| request(key, way, bytes, marker, stream))
        .collect()
}

fn request(key: &str, way: Way, bytes: usize, marker: &str, stream: bool) -> Vec<u8> {
    let (limit, conversation) = match way.path {
        "/v1/messages" => ("max_tokens", "messages"),
        "/v1/responses" => ("max_output_tokens", "input"),
        _ => ("max_completion_tokens", "messages"),
    };
    // In the direct case nothing replaces the model's name, so the vendor gets it as it is.
    let body = |filler: usize| {
        let text = format!(
            "[[sim {marker}]] {}",
            "lorem ipsum, ".repeat(filler / 13 + 1).split_at(filler).0
        );
        if way.path == "/v1/embeddings" {
            return json!({"model": way.model, "input": text}).to_string();
        }
        json!({
            "model": way.model, limit: 1_000, "stream": stream, conversation: [{"role": "user", "content": text}],
        })
        .to_string()
    };
    let body = body(bytes.saturating_sub(body(0).len()));
    let key_header = if way.path == "/v1/messages" {
        "x-api-key: "
    } else {
        "authorization: Bearer "
    };
    let mut text = format!(
        "POST {} HTTP/1.1\r\nhost: bench\r\n{key_header}{}\r\nanthropic-version: 2023-06-01\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        way.path,
        key,
        body.len()
    );
    text.push_str(&body);
    text.into_bytes()
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("connect");
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
    stream
}

/// The end of a body that is sent in chunks.
const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    memchr::memmem::find(text, what)
}

/// Reads one whole answer, which must be a 200. Returns whether the connection stays open for
/// another request.
fn answer(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> bool {
    buffer.clear();
    let mut piece = [0; 16_384];
    // Length of the answer, once its header has come; `None` if it is sent in chunks.
    let (mut whole, mut stays) = (None::<Option<usize>>, true);
    loop {
        let count = stream.read(&mut piece).expect("read an answer");
        assert!(
            count > 0,
            "a connection was closed: {}",
            String::from_utf8_lossy(buffer)
        );
        buffer.extend_from_slice(&piece[..count]);
        if whole.is_none()
            && let Some(end) = find(buffer, b"\r\n\r\n")
        {
            let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
            assert!(
                head.starts_with("http/1.1 200"),
                "{}",
                String::from_utf8_lossy(buffer)
            );
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length:"));
            whole = Some(length.map(|text| end + 4 + text.trim().parse::<usize>().unwrap()));
            stays = !head.contains("\r\nconnection: close");
        }
        match whole {
            Some(Some(bytes)) if buffer.len() >= bytes => return stays,
            Some(None) if buffer.ends_with(LAST_CHUNK) => return stays,
            _ => {}
        }
    }
}

/// A load of requests for whole answers, which differ in their keys alone.
pub struct Load {
    port: u16,
    requests: Vec<Vec<u8>>,
}

pub struct Done {
    pub count: usize,
    pub elapsed: Duration,
    /// µs, sorted.
    times: Vec<f64>,
}

impl Done {
    pub fn percentile(&self, percent: usize) -> f64 {
        at(&self.times, percent)
    }
}

/// The percentile of sorted values.
fn at(sorted: &[f64], percent: usize) -> f64 {
    sorted
        .get(sorted.len() * percent / 100)
        .or(sorted.last())
        .copied()
        .unwrap_or_default()
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

impl Load {
    pub fn of(system: &System, way: Way, bytes: usize) -> Self {
        Self {
            port: system.port,
            requests: requests(system, way, bytes, "input=200 output=50 bytes=600", false),
        }
    }

    /// Sends as many requests as possible in `time`, one after the other on each connection.
    pub fn drive(&self, connections: usize, time: Duration) -> Done {
        let until = Instant::now() + time;
        let done = self.run(connections, |_| Instant::now() < until);
        assert!(done.count > 0, "nothing was answered in {time:?}");
        done
    }

    /// Sends `count` requests on each of `connections`.
    pub fn ask(&self, connections: usize, count: usize) -> Done {
        self.run(connections, |done| done < count)
    }

    /// Sends requests on each connection while `goes_on` returns true for the number already
    /// answered.
    fn run(&self, connections: usize, goes_on: impl Fn(usize) -> bool + Sync) -> Done {
        let began = Instant::now();
        let turn = AtomicUsize::new(0);
        let times = std::thread::scope(|scope| {
            let run = || {
                let (mut stream, mut buffer, mut times) =
                    (connect(self.port), Vec::new(), Vec::new());
                while goes_on(times.len()) {
                    let turn = turn.fetch_add(1, Ordering::Relaxed);
                    let request = &self.requests[turn % self.requests.len()];
                    let began = Instant::now();
                    stream.write_all(request).expect("send a request");
                    let stays = answer(&mut stream, &mut buffer);
                    times.push(began.elapsed().as_secs_f64() * 1e6);
                    // A server may limit the requests of a connection. The time to connect again
                    // counts.
                    if !stays {
                        stream = connect(self.port);
                    }
                }
                times
            };
            let threads: Vec<_> = (0..connections).map(|_| scope.spawn(run)).collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().expect("a connection"))
                .collect()
        });
        let times = sorted(times);
        Done {
            count: times.len(),
            elapsed: began.elapsed(),
            times,
        }
    }
}

/// A load of concurrent streams.
pub struct Streams {
    port: u16,
    requests: Vec<Vec<u8>>,
    count: usize,
    events: usize,
}

#[derive(Default)]
pub struct Streamed {
    pub events: usize,
    pub peak_rss_mb: f64,
    first: Vec<f64>,
    late: Vec<f64>,
}

impl Streamed {
    /// Percentile of the time from the request to the first event, in µs.
    pub fn first(&self, percent: usize) -> f64 {
        at(&self.first, percent)
    }

    /// Percentile of the events' delay in µs, relative to a steady rhythm from the stream's
    /// earliest event.
    pub fn late(&self, percent: usize) -> f64 {
        at(&self.late, percent)
    }
}

impl Streams {
    pub fn of(system: &System, way: Way, count: usize, events: usize) -> Self {
        let marker = format!(
            "input=200 output=100 events={events} gap_ms={}",
            GAP.as_millis()
        );
        Self {
            port: system.port,
            requests: requests(system, way, 1_024, &marker, true),
            count,
            events,
        }
    }

    pub fn run(&self, rss_mb: impl Fn() -> f64) -> Streamed {
        let mut done = Streamed::default();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.count)
                .map(|index| {
                    let run = move || {
                        std::thread::sleep(STAGGER * u32::try_from(index).unwrap());
                        self.one(&self.requests[index % self.requests.len()])
                    };
                    std::thread::Builder::new()
                        .stack_size(131_072)
                        .spawn_scoped(scope, run)
                        .expect("a thread")
                })
                .collect();
            std::thread::sleep(GAP * u32::try_from(self.events).unwrap() * 3 / 5);
            done.peak_rss_mb = rss_mb();
            for thread in threads {
                let (first, late) = thread.join().expect("a stream");
                done.events += late.len();
                done.first.push(first);
                done.late.extend(late);
            }
        });
        done.first = sorted(std::mem::take(&mut done.first));
        done.late = sorted(std::mem::take(&mut done.late));
        done
    }

    fn one(&self, request: &[u8]) -> (f64, Vec<f64>) {
        let mut stream = connect(self.port);
        let began = Instant::now();
        stream.write_all(request).expect("send a request");
        let (mut piece, mut text, mut arrivals) = ([0; 16_384], Vec::new(), Vec::new());
        loop {
            let count = stream.read(&mut piece).expect("read a stream");
            assert!(
                count > 0,
                "a stream was cut: {}",
                String::from_utf8_lossy(&text)
            );
            let now = began.elapsed().as_secs_f64() * 1e6;
            let before = text.len().saturating_sub(32);
            text.extend_from_slice(&piece[..count]);
            // A text delta, in the form of each protocol.
            let deltas = memchr::memmem::find_iter(&piece[..count], br#""delta":{"content":""#)
                .count()
                + memchr::memmem::find_iter(&piece[..count], br#""text_delta""#).count()
                + memchr::memmem::find_iter(&piece[..count], br#""response.output_text.delta""#)
                    .count();
            arrivals.extend(std::iter::repeat_n(now, deltas));
            let tail = &text[before..];
            // The last event of the responses protocol is long, so the end of the body counts.
            let is_over = text.ends_with(LAST_CHUNK);
            if is_over
                || find(tail, b"data: [DONE]").is_some()
                || find(tail, b"message_stop").is_some()
            {
                break;
            }
        }
        assert!(
            text.starts_with(b"HTTP/1.1 200"),
            "{}",
            String::from_utf8_lossy(&text)
        );
        assert!(
            arrivals.len() >= self.events / 2,
            "{} events of {}",
            arrivals.len(),
            self.events
        );
        let first = arrivals[0];
        let gap = GAP.as_secs_f64() * 1e6;
        let phases: Vec<_> = arrivals
            .iter()
            .enumerate()
            .map(|(index, at)| at - index as f64 * gap)
            .collect();
        let earliest = phases.iter().copied().fold(f64::MAX, f64::min);
        (first, phases.iter().map(|phase| phase - earliest).collect())
    }
}
