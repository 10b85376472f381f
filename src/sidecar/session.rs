//! Authenticates users: the session cookie, and the extractors for handlers, [`CurrentUser`],
//! [`OptionalUser`] and [`SignedForm`].
//!
//! A handler that changes something takes a `SignedForm`, which requires a live session and the
//! form's own token. This file must not depend on the storage of sessions.

use super::banners::{self, Banner};
use super::blocking::run_blocking;
use super::error::PageError;
use super::listener::PeerAddress;
use super::menu::ShopParts;
use super::state::SidecarState;
use accounts::{Account, KeyHolder, MemberAction, OrganisationRole, csrf_token};
use axum::extract::{ConnectInfo, Form, FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, HeaderValue, header};
use base::clock::now_ms;
use config::SupportContact;
use cookie::{Cookie, SameSite};
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq;

/// Time for which a page waits until the use of its session is recorded.
const TOUCH_TIMEOUT: Duration = Duration::from_secs(1);

pub struct CurrentUser {
    /// The account that the pages show: the person's own one, or an organisation's.
    pub account: Account,
    /// The own account of the person who signed in.
    pub person: Account,
    /// What the person may do in `account`.
    pub role: OrganisationRole,
    /// True if the gateway has organisations.
    pub has_organisations: bool,
    pub token: String,
    /// Address of the site as [`site_url`] returns it.
    pub site: String,
    /// Token for the forms of this session.
    pub csrf: String,
    /// True if the connection is plain HTTP to another machine.
    pub insecure: bool,
    /// True if the user typed the password, or signed in at a provider, a short while ago.
    pub confirmed: bool,
    /// True if the user has a password and the gateway takes passwords.
    pub has_password: bool,
    /// Contact that the user can ask for help.
    pub support: Option<SupportContact>,
    /// Banners above every page.
    pub banners: Vec<Banner>,
    /// How the user gets credits.
    pub shop: ShopParts,
}

impl CurrentUser {
    /// Returns whether a form with great effects has a field for the password.
    pub fn asks_password(&self) -> bool {
        self.has_password && !self.confirmed
    }

    /// Requires that the person's role allows an action in the account that is shown.
    pub fn require(&self, action: MemberAction) -> Result<(), PageError> {
        match self.role.may(action) {
            true => Ok(()),
            false => Err(PageError::RoleForbids),
        }
    }

    /// Returns the member (by id) whose keys and usage alone the pages show; `None`: everybody's.
    pub fn only_member(&self) -> Option<&str> {
        let sees_all =
            self.role.may(MemberAction::ManageKeys) || self.role.may(MemberAction::SeeUsage);
        (!sees_all).then_some(&self.person.id)
    }

    /// Returns whose keys the user makes.
    pub fn key_holder(&self) -> KeyHolder<'_> {
        KeyHolder {
            account: &self.account.id,
            member: self
                .account
                .organisation
                .is_some()
                .then_some(&self.person.id),
        }
    }
}

/// The signed-in account holder, on a page that visitors may read too.
pub struct OptionalUser(pub Option<CurrentUser>);

/// A form that a signed-in user sent from a page of the gateway.
pub struct SignedForm {
    pub user: CurrentUser,
    pub address: IpAddr,
    fields: HashMap<String, String>,
}

impl SignedForm {
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// Returns whether the form comes from the page that asks for a confirmation (`confirm.rs`).
    pub fn is_confirmed(&self) -> bool {
        self.field(CONFIRMED_FIELD) == "yes"
    }

    /// Returns the fields that a page may repeat, in order. The token is omitted because the page
    /// has its own, and passwords are omitted because a page must not contain them.
    pub fn repeatable_fields(&self) -> Vec<(&str, &str)> {
        let mut fields: Vec<_> = self
            .fields
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .filter(|(name, _)| {
                !name.contains("password") && !["csrf", CONFIRMED_FIELD].contains(name)
            })
            .collect();
        fields.sort_unstable();
        fields
    }

    /// Returns the names of the ticked boxes in order. A name follows `prefix` in its field's name.
    pub fn checked_boxes(&self, prefix: &str) -> Vec<String> {
        let mut names: Vec<_> = self
            .fields
            .keys()
            .filter_map(|name| name.strip_prefix(prefix))
            .map(ToOwned::to_owned)
            .collect();
        names.sort();
        names
    }
}

/// Name of the field that marks a form as confirmed by the user.
const CONFIRMED_FIELD: &str = "confirmed";

/// Name of the header by which the edge reports that the client address belongs to a trusted proxy
/// which did not name its client.
pub const UNNAMED_CLIENT_HEADER: &str = "x-gateway-unnamed";

/// Address of the client. The edge sends the address in a header and removes any such header from
/// clients. Without the header, the address is that of the connection.
pub struct ClientIp(pub IpAddr);

impl FromRequestParts<Arc<SidecarState>> for CurrentUser {
    type Rejection = PageError;

    async fn from_request_parts(
        parts: &mut Parts,
        app: &Arc<SidecarState>,
    ) -> Result<Self, PageError> {
        let settings = app.settings.load_full();
        let site = site_url(&parts.headers, &settings.base_url);
        let token = session_token(&parts.headers, &site).ok_or(PageError::SignIn)?;
        let now_ms = now_ms();
        let session = app
            .accounts
            .logins()
            .find_session(&token, now_ms)?
            .ok_or(PageError::SignIn)?;
        if session.is_touch_due(now_ms) {
            touch(app, token.clone(), now_ms).await;
        }
        let confirmed = session.is_confirmed(now_ms);
        let has_organisations = settings.organisations;
        let (account, role) = match has_organisations {
            true => (session.account, session.role),
            false => (session.person.clone(), OrganisationRole::Owner),
        };
        // The action that the whole area of the page needs (`AREAS`).
        if let Some(action) = parts.extensions.get::<MemberAction>()
            && !role.may(*action)
        {
            return Err(PageError::RoleForbids);
        }
        let csrf = csrf_token(&token, &account.id);
        // A page must not fail because its banners cannot be read.
        let banners = match role.may(MemberAction::SeeUsage) {
            true => banners::load(app, &account, now_ms).unwrap_or_else(|error| {
                log::warn!("sidecar: cannot read the banners of a page: {error}");
                Vec::new()
            }),
            false => Vec::new(),
        };
        Ok(Self {
            banners,
            account,
            person: session.person,
            role,
            has_organisations,
            csrf,
            token,
            insecure: is_insecure(&site),
            site,
            confirmed,
            has_password: session.has_password && settings.sign_in.password,
            support: settings.support.clone(),
            shop: ShopParts {
                sells: settings.payments.is_some(),
                takes_codes: settings.codes,
            },
        })
    }
}

/// Records that a session is used. A page must not fail because this cannot be written. While a
/// write hangs, others do not begin; the next page tries again.
async fn touch(app: &Arc<SidecarState>, token: String, now_ms: i64) {
    let Ok(permit) = Arc::clone(&app.session_touch).try_acquire_owned() else {
        return;
    };
    let accounts = app.accounts.clone();
    let write = run_blocking(move || {
        let outcome = accounts.logins().touch_session(&token, now_ms);
        drop(permit);
        outcome
    });
    match tokio::time::timeout(TOUCH_TIMEOUT, write).await {
        Ok(Ok(Ok(_))) => {}
        Ok(Ok(Err(error))) => log::warn!("sidecar: cannot record the use of a session: {error}"),
        Ok(Err(_)) | Err(_) => log::warn!("sidecar: the write of a session's use does not end"),
    }
}

impl FromRequestParts<Arc<SidecarState>> for OptionalUser {
    type Rejection = Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        app: &Arc<SidecarState>,
    ) -> Result<Self, Infallible> {
        Ok(Self(
            match CurrentUser::from_request_parts(parts, app).await {
                Ok(user) => Some(user),
                // A public page must not fail because the session cannot be read.
                Err(PageError::Internal(error) | PageError::Storage(error)) => {
                    log::warn!("sidecar: cannot read the session of a public page: {error}");
                    None
                }
                Err(_) => None,
            },
        ))
    }
}

impl FromRequest<Arc<SidecarState>> for SignedForm {
    type Rejection = PageError;

    async fn from_request(request: Request, app: &Arc<SidecarState>) -> Result<Self, PageError> {
        let (mut parts, body) = request.into_parts();
        let user = CurrentUser::from_request_parts(&mut parts, app).await?;
        Self::from_user_request(user, Request::from_parts(parts, body), app).await
    }
}

impl SignedForm {
    /// Extracts the form that `user` sent.
    pub async fn from_user_request(
        user: CurrentUser,
        request: Request,
        app: &Arc<SidecarState>,
    ) -> Result<Self, PageError> {
        let (mut parts, body) = request.into_parts();
        let Ok(ClientIp(address)) = ClientIp::from_request_parts(&mut parts, app).await;
        let request = Request::from_parts(parts, body);
        let Form(fields) = Form::<HashMap<String, String>>::from_request(request, app).await?;
        let token = fields.get("csrf").map_or("", String::as_str);
        if !bool::from(token.as_bytes().ct_eq(user.csrf.as_bytes())) {
            return Err(PageError::StaleForm);
        }
        Ok(Self {
            user,
            address,
            fields,
        })
    }
}

impl<S: Sync> FromRequestParts<S> for ClientIp {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::from_head(&parts.headers, &parts.extensions))
    }
}

impl ClientIp {
    /// Returns the address of the client whose request has this head.
    pub fn from_head(headers: &HeaderMap, extensions: &Extensions) -> Self {
        let forwarded = headers
            .get("x-forwarded-for")
            .and_then(|value| value.to_str().ok());
        let forwarded = forwarded.and_then(|list| list.rsplit(',').next()?.trim().parse().ok());
        let peer = || {
            extensions
                .get::<ConnectInfo<PeerAddress>>()
                .map(|info| info.0.0.ip())
        };
        Self(
            forwarded
                .or_else(peer)
                .unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        )
    }
}

/// Returns the URL of the site as the user sees it: the configured URL, with https if the edge
/// reports that the user came by https. The edge accepts this report only from trusted proxies.
pub fn site_url(headers: &HeaderMap, base_url: &str) -> String {
    let by_https = headers
        .get("x-forwarded-proto")
        .is_some_and(|proto| proto == "https");
    match base_url.strip_prefix("http://") {
        Some(rest) if by_https => format!("https://{rest}"),
        _ => base_url.to_owned(),
    }
}

/// A cookie, with its names on https and on plain HTTP. The prefix binds it to this host and to
/// https; plain HTTP cannot use it.
pub struct CookieKind {
    pub secure: &'static str,
    pub plain: &'static str,
    /// How long it lasts; `None`: until the browser ends.
    pub max_age_seconds: Option<i64>,
}

/// The session itself ends after 7 days.
const SESSION_COOKIE: CookieKind = CookieKind {
    secure: "__Host-gw",
    plain: "gw-session",
    max_age_seconds: None,
};

/// The cookie of a sign-in at a provider.
pub const SIGN_IN_COOKIE: CookieKind = CookieKind {
    secure: "__Host-gw-sign-in",
    plain: "gw-sign-in",
    max_age_seconds: None,
};

impl CookieKind {
    fn name(&self, site: &str) -> &'static str {
        match site.starts_with("https://") {
            true => self.secure,
            false => self.plain,
        }
    }
}

pub fn session_token(headers: &HeaderMap, site: &str) -> Option<String> {
    read_cookie(&SESSION_COOKIE, headers, site)
}

/// Returns the value of a cookie of a request.
pub fn read_cookie(kind: &CookieKind, headers: &HeaderMap, site: &str) -> Option<String> {
    let name = kind.name(site);
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(Cookie::split_parse)
        .filter_map(Result::ok)
        .find(|cookie| cookie.name() == name)
        .map(|cookie| cookie.value().to_owned())
}

/// Returns the cookie for a new session. With an empty token, the cookie ends the session.
pub fn session_cookie(token: &str, site: &str) -> Result<HeaderValue, PageError> {
    write_cookie(&SESSION_COOKIE, token, site)
}

/// Returns a cookie with this value. With an empty one, it removes the cookie.
pub fn write_cookie(kind: &CookieKind, value: &str, site: &str) -> Result<HeaderValue, PageError> {
    let cookie = Cookie::build((kind.name(site), value.to_owned()))
        .http_only(true)
        .same_site(SameSite::Lax)
        .path("/")
        .secure(site.starts_with("https://"));
    let max_age = match value.is_empty() {
        true => Some(0),
        false => kind.max_age_seconds,
    };
    let cookie = match max_age {
        Some(seconds) => cookie.max_age(cookie::time::Duration::seconds(seconds)),
        None => cookie,
    };
    HeaderValue::from_str(&cookie.build().to_string())
        .map_err(|error| PageError::Internal(error.to_string()))
}

/// Returns whether users reach the gateway by plain HTTP over a network, where others can read
/// their input.
pub fn is_insecure(base_url: &str) -> bool {
    base_url.starts_with("http://") && !is_local(base_url)
}

/// Returns whether the gateway's address is reachable only from this machine.
pub fn is_local(base_url: &str) -> bool {
    let uri = base_url.parse::<axum::http::Uri>().ok();
    let host = uri.as_ref().and_then(|uri| uri.host()).unwrap_or_default();
    let host = host.trim_matches(['[', ']']);
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cookie_is_bound_to_https_where_there_is_https() {
        let cookie = session_cookie("abc", "https://gw.example").unwrap();
        assert_eq!(
            cookie,
            "__Host-gw=abc; HttpOnly; SameSite=Lax; Secure; Path=/"
        );
        let cookie = session_cookie("abc", "http://127.0.0.1:8080").unwrap();
        assert_eq!(cookie, "gw-session=abc; HttpOnly; SameSite=Lax; Path=/");
    }

    #[test]
    fn the_scheme_is_the_one_that_the_visitor_came_by() {
        let by = |proto: &'static str| {
            HeaderMap::from_iter([("x-forwarded-proto".parse().unwrap(), proto.parse().unwrap())])
        };
        assert_eq!(
            site_url(&by("https"), "http://gw.example"),
            "https://gw.example"
        );
        assert_eq!(
            site_url(&by("http"), "http://gw.example"),
            "http://gw.example"
        );
        assert_eq!(
            site_url(&HeaderMap::new(), "http://gw.example"),
            "http://gw.example"
        );
        assert_eq!(
            site_url(&by("http"), "https://gw.example"),
            "https://gw.example",
            "what is configured is never less"
        );
    }

    #[test]
    fn plain_http_is_insecure_but_on_this_machine() {
        for fine in [
            "https://gw.example",
            "http://127.0.0.1:8080",
            "http://[::1]:8080",
            "http://localhost:8080",
        ] {
            assert!(!is_insecure(fine), "{fine}");
        }
        for bad in [
            "http://gw.example",
            "http://10.0.0.1:8080",
            "http://localhost.evil.example",
        ] {
            assert!(is_insecure(bad), "{bad}");
        }
    }
}
