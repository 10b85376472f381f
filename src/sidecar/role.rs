//! Who may look at the operator's view: the holder of an active administrator's account, and nobody else learns of it.
//!
//! A handler below `/dashboard/operator` takes an [`Operator`] or, for what changes something, an [`OperatorForm`]. To
//! everybody else who is signed in there is no such page.

use super::App;
use super::problem::Problem;
use super::session::{CallerAddress, SignedForm, Visitor};
use crate::account::{Account, By, Status};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use std::sync::Arc;

/// An administrator who is signed in.
pub struct Operator(pub Visitor);

/// A form that an administrator sent from one of our pages.
pub struct OperatorForm {
    pub form: SignedForm,
    /// Whom the audit log names.
    pub by: By,
}

pub fn is_operator(account: &Account) -> bool {
    account.admin && account.status == Status::Active
}

impl FromRequestParts<Arc<App>> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let visitor = Visitor::from_request_parts(parts, app).await?;
        if is_operator(&visitor.account) { Ok(Self(visitor)) } else { Err(Problem::NotFound) }
    }
}

impl FromRequest<Arc<App>> for OperatorForm {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let Operator(visitor) = Operator::from_request_parts(&mut parts, app).await?;
        let Ok(CallerAddress(address)) = CallerAddress::from_request_parts(&mut parts, app).await;
        let by = By { actor: visitor.account.id.clone(), address: address.to_canonical().to_string() };
        let form = SignedForm::of(visitor, Request::from_parts(parts, body), app).await?;
        Ok(Self { form, by })
    }
}
