//! A request on its way to the sidecar.
//!
//! This file must not decide who may call the sidecar: `edge/admit.rs` does.

use crate::edge::activity::ReceiptLookup;
use crate::edge::pages::PagePermit;

/// Permit that counts a request to the sidecar for as long as the request lasts.
pub enum SidecarPermit {
    Page(PagePermit),
    Receipt(ReceiptLookup),
}
