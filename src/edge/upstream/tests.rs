//! Name resolution without a network: when the gateway repeats a lookup, what it keeps, and that
//! one lookup never blocks another.

use super::dns::{DnsResolver, EndpointResolver};
use async_trait::async_trait;
use config::Limits;
use config::catalog::VendorEndpoint;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Resolver that returns configured addresses and counts the lookups.
#[derive(Default)]
struct FakeResolver {
    addresses: Mutex<Option<Vec<SocketAddr>>>,
    lookups: AtomicUsize,
    is_silent: bool,
}

impl FakeResolver {
    fn set_addresses(&self, addresses: Option<&[&str]>) {
        *self.addresses.lock().unwrap() = addresses.map(|list| {
            list.iter()
                .map(|address| address.parse().unwrap())
                .collect()
        });
    }
}

#[async_trait]
impl DnsResolver for FakeResolver {
    async fn addresses(&self, _host: &str, _port: u16) -> io::Result<Vec<SocketAddr>> {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        if self.is_silent {
            std::future::pending::<()>().await;
        }
        self.addresses
            .lock()
            .unwrap()
            .clone()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn endpoint() -> VendorEndpoint {
    VendorEndpoint::in_test("vendor.example")
}

fn limits() -> Limits {
    Limits {
        dns_stale_seconds: 60,
        ..Limits::default()
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[tokio::test]
async fn every_address_has_its_turn_and_none_is_tried_twice() {
    let fake = Arc::new(FakeResolver::default());
    fake.set_addresses(Some(&["10.0.0.1:80", "10.0.0.2:80", "[::1]:80"]));
    let resolver = EndpointResolver::new(Arc::clone(&fake) as Arc<dyn DnsResolver>);
    let (mut tried, limits) = (Vec::new(), limits());
    while let Ok(address) = resolver.address(&endpoint(), &tried, &limits).await {
        assert!(!tried.contains(&address), "{address} after {tried:?}");
        assert!(resolver.has_untried(&endpoint(), &tried, &limits));
        tried.push(address);
    }
    assert_eq!(tried.len(), 3);
    assert!(!resolver.has_untried(&endpoint(), &tried, &limits));
    let mut first = Vec::new();
    for _ in 0..6 {
        first.push(resolver.address(&endpoint(), &[], &limits).await.unwrap());
    }
    first.sort();
    first.dedup();
    assert_eq!(first.len(), 3, "all take part");
    assert_eq!(
        fake.lookups.load(Ordering::SeqCst),
        1,
        "asked once, known from then on"
    );
}

#[tokio::test]
async fn a_name_that_moves_is_followed_and_the_last_good_address_kept_where_nobody_tells() {
    let fake = Arc::new(FakeResolver::default());
    let resolver = EndpointResolver::new(Arc::clone(&fake) as Arc<dyn DnsResolver>);
    let limits = limits();
    assert!(
        resolver.address(&endpoint(), &[], &limits).await.is_err(),
        "nothing was ever known"
    );
    fake.set_addresses(Some(&["10.0.0.1:80"]));
    assert_eq!(
        resolver.address(&endpoint(), &[], &limits).await.unwrap(),
        address("10.0.0.1:80")
    );
    fake.set_addresses(Some(&["10.0.0.2:80"]));
    assert_eq!(
        resolver.address(&endpoint(), &[], &limits).await.unwrap(),
        address("10.0.0.1:80"),
        "not asked again"
    );
    resolver.refresh(&endpoint(), &limits).await.unwrap();
    assert_eq!(
        resolver.address(&endpoint(), &[], &limits).await.unwrap(),
        address("10.0.0.2:80")
    );
    for nothing in [None, Some(&[] as &[&str])] {
        fake.set_addresses(nothing);
        assert!(resolver.refresh(&endpoint(), &limits).await.is_err());
        assert_eq!(
            resolver.address(&endpoint(), &[], &limits).await.unwrap(),
            address("10.0.0.2:80"),
            "the last good one"
        );
    }
}

#[tokio::test]
async fn what_was_known_is_not_believed_for_ever() {
    let fake = Arc::new(FakeResolver::default());
    fake.set_addresses(Some(&["10.0.0.1:80"]));
    let resolver = EndpointResolver::new(Arc::clone(&fake) as Arc<dyn DnsResolver>);
    let limits = Limits {
        dns_stale_seconds: 0,
        ..Limits::default()
    };
    assert!(resolver.address(&endpoint(), &[], &limits).await.is_ok());
    fake.set_addresses(None);
    let _ = resolver.refresh(&endpoint(), &limits).await;
    assert!(resolver.address(&endpoint(), &[], &limits).await.is_err());
}

/// The new `dns_stale_seconds` applies at once, even to known addresses: an operator changes it
/// while no resolver answers.
#[tokio::test]
async fn how_long_the_last_address_is_believed_can_be_changed_while_nobody_tells() {
    let fake = Arc::new(FakeResolver::default());
    fake.set_addresses(Some(&["10.0.0.1:80"]));
    let resolver = EndpointResolver::new(Arc::clone(&fake) as Arc<dyn DnsResolver>);
    let of = |dns_stale_seconds| Limits {
        dns_stale_seconds,
        ..Limits::default()
    };
    assert!(resolver.address(&endpoint(), &[], &of(60)).await.is_ok());
    fake.set_addresses(None);
    assert!(resolver.refresh(&endpoint(), &of(86_400)).await.is_err());
    assert_eq!(
        resolver
            .address(&endpoint(), &[], &of(86_400))
            .await
            .unwrap(),
        address("10.0.0.1:80")
    );
    let _ = resolver.refresh(&endpoint(), &of(0)).await;
    assert!(
        resolver.address(&endpoint(), &[], &of(0)).await.is_err(),
        "and shortened"
    );
}

#[tokio::test]
async fn a_resolver_that_says_nothing_is_given_up_and_many_requests_ask_once() {
    let fake = Arc::new(FakeResolver {
        is_silent: true,
        ..FakeResolver::default()
    });
    let resolver = EndpointResolver::new(Arc::clone(&fake) as Arc<dyn DnsResolver>);
    let began = Instant::now();
    assert!(resolver.address(&endpoint(), &[], &limits()).await.is_err());
    let took = began.elapsed();
    assert!(
        took > Duration::from_secs(2) && took < Duration::from_secs(20),
        "{took:?}"
    );
    let fake = Arc::new(FakeResolver::default());
    fake.set_addresses(Some(&["10.0.0.1:80"]));
    let resolver = Arc::new(EndpointResolver::new(
        Arc::clone(&fake) as Arc<dyn DnsResolver>
    ));
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let resolver = Arc::clone(&resolver);
        asking.spawn(async move { resolver.address(&endpoint(), &[], &limits()).await.unwrap() });
    }
    assert!(
        asking
            .join_all()
            .await
            .iter()
            .all(|found| *found == address("10.0.0.1:80"))
    );
    assert_eq!(fake.lookups.load(Ordering::SeqCst), 1);
}
