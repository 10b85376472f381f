//! Reads the address of the shared store, which is one server, a cluster, or the primary that
//! Sentinels name.
//!
//! This file must not open a connection.

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisAddress {
    One(String),
    /// Some nodes of a cluster.
    Cluster(Vec<String>),
    /// The primary that Sentinels name.
    Sentinel(SentinelAddress),
}

/// The Sentinels that know the primary's address, and the credentials for the primary.
#[derive(Clone, PartialEq, Eq)]
pub struct SentinelAddress {
    pub master: String,
    pub nodes: Vec<String>,
    pub user: Option<String>,
    pub password: Option<String>,
    pub database: i64,
    /// True to use TLS for the primary and for the Sentinels.
    pub tls: bool,
}

impl std::fmt::Debug for SentinelAddress {
    /// Formats the address without its credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Sentinel {{ master: {:?}, nodes: {} }}",
            self.master,
            self.nodes.len()
        )
    }
}
