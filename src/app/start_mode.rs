//! Determines the mode in which a process starts: alone, or as the successor of a running process.
//!
//! This file must not start a process.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartMode {
    Fresh,
    /// The process is the successor of a running one, which hands over its listening sockets when
    /// it receives SIGQUIT.
    Upgrade,
}

impl StartMode {
    pub fn from_upgrade_flag(upgrade: bool) -> Self {
        if upgrade { Self::Upgrade } else { Self::Fresh }
    }
}
