//! The gateway never fetches an address that a request contains or a vendor redirects to: no image
//! URL, no file of this machine, no `location`.

use crate::client::Request;
use crate::surface::{BOTH, Chat, Messages};
use crate::world::{Plan, World};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A server that counts its connections.
struct Canary {
    port: u16,
    visits: Arc<AtomicUsize>,
}

impl Canary {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, visits) = (
            listener.local_addr().unwrap().port(),
            Arc::<AtomicUsize>::default(),
        );
        let count = Arc::clone(&visits);
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                let _ = client.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
            }
        });
        Self { port, visits }
    }

    /// The number of connections so far. The canary serves connections in order, so this waits for
    /// a connection of its own and does not count it.
    fn visits(&self) -> usize {
        let mut own = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        assert!(
            own.read(&mut [0; 1]).is_ok_and(|read| read == 1),
            "it hears nobody"
        );
        self.visits.fetch_sub(1, Ordering::SeqCst) - 1
    }
}

/// Addresses that would reach the canary, or do harm, if anyone fetched them.
fn addresses(canary: &Canary) -> Vec<String> {
    let port = canary.port;
    let schemes = ["http", "https", "ftp", "gopher", "ws"]
        .map(|scheme| format!("{scheme}://127.0.0.1:{port}/a.png"));
    let others = [
        "file:///etc/passwd",
        "http://169.254.169.254/latest/meta-data/",
        "//127.0.0.1/a.png",
        "a.png",
        "",
    ];
    schemes
        .into_iter()
        .chain(others.map(str::to_owned))
        .chain([format!("http://x@127.0.0.1:{port}/a.png")])
        .collect()
}

fn bodies(model: &str, url: &str) -> Vec<(&'static str, Value)> {
    let chat = json!([{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": url}}]);
    let source = json!({"type": "url", "url": url});
    let messages =
        json!([{"type": "image", "source": source}, {"type": "document", "source": source}]);
    let responses =
        json!([{"type": "input_image", "image_url": url}, {"type": "input_file", "file_url": url}]);
    let of = |content: &Value| json!([{"role": "user", "content": content}]);
    vec![
        (
            "/v1/chat/completions",
            json!({"model": model, "messages": of(&chat), "max_completion_tokens": 50}),
        ),
        (
            "/v1/messages",
            json!({"model": model, "messages": of(&messages), "max_tokens": 50}),
        ),
        (
            "/v1/messages/count_tokens",
            json!({"model": model, "messages": of(&messages)}),
        ),
        (
            "/v1/responses",
            json!({"model": model, "input": of(&responses), "max_output_tokens": 50}),
        ),
    ]
}

#[test]
fn an_address_in_a_request_is_the_vendors_to_fetch_or_nobodys() {
    let (world, canary) = (World::new(), Canary::start());
    let account = world.account();
    let mut answered = 0;
    for url in addresses(&canary) {
        for model in BOTH.map(|surface| surface.model()) {
            for (path, body) in bodies(model, &url) {
                let answer = world.ask(&Request::post(path, body.to_string()).bearer(&account.key));
                assert!(
                    answer.status < 500,
                    "{path} {url}: {} {}",
                    answer.status,
                    answer.text()
                );
                assert!(!answer.has("root:"), "{path} {url}: {}", answer.text());
                answered += usize::from(answer.status == 200);
            }
        }
    }
    assert!(answered > 0, "every request was refused: nothing was shown");
    assert_eq!(canary.visits(), 0);
    world.close();
}

#[test]
fn whom_a_vendor_sends_elsewhere_does_not_go_there() {
    let canary = Canary::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (vendor, elsewhere) = (listener.local_addr().unwrap().port(), canary.port);
    std::thread::spawn(move || {
        for (number, mut client) in listener.incoming().flatten().enumerate() {
            let _ = client.read(&mut [0; 65_536]);
            let status = [301, 302, 303, 307, 308][number % 5];
            let place = format!("http://127.0.0.1:{elsewhere}/v1/messages");
            let head = format!(
                "HTTP/1.1 {status} Elsewhere\r\nlocation: {place}\r\nconnection: close\r\n"
            );
            let _ = client.write_all(format!("{head}content-length: 0\r\n\r\n").as_bytes());
        }
    });
    let (world, account) = Plan::default()
        .endpoints(&[vendor])
        .limit("breaker_failures", 0)
        .with_account();
    for surface in [Chat, Messages] {
        for _ in 0..5 {
            let answer = world.ask(&surface.whole(&account.key, "input=1 output=1"));
            assert!(
                answer.status >= 500 && answer.header("location").is_none(),
                "{} {}",
                answer.status,
                answer.text()
            );
        }
    }
    assert_eq!(canary.visits(), 0);
}
