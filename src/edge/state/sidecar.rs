//! Holds the state of a request to the sidecar: for a page, or for a receipt or usage that only the
//! sidecar can look up.
//!
//! This file must not decide who may call the sidecar: `edge/admit.rs` does.

use super::authenticated::Authenticated;
use crate::edge::activity::LookupGuard;
use crate::edge::pages::PagePermit;
use std::sync::Arc;

/// A request to the sidecar. The counters include it until it is dropped.
pub struct SidecarRequest {
    kind: SidecarRequestKind,
    /// True if the gateway has retried the request over a new connection.
    pub has_retried: bool,
}

enum SidecarRequestKind {
    Page {
        _permit: PagePermit,
    },
    Lookup {
        authenticated: Authenticated,
        _lookup: LookupGuard,
    },
}

impl SidecarRequest {
    pub fn for_page(permit: PagePermit) -> Self {
        Self {
            kind: SidecarRequestKind::Page { _permit: permit },
            has_retried: false,
        }
    }

    pub fn for_lookup(authenticated: Authenticated, lookup: LookupGuard) -> Self {
        let kind = SidecarRequestKind::Lookup {
            authenticated,
            _lookup: lookup,
        };
        Self {
            kind,
            has_retried: false,
        }
    }

    /// Returns the account whose receipt or usage is requested, or `None` for a page.
    pub fn lookup_account(&self) -> Option<&Arc<str>> {
        Some(&self.authenticated()?.principal.account_id)
    }

    /// Returns the key (by id) with which it is requested, or `None` for a page.
    pub fn lookup_key(&self) -> Option<&Arc<str>> {
        Some(&self.authenticated()?.principal.key_id)
    }

    pub(super) fn authenticated(&self) -> Option<&Authenticated> {
        match &self.kind {
            SidecarRequestKind::Page { .. } => None,
            SidecarRequestKind::Lookup { authenticated, .. } => Some(authenticated),
        }
    }

    pub(super) fn into_authenticated(self) -> Option<Authenticated> {
        match self.kind {
            SidecarRequestKind::Page { .. } => None,
            SidecarRequestKind::Lookup { authenticated, .. } => Some(authenticated),
        }
    }
}
