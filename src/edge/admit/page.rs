//! Admits requests for pages: counts them, and reads their bodies whole before the sidecar is
//! involved.
//!
//! This file must not depend on the content of a page. `edge/pages.rs` has the counts.

use crate::edge::connections;
use crate::edge::gateway::Gateway;
use crate::edge::intake::{self, BodyBytes, BodyHolders, BodyLimits, BodyShare};
use crate::edge::pages::{PageClient, PagePermit};
use crate::edge::respond;
use crate::edge::state::sidecar::SidecarRequest;
use crate::edge::state::{RequestContext, Stage};
use config::Settings;
use config::address::client_prefix;
use llm_protocol::failure::{Failure, Kind};
use pingora::Result;
use pingora::proxy::Session;
use std::net::IpAddr;
use std::sync::Arc;

const LIVE_PATH: &str = "/dashboard/live";

/// Admits a request for a page. Returns true if the request was refused and answered.
pub async fn admit(
    gateway: &Gateway,
    settings: &Settings,
    session: &mut Session,
    ctx: &mut RequestContext,
) -> Result<bool> {
    match acquire_permit(gateway, settings, session, ctx).await {
        Ok(permit) => {
            ctx.stage = Stage::Sidecar(SidecarRequest::for_page(permit));
            Ok(false)
        }
        Err(failure) => {
            if failure.kind == Kind::FilesShort {
                session.set_keepalive(None);
            }
            ctx.set_answered("rejected");
            respond::send_failure_page(session, ctx, &failure).await?;
            intake::discard_refused_body(session, &failure, ctx.record.surface).await;
            Ok(true)
        }
    }
}

async fn acquire_permit(
    gateway: &Gateway,
    settings: &Settings,
    session: &mut Session,
    ctx: &RequestContext,
) -> Result<PagePermit, Failure> {
    let caller = match ctx.record.caller {
        Some(caller) => PageClient {
            address: client_prefix(caller.address),
            is_shared: caller.is_unnamed,
        },
        // The peer has disconnected and its address is unknown. All such requests share one count.
        None => PageClient {
            address: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
            is_shared: false,
        },
    };
    let is_live = session.req_header().uri.path() == LIVE_PATH;
    let mut permit = PagePermit::acquire(&gateway.pages, is_live, caller, &settings.limits)?;
    let open = permit.open_pages();
    if let Some(short) = gateway
        .pressure
        .refusal(usize::try_from(open).unwrap_or(usize::MAX))
    {
        return Err(Failure::from_kind(short));
    }
    let limits = BodyLimits::for_pages(&settings.limits);
    let holders = BodyHolders {
        process: Arc::clone(&gateway.body_bytes),
        account: BodyBytes::default(),
        connection: connections::body_byte_counter(session.digest()),
    };
    permit.body = BodyShare::new(holders, &limits);
    intake::read_page_body(session, &mut permit.body, &limits).await?;
    Ok(permit)
}
