//! Authorization for the operator pages: who may view them and who may make changes. Nobody else
//! learns that they exist.
//!
//! A handler below `/dashboard/operator` takes an [`Operator`] (a viewer or an administrator) or,
//! if it changes something, an [`OperatorForm`] (an administrator only). All other signed-in users
//! get a 404.

use super::App;
use super::problem::Problem;
use super::session::{CallerAddress, SignedForm, Visitor};
use crate::account::{Account, By, Role, Status};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use std::sync::Arc;

/// A signed-in viewer or administrator.
pub struct Operator(pub Visitor);

/// A form that an administrator sent from one of our pages.
pub struct OperatorForm {
    pub form: SignedForm,
    /// Actor for the audit log.
    pub by: By,
}

/// Whether the account may view the operator pages.
pub fn may_look(account: &Account) -> bool {
    account.status == Status::Active && matches!(account.role, Role::Viewer | Role::Admin)
}

/// Whether the account may make changes on the operator pages.
pub fn may_act(account: &Account) -> bool {
    account.status == Status::Active && account.role == Role::Admin
}

impl FromRequestParts<Arc<App>> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let visitor = Visitor::from_request_parts(parts, app).await?;
        if may_look(&visitor.account) {
            Ok(Self(visitor))
        } else {
            Err(Problem::NotFound)
        }
    }
}

impl FromRequest<Arc<App>> for OperatorForm {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let Operator(visitor) = Operator::from_request_parts(&mut parts, app).await?;
        if !may_act(&visitor.account) {
            return Err(Problem::ViewerOnly);
        }
        let Ok(CallerAddress(address)) = CallerAddress::from_request_parts(&mut parts, app).await;
        let by = By {
            actor: visitor.account.id.clone(),
            address: address.to_canonical().to_string(),
        };
        let form = SignedForm::of(visitor, Request::from_parts(parts, body), app).await?;
        Ok(Self { form, by })
    }
}
