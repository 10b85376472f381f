//! Authorizes users of the operator pages: viewers and administrators may read them, and
//! administrators may make changes. Nobody else learns that these pages exist.
//!
//! A handler below `/dashboard/operator` takes an [`Operator`] (a viewer or an administrator) or,
//! if it changes something, an [`OperatorForm`] (an administrator only). All other signed-in users
//! get a 404.

use super::error::PageError;
use super::session::{ClientIp, CurrentUser, SignedForm};
use super::state::SidecarState;
use accounts::{Account, AccountStatus, Actor, Role};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use std::sync::Arc;

pub struct Operator {
    pub user: CurrentUser,
    /// Actor named in the audit log.
    pub by: Actor,
}

/// A form that an administrator sent from a page of the gateway.
pub struct OperatorForm {
    pub form: SignedForm,
    /// Actor named in the audit log.
    pub by: Actor,
}

/// Returns whether the account may view the operator pages.
pub fn may_view(account: &Account) -> bool {
    account.status == AccountStatus::Active && matches!(account.role, Role::Viewer | Role::Admin)
}

/// Returns whether the account may make changes on the operator pages.
pub fn may_administer(account: &Account) -> bool {
    account.status == AccountStatus::Active && account.role == Role::Admin
}

impl FromRequestParts<Arc<SidecarState>> for Operator {
    type Rejection = PageError;

    async fn from_request_parts(
        parts: &mut Parts,
        app: &Arc<SidecarState>,
    ) -> Result<Self, PageError> {
        let user = CurrentUser::from_request_parts(parts, app).await?;
        if !may_view(&user.person) {
            return Err(PageError::NotFound);
        }
        let Ok(ClientIp(address)) = ClientIp::from_request_parts(parts, app).await;
        let by = Actor {
            actor: user.person.id.clone(),
            address: address.to_canonical().to_string(),
        };
        Ok(Self { user, by })
    }
}

impl FromRequest<Arc<SidecarState>> for OperatorForm {
    type Rejection = PageError;

    async fn from_request(request: Request, app: &Arc<SidecarState>) -> Result<Self, PageError> {
        let (mut parts, body) = request.into_parts();
        let Operator { user, by } = Operator::from_request_parts(&mut parts, app).await?;
        if !may_administer(&user.person) {
            return Err(PageError::ViewerOnly);
        }
        let form =
            SignedForm::from_user_request(user, Request::from_parts(parts, body), app).await?;
        Ok(Self { form, by })
    }
}
