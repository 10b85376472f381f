//! Sign-in with an identity provider: the button, the way back, and what is left to do then.
//!
//! An identity that is linked signs in. Otherwise its verified address decides: the holder of the
//! account with this address enters its password once, which links the identity; without an
//! account, the sign-up rules apply. No address of a request decides where a browser goes:
//! `account.rs` starts the session. Must not know a provider's protocol: `sign_in` does.

use super::account::{
    PasswordOutcome, TOO_MANY_ATTEMPTS, TOO_MANY_SIGN_UPS, count_sign_up, describe_sign_up_error,
    describe_trial, seconds_to_midnight, sign_in_fault, start_session, try_password,
    with_retry_after,
};
use super::authz::may_view;
use super::blocking::run_blocking;
use super::error::PageError;
use super::form::{self, FormFault};
use super::menu;
use super::page::{Frame, html};
use super::session::{ClientIp, SIGN_IN_COOKIE, is_insecure, read_cookie, site_url, write_cookie};
use super::state::SidecarState;
use super::throttle::{AttemptLimit, ThrottleKey};
use crate::sign_in::{self, FlowSecrets, SignInError, SignInRequest};
use accounts::{Account, AccountError, ProviderIdentity, sign_up_with_identity};
use askama::Template;
use axum::Router;
use axum::extract::rejection::{FormRejection, QueryRejection};
use axum::extract::{Form, Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use base::clock::now_ms;
use config::address::client_prefix;
use config::sign_in::IdentityProvider;
use config::{Settings, SignupMode};
use serde::Deserialize;
use std::net::IpAddr;
use std::sync::Arc;

/// Steps of sign-ins at providers that one network address may take.
const STEPS: AttemptLimit = AttemptLimit {
    count: 60,
    window_ms: 60_000,
};

/// All public; those of a provider that the config does not have are not found.
pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/sign-in/{provider}", post(begin))
        .route("/dashboard/sign-in/{provider}/callback", get(callback))
        .route(
            "/dashboard/sign-in/{provider}/complete",
            get(show_completion).post(complete),
        )
}

#[derive(Template)]
#[template(path = "provider.html")]
struct ProviderPage {
    frame: Frame,
    id: String,
    name: String,
    step: ProviderStep,
    has_password: bool,
    fault: Option<FormFault>,
}

enum ProviderStep {
    /// The browser goes to the provider.
    Leave { url: String },
    /// The holder enters the account's password once.
    Link { email: String },
    /// The new holder enters an invitation code.
    Invite { email: String },
}

/// What a provider's answer has in its address.
#[derive(Deserialize)]
struct CallbackQuery {
    #[serde(default)]
    state: String,
    #[serde(default)]
    code: String,
    #[serde(default)]
    error: String,
    /// The issuer, if the provider names it (RFC 9207).
    iss: Option<String>,
}

#[derive(Deserialize)]
struct CompletionForm {
    #[serde(default)]
    password: String,
    #[serde(default)]
    invite: String,
}

/// A request of a browser about a sign-in at a provider.
struct ProviderContext {
    app: Arc<SidecarState>,
    settings: Arc<Settings>,
    provider: Arc<IdentityProvider>,
    address: IpAddr,
    headers: HeaderMap,
    site: String,
}

impl ProviderContext {
    fn new(
        app: Arc<SidecarState>,
        provider: &str,
        address: IpAddr,
        headers: HeaderMap,
    ) -> Result<Self, PageError> {
        let settings = app.settings.load_full();
        let provider = settings.sign_in.provider(provider);
        let provider = Arc::clone(provider.ok_or(PageError::NotFound)?);
        let site = site_url(&headers, &settings.base_url);
        Ok(Self {
            app,
            settings,
            provider,
            address,
            headers,
            site,
        })
    }

    /// The page to sign in, with a fault.
    fn fault(&self, status: StatusCode, fault: &str) -> Response {
        sign_in_fault(&self.app, status, fault)
    }

    /// Counts a step. Returns the answer if it is one too many.
    fn count_step(&self) -> Option<Response> {
        let key = ThrottleKey::AddressAtProvider(client_prefix(self.address));
        let counted = self.app.throttle.try_acquire(&key, STEPS, now_ms());
        let seconds = counted.err()?;
        let page = self.fault(StatusCode::TOO_MANY_REQUESTS, TOO_MANY_ATTEMPTS);
        Some(with_retry_after(page, seconds))
    }

    fn client(&self) -> String {
        self.address.to_canonical().to_string()
    }

    /// The secret in the browser's cookie.
    fn secrets(&self) -> Option<FlowSecrets> {
        let cookie = read_cookie(&SIGN_IN_COOKIE, &self.headers, &self.site)?;
        FlowSecrets::parse(&cookie)
    }

    fn redirect_uri(&self) -> String {
        format!("{}{}", self.site, self.path("callback"))
    }

    fn path(&self, step: &str) -> String {
        format!("/dashboard/sign-in/{}/{step}", self.provider.id)
    }

    fn page(
        &self,
        title: &'static str,
        step: ProviderStep,
        fault: Option<FormFault>,
    ) -> ProviderPage {
        ProviderPage {
            frame: Frame {
                insecure: is_insecure(&self.settings.base_url),
                support: self.settings.support.clone(),
                ..Frame::public(title)
            },
            id: self.provider.id.clone(),
            name: self.provider.name.clone(),
            step,
            has_password: self.settings.sign_in.password,
            fault,
        }
    }

    /// Describes a failure of the provider for the person, and logs what an operator must know.
    fn provider_fault(&self, error: &SignInError) -> Response {
        let IdentityProvider { id, name, .. } = self.provider.as_ref();
        log::warn!("sign-in with the provider {id}: {error}");
        let (status, what) = match error {
            SignInError::Away(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{name} does not answer at the moment."),
            ),
            SignInError::Refused(_) => (
                StatusCode::FORBIDDEN,
                format!("{name} did not confirm this sign-in. Try again."),
            ),
            SignInError::Invalid(_) => (
                StatusCode::BAD_GATEWAY,
                format!(
                    "{name} sent an answer that this gateway does not accept. Ask its operator."
                ),
            ),
        };
        let other = match self.settings.sign_in.password {
            true => " You can still sign in with your password.",
            false => "",
        };
        self.fault(status, &format!("{what}{other}"))
    }

    /// The answer to a browser whose sign-in cannot be continued.
    fn lost(&self) -> Response {
        let name = &self.provider.name;
        let fault = format!(
            "This sign-in with {name} was not begun in this browser, or is used or older than 10 \
             minutes. Begin again."
        );
        self.fault(StatusCode::BAD_REQUEST, &fault)
    }

    /// Starts the session of an identity, whose sign-in is recorded.
    async fn start_session(
        &self,
        account: &Account,
        secrets: &FlowSecrets,
        to: Option<&'static str>,
    ) -> Result<Response, PageError> {
        let (accounts, secret) = (self.app.accounts.clone(), secrets.reveal().to_owned());
        run_blocking(move || accounts.identities().end_flow(&secret)).await??;
        let to = to.unwrap_or_else(|| menu::first_path(may_view(account)));
        start_session(&self.app, &account.id, self.address, &self.headers, to).await
    }

    /// Signs in by a linked identity.
    async fn sign_in(&self, identity: &ProviderIdentity) -> Result<Option<Account>, PageError> {
        let (accounts, identity) = (self.app.accounts.clone(), identity.clone());
        let client = self.client();
        let sign_in = move || accounts.identities().sign_in(&identity, &client, now_ms());
        Ok(run_blocking(sign_in).await??)
    }
}

/// Sends a browser to the provider. The answer is a page of the gateway that leads on: browsers let
/// a form lead only to where it was sent.
async fn begin(
    State(app): State<Arc<SidecarState>>,
    ClientIp(address): ClientIp,
    Path(provider): Path<String>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let context = ProviderContext::new(app, &provider, address, headers)?;
    if let Some(response) = context.count_step() {
        return Ok(response);
    }
    let accounts = context.app.accounts.clone();
    let begun = run_blocking(move || accounts.identities().begin_flow(&provider, now_ms()));
    let secret = begun.await??;
    let secrets = FlowSecrets::parse(&secret)
        .ok_or_else(|| PageError::Internal("a new secret is none".into()))?;
    let redirect_uri = context.redirect_uri();
    let request = SignInRequest {
        provider: &context.provider,
        redirect_uri: &redirect_uri,
        secrets: &secrets,
    };
    let permit = context.app.provider_calls.try_acquire();
    let _permit = permit.map_err(|_| PageError::Busy)?;
    let url = match sign_in::authorization_url(request).await {
        Ok(url) => url,
        Err(error) => return Ok(context.provider_fault(&error)),
    };
    let refresh = HeaderValue::from_str(&format!("0; url={url}"))
        .map_err(|error| PageError::Internal(error.to_string()))?;
    let cookie = write_cookie(&SIGN_IN_COOKIE, &secret, &context.site)?;
    let page = context.page("Sign in", ProviderStep::Leave { url }, None);
    let mut response = html(StatusCode::OK, &page);
    response.headers_mut().insert(header::REFRESH, refresh);
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(response)
}

/// Takes the provider's answer from the browser that began the sign-in, once.
async fn callback(
    State(app): State<Arc<SidecarState>>,
    ClientIp(address): ClientIp,
    Path(provider): Path<String>,
    headers: HeaderMap,
    query: Result<Query<CallbackQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let context = ProviderContext::new(app, &provider, address, headers)?;
    if let Some(response) = context.count_step() {
        return Ok(response);
    }
    let Ok(Query(query)) = query else {
        return Ok(context.lost());
    };
    let secrets = context.secrets();
    let Some(secrets) = secrets.filter(|secrets| secrets.has_state(&query.state)) else {
        return Ok(context.lost());
    };
    let (accounts, secret) = (context.app.accounts.clone(), secrets.reveal().to_owned());
    let take = move || {
        accounts
            .identities()
            .take_flow(&secret, &provider, now_ms())
    };
    if !run_blocking(take).await?? {
        return Ok(context.lost());
    }
    let is_other_issuer = (query.iss).is_some_and(|issuer| issuer != context.provider.issuer);
    if is_other_issuer {
        let error = SignInError::invalid("the answer is of another issuer (`iss`)");
        return Ok(context.provider_fault(&error));
    }
    if !query.error.is_empty() || query.code.is_empty() {
        let text: String = query.error.chars().take(100).collect();
        return Ok(context.provider_fault(&SignInError::Refused(format!("{text:?}"))));
    }
    let redirect_uri = context.redirect_uri();
    let request = SignInRequest {
        provider: &context.provider,
        redirect_uri: &redirect_uri,
        secrets: &secrets,
    };
    let permit = context.app.provider_calls.try_acquire();
    let permit = permit.map_err(|_| PageError::Busy)?;
    let identified = sign_in::identify(request, &query.code, now_ms()).await;
    drop(permit);
    match identified {
        Ok(identity) => admit(&context, &secrets, identity).await,
        Err(error) => Ok(context.provider_fault(&error)),
    }
}

/// Signs a person in whom the provider has identified, or leads to what is left to do.
async fn admit(
    context: &ProviderContext,
    secrets: &FlowSecrets,
    identity: ProviderIdentity,
) -> Result<Response, PageError> {
    if let Some(account) = context.sign_in(&identity).await? {
        return context.start_session(&account, secrets, None).await;
    }
    let name = &context.provider.name;
    if identity.email.is_empty() || !identity.email_verified {
        let fault = format!(
            "{name} has not confirmed your e-mail address. Confirm it there, then sign in again."
        );
        return Ok(context.fault(StatusCode::FORBIDDEN, &fault));
    }
    let has_account = context.app.accounts.find(&identity.email)?.is_some();
    match (has_account, context.settings.signup.mode) {
        (false, SignupMode::Closed) => {
            let fault = format!(
                "You have no account here, and sign-up is closed. Ask the operator of this gateway \
                 for an account for {}.",
                identity.email
            );
            Ok(context.fault(StatusCode::FORBIDDEN, &fault))
        }
        (false, SignupMode::Open) => match open_account(context, &identity, "").await? {
            Ok((account, to)) => context.start_session(&account, secrets, to).await,
            Err((status, fault)) => Ok(context.fault(status, &fault.to_string())),
        },
        (true, _) | (false, SignupMode::Invite) => {
            let (accounts, secret) = (context.app.accounts.clone(), secrets.reveal().to_owned());
            let hold = move || {
                accounts
                    .identities()
                    .hold_flow(&secret, &identity, now_ms())
            };
            run_blocking(hold).await??;
            Ok(Redirect::to(&context.path("complete")).into_response())
        }
    }
}

/// Opens the account of an identity under the sign-up rules. Returns it, and where its holder goes
/// first; or what is in the way.
async fn open_account(
    context: &ProviderContext,
    identity: &ProviderIdentity,
    invite: &str,
) -> Result<Result<(Account, Option<&'static str>), (StatusCode, FormFault)>, PageError> {
    let (app, now_ms) = (&context.app, now_ms());
    let attempt = match count_sign_up(app, context.address, &context.headers, now_ms) {
        Ok(attempt) => attempt,
        Err(_) => {
            let fault = TOO_MANY_SIGN_UPS.into();
            return Ok(Err((StatusCode::TOO_MANY_REQUESTS, fault)));
        }
    };
    let (accounts, billing) = (app.accounts.clone(), app.billing.clone());
    let signup = context.settings.signup.clone();
    let by = identity.to_actor(context.client());
    let (new, code) = (identity.clone(), invite.to_owned());
    let open = move || {
        let ledger = billing.ledger();
        sign_up_with_identity(&accounts, ledger, &signup, (&new, &code), &by, now_ms)
    };
    match run_blocking(open).await? {
        Ok(opened) => {
            // Gives the role of its groups.
            context.sign_in(identity).await?;
            let had_one =
                opened.trial.is_none() && describe_trial(&context.settings.signup).is_some();
            let to = had_one.then_some("/dashboard?trial=had");
            Ok(Ok((opened.account, to)))
        }
        Err(error) => {
            attempt.release_unless_telling(app, &error);
            let is_taken = matches!(error, AccountError::EmailTaken);
            let (status, fault) = describe_sign_up_error(error)?;
            let fault = match is_taken {
                true => "Your mailbox has an account under another address. Sign in with that one."
                    .into(),
                // The page has no field for another value of the form of a sign-up.
                false if !fault.is_at("invite") => fault.to_string().into(),
                false => fault,
            };
            Ok(Err((status, fault)))
        }
    }
}

/// The step that is left to do for a person whom the provider has identified.
fn remaining_step(
    context: &ProviderContext,
    identity: &ProviderIdentity,
) -> Result<ProviderStep, PageError> {
    let email = identity.email.clone();
    Ok(match context.app.accounts.find(&email)? {
        Some(_) => ProviderStep::Link { email },
        None => ProviderStep::Invite { email },
    })
}

/// Reads what the provider said in a sign-in that this browser began.
async fn held(
    context: &ProviderContext,
) -> Result<Option<(FlowSecrets, ProviderIdentity)>, PageError> {
    let Some(secrets) = context.secrets() else {
        return Ok(None);
    };
    let (accounts, provider) = (context.app.accounts.clone(), context.provider.id.clone());
    let secret = secrets.reveal().to_owned();
    let read = move || {
        let identities = accounts.identities();
        identities.held_flow(&secret, &provider, now_ms())
    };
    Ok(run_blocking(read)
        .await??
        .map(|identity| (secrets, identity)))
}

async fn show_completion(
    State(app): State<Arc<SidecarState>>,
    ClientIp(address): ClientIp,
    Path(provider): Path<String>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let context = ProviderContext::new(app, &provider, address, headers)?;
    let Some((_, identity)) = held(&context).await? else {
        return Ok(context.lost());
    };
    let step = remaining_step(&context, &identity)?;
    Ok(html(StatusCode::OK, &context.page("Sign in", step, None)))
}

async fn complete(
    State(app): State<Arc<SidecarState>>,
    ClientIp(address): ClientIp,
    Path(provider): Path<String>,
    headers: HeaderMap,
    form: Result<Form<CompletionForm>, FormRejection>,
) -> Result<Response, PageError> {
    let context = ProviderContext::new(app, &provider, address, headers)?;
    let Form(form) = form?;
    let Some((secrets, identity)) = held(&context).await? else {
        return Ok(context.lost());
    };
    let step = remaining_step(&context, &identity)?;
    let admitted = match &step {
        ProviderStep::Link { email } => link(&context, &identity, email, form.password).await?,
        _ => open_account(&context, &identity, form.invite.trim()).await?,
    };
    match admitted {
        Ok((account, to)) => context.start_session(&account, &secrets, to).await,
        Err((status, fault)) => {
            let page = html(status, &context.page("Sign in", step, Some(fault)));
            Ok(match status {
                StatusCode::TOO_MANY_REQUESTS => {
                    with_retry_after(page, seconds_to_midnight(now_ms()))
                }
                _ => page,
            })
        }
    }
}

/// Links an identity to the account with its verified address, once the holder has entered the
/// account's password.
async fn link(
    context: &ProviderContext,
    identity: &ProviderIdentity,
    email: &str,
    password: String,
) -> Result<Result<(Account, Option<&'static str>), (StatusCode, FormFault)>, PageError> {
    let fault = |status, fault: FormFault| Ok(Err((status, fault)));
    match try_password(&context.app, email, password, context.address).await? {
        PasswordOutcome::Right(account) => {
            let (accounts, identity) = (context.app.accounts.clone(), identity.clone());
            let client = context.client();
            let link = move || {
                let (identities, now_ms) = (accounts.identities(), now_ms());
                identities.link(&account.id, &identity, &client, now_ms)?;
                identities.sign_in(&identity, &client, now_ms)
            };
            match run_blocking(link).await?? {
                Some(account) => Ok(Ok((account, None))),
                None => fault(
                    StatusCode::CONFLICT,
                    "The account was deleted meanwhile.".into(),
                ),
            }
        }
        PasswordOutcome::Wrong => fault(
            StatusCode::UNAUTHORIZED,
            FormFault::at("password", "The password is wrong."),
        ),
        PasswordOutcome::TooOften { .. } => fault(
            StatusCode::TOO_MANY_REQUESTS,
            FormFault::at("password", TOO_MANY_ATTEMPTS),
        ),
    }
}
