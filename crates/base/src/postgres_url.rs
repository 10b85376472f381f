//! Parses the address of a PostgreSQL server, for the config and for the ledger.
//!
//! This file must not connect to a server.

use tokio_postgres::Config;

/// Parses the address of a PostgreSQL server.
///
/// # Errors
/// Returns the reason why the address is invalid, without repeating the address, which can contain
/// a password.
pub fn parse(url: &str) -> Result<Config, String> {
    let server: Config = url
        .parse()
        .map_err(|error| format!("the address of PostgreSQL is invalid: {error}"))?;
    if server.get_hosts().is_empty() && server.get_hostaddrs().is_empty() {
        return Err("the address of PostgreSQL has no host".into());
    }
    Ok(server)
}
