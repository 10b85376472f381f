//! A minimal Pingora pass-through proxy, built like the gateway: it shows what Pingora itself
//! costs. `scripts/bench` compares the gateway with it. It must do only what a proxy has to do.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use async_trait::async_trait;
use pingora::Result;
use pingora::proxy::{ProxyHttp, Session, http_proxy_service};
use pingora::server::Server;
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The upstream, and the HTTP version if it speaks TLS.
struct Bare(String, Option<u8>);

#[async_trait]
impl ProxyHttp for Bare {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _session: &mut Session, _ctx: &mut ()) -> Result<Box<HttpPeer>> {
        let mut peer = HttpPeer::new(&self.0, self.1.is_some(), String::from("127.0.0.1"));
        if let Some(version) = self.1 {
            peer.options.set_http_version(version, version);
        }
        Ok(Box::new(peer))
    }
}

/// `bare LISTEN UPSTREAM [HTTP-VERSION]`: with a version, the upstream speaks TLS.
fn main() {
    let mut arguments = std::env::args().skip(1);
    let (listen, upstream) = (
        arguments.next().expect("bare LISTEN UPSTREAM"),
        arguments.next().expect("an upstream"),
    );
    let version = arguments
        .find(|argument| argument != "--bench")
        .map(|text| text.parse().expect("an HTTP version"));
    let conf = ServerConf {
        threads: 1,
        upstream_keepalive_pool_size: 1_024,
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, Bare(upstream, version));
    service.add_tcp(&listen);
    server.add_service(service);
    server.run_forever();
}
