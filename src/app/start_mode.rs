//! How a process starts: on its own, or as the successor of a running one.
//!
//! This file must not act on it.

/// How a process starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartMode {
    Fresh,
    /// As the successor of a running process, which hands over its listening sockets when it
    /// receives SIGQUIT.
    Upgrade,
}

impl StartMode {
    pub fn from_upgrade_flag(upgrade: bool) -> Self {
        if upgrade { Self::Upgrade } else { Self::Fresh }
    }
}
