//! stub, replaced soon
use crate::{account::Accounts, billing::Billing, config::Settings};
use arc_swap::ArcSwap;
use std::sync::Arc;
pub struct Sidecar {
    pub accounts: Accounts,
    pub billing: Billing,
    pub settings: Arc<ArcSwap<Settings>>,
}
impl Sidecar {
    pub fn new(accounts: Accounts, billing: Billing, settings: Arc<ArcSwap<Settings>>) -> Self {
        Self { accounts, billing, settings }
    }
}
pub async fn serve(
    listener: tokio::net::TcpListener,
    _state: Sidecar,
    _shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(listener, axum::Router::new()).await
}
