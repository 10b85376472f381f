//! Divides the file descriptors of this process, so that clients cannot take them all.
//!
//! A share is a limit on use, not a pool. The rest is reserved for databases, the journal, the
//! admin listener and the log. This file must not count open files: `connections.rs` and
//! `resource_guard.rs` do.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Minimum and maximum number of reserved descriptors besides those that are open at the start.
const MIN_RESERVE: u64 = 32;
const MAX_RESERVE: u64 = 1_024;
/// Number of client connections that are allowed even with a very low limit.
const MIN_CLIENTS: u64 = 8;
/// Minimum limit on open files. Some 70 are open once a gateway has started, [`MIN_RESERVE`] are
/// reserved, and clients and vendors share the rest.
const MIN_LIMIT: u64 = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorShares {
    pub limit: u64,
    /// Reserve for files, databases, listeners, and connections of the admin listener.
    pub reserve: u64,
    pub clients: u64,
    /// Connections to vendors, and to a sidecar in another process.
    pub upstream: u64,
}

impl DescriptorShares {
    /// Divides `limit`. `open` is the number of descriptors that are open at the start. In addition
    /// to these, an eighth of `limit` is reserved, at least 32 and at most 1 024. Clients get half
    /// of the rest, and vendors the other half.
    pub fn new(limit: u64, open: u64) -> Self {
        let reserve = (limit / 8)
            .clamp(MIN_RESERVE, MAX_RESERVE)
            .saturating_add(open);
        let rest = limit.saturating_sub(reserve);
        let clients = (rest / 2).max(MIN_CLIENTS);
        Self {
            limit,
            reserve,
            clients,
            upstream: rest.saturating_sub(clients),
        }
    }

    /// Logs how the descriptors are divided, and whether `limits.connections` can be reached.
    pub fn log(&self, connections: u64) {
        let Self {
            limit,
            reserve,
            clients,
            upstream,
        } = self;
        log::info!(
            "the limit on open files is {limit}: {clients} for clients, {upstream} for vendors, {reserve} for the rest"
        );
        if connections > *clients {
            log::warn!(
                "limits.connections is lowered from {connections} to {clients}: the limit on open files is {limit} \
                 (LimitNOFILE, ulimit -n)"
            );
        }
    }
}

/// Checks that a gateway can start with the limit on open files.
///
/// # Errors
/// Returns an error if the limit is too low.
pub fn check_limit() -> anyhow::Result<()> {
    check(raise_limit())
}

fn check(limit: u64) -> anyhow::Result<()> {
    anyhow::ensure!(
        limit >= MIN_LIMIT,
        "the limit on open files is {limit}, but a gateway needs at least {MIN_LIMIT}: raise LimitNOFILE (systemd), \
         ulimits (Docker) or ulimit -n"
    );
    Ok(())
}

/// Raises the soft limit on open files to the hard limit and returns the new limit. The soft limit
/// exists only for programs that cannot handle more descriptors.
pub fn raise_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    ) {
        log::warn!("cannot raise the limit on open files: {error}");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_and_vendors_share_what_is_not_kept_back() {
        let shares = |limit, open| DescriptorShares::new(limit, open);
        assert_eq!(
            shares(256, 40),
            DescriptorShares {
                limit: 256,
                reserve: 72,
                clients: 92,
                upstream: 92
            }
        );
        let usual = DescriptorShares {
            limit: 131_072,
            reserve: 1_064,
            clients: 65_004,
            upstream: 65_004,
        };
        assert_eq!(shares(131_072, 40), usual);
        assert_eq!(
            shares(64, 40),
            DescriptorShares {
                limit: 64,
                reserve: 72,
                clients: 8,
                upstream: 0
            }
        );
        assert!(check(MIN_LIMIT).is_ok());
        let refused = check(MIN_LIMIT - 1).unwrap_err().to_string();
        assert!(refused.contains("is 127, but"), "{refused}");
        let [_, _, clients] = [0, 1, u64::MAX].map(|limit| shares(limit, 40).clients);
        assert!(clients > u64::MAX / 3);
    }
}
