//! Provides the parts that all pages share: the frame and its navigation.

use super::assets::{Asset, CHART_SCRIPT, FONT, SCRIPT, STYLE};
use super::authz::may_view;
use super::banners::Banner;
use super::brand::PageBrand;
use super::menu::{Menu, MenuReader};
use super::session::CurrentUser;
use super::state::SidecarState;
use crate::payments::CREDITS_PATH;
use accounts::{AccountStatus, MemberAction};
use askama::Template;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Response};
use base::clock::now_ms;
use config::{BrandSettings, SupportContact};
use std::sync::Arc;

/// Values that a frame takes from the request.
#[derive(Clone)]
struct PageContext {
    path: String,
    brand: PageBrand,
}

tokio::task_local! {
    /// Context of the request that the current task answers.
    static CONTEXT: PageContext;
}

/// Sets the context of the pages, as a middleware.
pub async fn set_context(
    State(app): State<Arc<SidecarState>>,
    request: Request,
    next: Next,
) -> Response {
    let context = PageContext {
        path: request.uri().path().to_owned(),
        brand: PageBrand::new(&app.settings.load().brand),
    };
    CONTEXT.scope(context, next.run(request)).await
}

impl PageContext {
    /// Returns the current context. Outside of a request, the context is empty.
    fn current() -> Self {
        CONTEXT.try_with(Self::clone).unwrap_or_else(|_| Self {
            path: String::new(),
            brand: PageBrand::new(&BrandSettings::default()),
        })
    }
}

pub struct Frame {
    pub title: &'static str,
    /// Name of the style file. The names of the scripts follow in the order in which they run.
    pub style: &'static str,
    pub scripts: Vec<&'static str>,
    pub brand: PageBrand,
    pub font: &'static str,
    pub menu: Menu,
    pub viewer: Option<FrameUser>,
    pub banners: Vec<Banner>,
    /// True if passwords and keys cross a network unencrypted.
    pub insecure: bool,
    /// Support contact, on pages that have access to the settings.
    pub support: Option<SupportContact>,
    pub sells_credits: bool,
    /// Number of entries that the page may lack, because the ledger's index lags behind.
    pub index_lag: u64,
    /// When the page was made, in ms since 1970: the reader's clock may be wrong.
    pub now_ms: i64,
}

/// Data of the signed-in user for the frame.
pub struct FrameUser {
    pub email: String,
    /// What the account that is shown is called, if the gateway has organisations.
    pub shown: Option<String>,
    pub csrf: String,
    pub suspended: bool,
}

impl Frame {
    pub fn public(title: &'static str) -> Self {
        let context = PageContext::current();
        Self {
            title,
            style: &STYLE.name,
            scripts: vec![&SCRIPT.name],
            brand: context.brand,
            font: &FONT.name,
            menu: Menu::public(&context.path),
            viewer: None,
            banners: Vec::new(),
            insecure: false,
            support: None,
            sells_credits: false,
            index_lag: 0,
            now_ms: now_ms(),
        }
    }

    pub fn new(title: &'static str, user: &CurrentUser) -> Self {
        let viewer = FrameUser {
            email: user.person.email.clone(),
            shown: user
                .has_organisations
                .then(|| match &user.account.organisation {
                    Some(name) => name.clone(),
                    None => "My account".to_owned(),
                }),
            csrf: user.csrf.clone(),
            suspended: user.account.status == AccountStatus::Suspended,
        };
        let path = PageContext::current().path;
        let reader = MenuReader {
            is_operator: may_view(&user.person),
            role: user.role,
            shop: user.shop,
            has_organisations: user.has_organisations,
        };
        let menu = Menu::signed_in(reader, &path);
        // Operator pages omit banners that concern the operator's own credits.
        let mut banners = user.banners.clone();
        banners.retain(|banner| banner.is_of_operators || !menu.is_of_operators());
        Self {
            menu,
            viewer: Some(viewer),
            banners,
            insecure: user.insecure,
            support: user.support.clone(),
            sells_credits: user.shop.sells,
            ..Self::public(title)
        }
    }

    /// Returns whether the signed-in user's account is suspended, so that its keys do not work.
    pub fn is_suspended(&self) -> bool {
        self.viewer.as_ref().is_some_and(|viewer| viewer.suspended)
    }

    /// Returns the frame of a public page, with the menu of the reader's account if there is a
    /// session.
    pub fn for_anyone(title: &'static str, user: Option<&CurrentUser>) -> Self {
        user.map_or_else(|| Self::public(title), |user| Self::new(title, user))
    }

    /// Returns whether the reader may have keys in the account that is shown.
    pub fn may_use_keys(&self) -> bool {
        self.menu.reader_may(MemberAction::UseKeys)
    }

    /// Returns whether the reader may get credits for the account that is shown.
    pub fn may_manage_money(&self) -> bool {
        self.menu.reader_may(MemberAction::ManageMoney)
    }

    /// Returns the link to more credits: the page that sells them, or else the operator's address
    /// from the settings.
    pub fn credits_link(&self) -> Option<&str> {
        if self.sells_credits {
            return Some(CREDITS_PATH);
        }
        let contact = self.support.as_ref()?;
        contact.is_link.then_some(contact.text.as_str())
    }

    /// Sets the number of entries that are not indexed yet. A page must determine it after reading
    /// the index, so that the page never claims entries that it lacks.
    #[must_use]
    pub fn with_index_lag(self, index_lag: u64) -> Self {
        Self { index_lag, ..self }
    }

    #[must_use]
    pub fn with_charts(self) -> Self {
        self.with_script(&CHART_SCRIPT)
    }

    /// Adds a script for only some pages. The script can use the functions of `app.js`.
    #[must_use]
    pub fn with_script(mut self, script: &'static Asset) -> Self {
        self.scripts.push(&script.name);
        self
    }
}

pub fn html(status: StatusCode, page: &impl Template) -> Response {
    match page.render() {
        Ok(text) => (status, Html(text)).into_response(),
        Err(error) => {
            // A `PageError` would render a page again, so the error is logged here.
            log::error!("sidecar: cannot render a page: {error}");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Builds the response for a page with the frame of [`Frame::for_anyone`].
pub fn html_for_anyone(page: &impl Template, user: Option<&CurrentUser>) -> Response {
    let mut response = html(StatusCode::OK, page);
    let vary = HeaderValue::from_static("cookie");
    response.headers_mut().insert(header::VARY, vary);
    // A page with a menu contains the user's e-mail and form token, so it gets `no-store` like all
    // others.
    match user {
        Some(_) => response,
        None => with_no_cache(response),
    }
}

/// Adds `no-cache`: prices can change at any time, so clients must revalidate their copy.
pub fn with_no_cache(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
