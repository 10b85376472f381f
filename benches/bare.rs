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

struct Bare(String);

#[async_trait]
impl ProxyHttp for Bare {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _session: &mut Session, _ctx: &mut ()) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(&self.0, false, String::new())))
    }
}

/// `bare LISTEN UPSTREAM`
fn main() {
    let mut arguments = std::env::args().skip(1);
    let (listen, upstream) = (
        arguments.next().expect("bare LISTEN UPSTREAM"),
        arguments.next().expect("an upstream"),
    );
    let conf = ServerConf {
        threads: 1,
        upstream_keepalive_pool_size: 1_024,
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, Bare(upstream));
    service.add_tcp(&listen);
    server.add_service(service);
    server.run_forever();
}
