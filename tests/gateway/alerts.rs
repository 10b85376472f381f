//! Alerts of a whole gateway: a balance below the account holder's amount reaches the holder's
//! receiver, once, also if the gateway dies while it sends.

use crate::client::Request;
use crate::world::{Plan, SOON, World, wait_for};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A receiver that leaves its first requests without an answer and accepts all others.
struct Receiver {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Receiver {
    fn start(unanswered: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            let mut open = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let (mut text, mut piece) = (String::new(), [0; 4_096]);
                // The body is a JSON object that ends with another one.
                while !text.ends_with("}}") {
                    match stream.read(&mut piece) {
                        Ok(count) if count > 0 => {
                            text += std::str::from_utf8(&piece[..count]).unwrap();
                        }
                        _ => break,
                    }
                }
                let mut requests = seen.lock().unwrap();
                requests.push(text);
                if requests.len() > unanswered {
                    let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
                } else {
                    open.push(stream);
                }
            }
        });
        Self { port, requests }
    }

    fn wait_for(&self, count: usize, limit: Duration) -> Vec<String> {
        wait_for("a message", limit, || {
            let requests = self.requests.lock().unwrap();
            (requests.len() >= count).then(|| requests.clone())
        })
    }
}

fn header<'r>(request: &'r str, name: &str) -> &'r str {
    let start = format!("{name}: ");
    let mut lines = request.lines();
    lines.find_map(|line| line.strip_prefix(&start)).unwrap()
}

impl World {
    fn send_form(&self, path: &str, cookie: &str, fields: &str) {
        let fields = format!("csrf={}&{fields}", self.form_token(cookie));
        let answer = self.ask(&Request::form(path, &fields).header("cookie", cookie));
        assert_eq!(answer.status, 303, "{path}: {}", answer.text());
    }
}

#[test]
fn an_alert_survives_the_death_of_the_gateway_that_sends_it() {
    let store = "store: {kind: embedded}";
    let listed = format!("{store}\nnotifications: {{private_networks: [127.0.0.1]}}");
    let mut world = Plan::default().edit(store, &listed).start();
    let receiver = Receiver::start(1);
    let (status, cookie) = world.sign_up("a@example.test", "");
    assert_eq!(status, 303);
    let url = format!("url=http%3A%2F%2F127.0.0.1%3A{}%2Fhook", receiver.port);
    world.send_form("/dashboard/alerts/webhook", &cookie, &url);
    // The trial is 300 credits.
    world.send_form("/dashboard/alerts/rules", &cookie, "low_balance=301");
    let first = receiver.wait_for(1, SOON).remove(0);
    world.kill();
    world.start_gateway();
    // The lease of the dead process ends first.
    let second = receiver.wait_for(2, SOON * 3).remove(1);
    assert_eq!(header(&first, "webhook-id"), header(&second, "webhook-id"));
    let body = |request: &str| -> Value {
        let (_, body) = request.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap()
    };
    assert_eq!(body(&first), body(&second));
    assert_eq!(body(&first)["type"], "credits.low_balance");
    assert_eq!(body(&first)["data"]["threshold"], "301");
    assert_eq!(body(&first)["data"]["balance"], "300");
    wait_for("the delivery to be counted", SOON, || {
        let count = world.metric("gateway_webhook_deliveries_total", &["delivered"]);
        (count == 1.0).then_some(())
    });
    let page = world.ask(&Request::get("/dashboard/alerts").header("cookie", &cookie));
    assert!(page.text().contains(">delivered<"), "{}", page.text());
    assert_eq!(receiver.requests.lock().unwrap().len(), 2);
}
