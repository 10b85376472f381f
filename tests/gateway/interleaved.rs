//! Many numbered requests at once over kept connections, in pipelines and over HTTP/2, alongside
//! malformed requests. The clients abort some of theirs at a random moment. Each answer must belong
//! to its own request, and the gateway must keep serving afterwards.

use crate::account::Account;
use crate::client::Answer;
use crate::h2::{
    ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, H2, HEADERS, OK, RST_STREAM, SETTINGS, block, good,
};
use crate::smuggling::{Dice, corpus};
use crate::surface::{BOTH, Chat, Surface};
use crate::world::{Plan, World};
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const CANCEL: u32 = 8;

/// The state that the clients share.
struct Run<'a> {
    world: &'a World,
    account: &'a Account,
    next: AtomicU64,
    requests: u64,
    answered: AtomicU64,
}

impl Run<'_> {
    /// The next request's number, or `None` once all have been sent.
    fn number(&self) -> Option<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number < self.requests).then_some(number)
    }

    /// The next `count` numbers, or fewer at the end.
    fn numbers(&self, count: u64) -> Vec<u64> {
        (0..count).map_while(|_| self.number()).collect()
    }

    /// Asserts that an answer names its own request and no other.
    fn check(&self, number: u64, status: u16, text: &str) {
        assert_eq!(status, 200, "{number}: {text}");
        let named: HashSet<_> = text
            .split("number-")
            .skip(1)
            .filter_map(|rest| rest.split('.').next())
            .collect();
        assert_eq!(
            named,
            HashSet::from([number.to_string().as_str()]),
            "{number}: {text}"
        );
        assert!(!text.contains("SMUGGLED"), "{number}: {text}");
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    fn check_answer(&self, number: u64, answer: &Answer) {
        self.check(number, answer.status, &answer.text());
    }
}

fn marker(number: u64) -> String {
    format!("text=number-{number}. input=1 output=1")
}

fn request(run: &Run<'_>, dice: &mut Dice, number: u64) -> Vec<u8> {
    let surface: Surface = BOTH[dice.below(2) as usize];
    let key = &run.account.key;
    match dice.below(3) {
        0 => surface
            .whole(key, &marker(number))
            .chunked(1 + dice.below(64) as usize)
            .bytes(),
        1 => surface
            .stream(key, &format!("{} events=1", marker(number)))
            .bytes(),
        _ => surface.whole(key, &marker(number)).bytes(),
    }
}

/// Sends up to three requests in one segment over a kept connection. At random it drops the
/// connection and opens another.
fn over_http1(run: &Run<'_>, seed: u64) {
    let mut dice = Dice(seed);
    let mut connection = run.world.connect();
    loop {
        let numbers = run.numbers(1 + dice.below(3));
        if numbers.is_empty() {
            return;
        }
        let bytes: Vec<_> = numbers
            .iter()
            .flat_map(|number| request(run, &mut dice, *number))
            .collect();
        if dice.below(5) == 0 {
            connection.send(&bytes[..dice.below(bytes.len() as u64) as usize]);
            connection = run.world.connect();
            continue;
        }
        assert!(connection.send(&bytes));
        for number in numbers {
            run.check_answer(number, &connection.answer());
            if dice.below(12) == 0 {
                connection = run.world.connect();
                break;
            }
        }
    }
}

/// Sends several concurrent streams and resets some of them.
fn over_http2(run: &Run<'_>, seed: u64) {
    let mut dice = Dice(seed);
    loop {
        let mut h2 = H2::open(run.world.edge);
        // One connection carries so little that the client need not open its window further.
        for batch in 0..4_u32 {
            let numbers = run.numbers(1 + dice.below(6));
            if numbers.is_empty() {
                return;
            }
            let mut open = BTreeMap::new();
            for (index, number) in numbers.into_iter().enumerate() {
                let id = batch * 100 + 2 * index as u32 + 1;
                let body = Chat
                    .body(
                        &format!("{} events=1", marker(number)),
                        dice.below(2) == 0,
                        10,
                    )
                    .to_string();
                h2.send(
                    HEADERS,
                    END_HEADERS,
                    id,
                    &block(&good(&run.account.key, &body)),
                );
                if dice.below(6) == 0 {
                    h2.send(RST_STREAM, 0, id, &CANCEL.to_be_bytes());
                    continue;
                }
                h2.send(DATA, END_STREAM, id, body.as_bytes());
                if dice.below(6) == 0 {
                    h2.send(RST_STREAM, 0, id, &CANCEL.to_be_bytes());
                } else {
                    open.insert(id, (number, Vec::new()));
                }
            }
            while !open.is_empty() {
                let (kind, flags, id, payload) = h2.frame().expect("the connection stays open");
                match kind {
                    SETTINGS if flags & ACK == 0 => drop(h2.send(SETTINGS, ACK, 0, b"")),
                    GOAWAY => panic!("the gateway ends the connection: {payload:?}"),
                    HEADERS if open.contains_key(&id) => {
                        assert_eq!(payload[0], OK, "stream {id}: {payload:?}")
                    }
                    RST_STREAM => assert!(
                        !open.contains_key(&id),
                        "stream {id} was reset: {payload:?}"
                    ),
                    DATA => {
                        let Some((_, body)) = open.get_mut(&id) else {
                            continue;
                        };
                        body.extend_from_slice(&payload);
                        if flags & END_STREAM != 0 {
                            let (number, body) = open.remove(&id).unwrap();
                            run.check(number, 200, &String::from_utf8_lossy(&body));
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Sends malformed requests, each over its own connection.
fn malformed(run: &Run<'_>, seed: u64, done: &AtomicBool) {
    let corpus = corpus(&run.account.key);
    let mut dice = Dice(seed);
    while !done.load(Ordering::Relaxed) {
        let mut connection = run.world.connect();
        connection.send(&corpus[dice.below(corpus.len() as u64) as usize]);
        while let Some(answer) = connection.try_answer() {
            assert!(
                !answer.has("number-") && !answer.has("SMUGGLED"),
                "{}",
                answer.text()
            );
        }
    }
}

#[test]
fn each_of_many_interleaved_requests_gets_its_own_answer_beside_malformed_ones() {
    let world = Plan::default()
        .limit("drain_after_client_seconds", 1)
        .start();
    let account = world.funded(1_000_000_000_000);
    let requests = if crate::is_long() { 20_000 } else { 600 };
    let run = Run {
        world: &world,
        account: &account,
        next: AtomicU64::new(0),
        requests,
        answered: AtomicU64::new(0),
    };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (run, done) = (&run, &done);
        let attack = scope.spawn(move || malformed(run, 1, done));
        let over_http1: Vec<_> = (2..6)
            .map(|seed| scope.spawn(move || over_http1(run, seed)))
            .collect();
        let over_http2: Vec<_> = (6..9)
            .map(|seed| scope.spawn(move || over_http2(run, seed)))
            .collect();
        // The attack also ends if a client has failed.
        let ended: Vec<_> = over_http1
            .into_iter()
            .chain(over_http2)
            .map(std::thread::ScopedJoinHandle::join)
            .collect();
        done.store(true, Ordering::Relaxed);
        attack.join().unwrap();
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    let answered = run.answered.load(Ordering::Relaxed);
    assert!(answered > requests / 2, "{answered} of {requests}");
    world.wait_metric("gateway_open_holds", &[], 0.0);
    world.works(Chat, &account.key);
    assert_eq!(world.metric("gateway_panics_total", &[]), 0.0);
}
