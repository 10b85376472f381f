//! Parts common to all pages: the frame with its navigation.

use super::assets::{Asset, CHART_SCRIPT, CHART_STYLE, MARK, SCRIPT, STYLE};
use super::authz::may_view;
use super::menu::Menu;
use super::session::CurrentUser;
use accounts::AccountStatus;
use askama::Template;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Response};
use config::SupportContact;

tokio::task_local! {
    /// Path of the request that the current task answers.
    static PATH: String;
}

/// Middleware: [`Frame`] finds out which page it is for.
pub async fn note_path(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    PATH.scope(path, next.run(request)).await
}

/// Empty outside of a request.
fn current_path() -> String {
    PATH.try_with(String::clone).unwrap_or_default()
}

/// Values of the frame template.
pub struct Frame {
    pub title: &'static str,
    /// Names of the styles, and of the scripts in the order in which they run.
    pub styles: Vec<&'static str>,
    pub scripts: Vec<&'static str>,
    /// Address of the logo, which is also the icon of the tab.
    pub logo: String,
    pub menu: Menu,
    pub viewer: Option<FrameUser>,
    /// Passwords and keys cross a network unencrypted.
    pub insecure: bool,
    /// Whom to ask for help, on pages that know the settings.
    pub support: Option<SupportContact>,
    /// Number of entries that the page may lack, because the ledger's index is behind.
    pub index_lag: u64,
}

/// The signed-in user, as the frame shows it.
pub struct FrameUser {
    pub email: String,
    pub csrf: String,
    pub suspended: bool,
}

impl Frame {
    pub fn public(title: &'static str) -> Self {
        Self {
            title,
            styles: vec![&STYLE.name],
            scripts: vec![&SCRIPT.name],
            logo: format!("/dashboard/static/{}", MARK.name),
            menu: Menu::public(&current_path()),
            viewer: None,
            insecure: false,
            support: None,
            index_lag: 0,
        }
    }

    pub fn new(title: &'static str, user: &CurrentUser) -> Self {
        let viewer = FrameUser {
            email: user.account.email.clone(),
            csrf: user.csrf.clone(),
            suspended: user.account.status == AccountStatus::Suspended,
        };
        Self {
            menu: Menu::signed_in(may_view(&user.account), &current_path()),
            viewer: Some(viewer),
            insecure: user.insecure,
            support: user.support.clone(),
            ..Self::public(title)
        }
    }

    /// Whether the signed-in user's account is suspended, so that its keys do not work.
    pub fn is_suspended(&self) -> bool {
        self.viewer.as_ref().is_some_and(|viewer| viewer.suspended)
    }

    /// The frame of a public page, with the menu of the reader's account if there is a session.
    pub fn for_anyone(title: &'static str, user: Option<&CurrentUser>) -> Self {
        user.map_or_else(|| Self::public(title), |user| Self::new(title, user))
    }

    /// Says how many of the newest entries are not indexed. A page that reads the index asks for
    /// the number after that.
    #[must_use]
    pub fn with_index_lag(self, index_lag: u64) -> Self {
        Self { index_lag, ..self }
    }

    #[must_use]
    pub fn with_charts(self) -> Self {
        self.with_style(&CHART_STYLE).with_script(&CHART_SCRIPT)
    }

    /// Adds a style that only some pages need.
    #[must_use]
    pub fn with_style(mut self, style: &'static Asset) -> Self {
        self.styles.push(&style.name);
        self
    }

    /// Adds a script that only some pages need. It can use what `app.js` defines.
    #[must_use]
    pub fn with_script(mut self, script: &'static Asset) -> Self {
        self.scripts.push(&script.name);
        self
    }
}

/// Renders a page.
pub fn html(status: StatusCode, page: &impl Template) -> Response {
    match page.render() {
        Ok(text) => (status, Html(text)).into_response(),
        Err(error) => {
            // Not a `PageError`: that would render a page again.
            log::error!("sidecar: cannot render a page: {error}");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Builds the response of a page with [`Frame::for_anyone`].
pub fn html_for_anyone(page: &impl Template, user: Option<&CurrentUser>) -> Response {
    let mut response = html(StatusCode::OK, page);
    let vary = HeaderValue::from_static("cookie");
    response.headers_mut().insert(header::VARY, vary);
    // A page with a menu has the user's e-mail and form token. It gets `no-store`, like all others.
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
