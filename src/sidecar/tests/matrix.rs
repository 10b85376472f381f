//! The status of every route for every role, one file per area of the sidecar.

mod account;
mod activity;
mod alerts;
mod assets;
mod brand;
mod buying;
mod catalog;
mod conversations;
mod device;
mod keys;
mod links;
mod operator;
mod organisation;
mod overview;
mod playground;
mod profile;
mod providers;
mod setup;
mod spending;
mod statement;

/// Method, path, and the statuses for an anonymous client, an account holder, a suspended account
/// holder, a viewer and an administrator. A form is sent with its token and nothing else.
pub type RouteAccess = (&'static str, &'static str, [u16; 5]);

/// The areas by the names of their files below `src/sidecar`.
pub const AREAS: &[(&str, &[RouteAccess])] = &[
    ("account", account::ROUTES),
    ("activity", activity::ROUTES),
    ("alerts", alerts::ROUTES),
    ("assets", assets::ROUTES),
    ("brand", brand::ROUTES),
    ("buying", buying::ROUTES),
    ("catalog", catalog::ROUTES),
    ("conversations", conversations::ROUTES),
    ("device", device::ROUTES),
    ("keys", keys::ROUTES),
    ("links", links::ROUTES),
    ("operator", operator::ROUTES),
    ("organisation", organisation::ROUTES),
    ("overview", overview::ROUTES),
    ("playground", playground::ROUTES),
    ("profile", profile::ROUTES),
    ("providers", providers::ROUTES),
    ("setup", setup::ROUTES),
    ("spending", spending::ROUTES),
    ("statement", statement::ROUTES),
];

/// The routes of all areas.
pub fn all() -> impl Iterator<Item = &'static RouteAccess> {
    AREAS.iter().flat_map(|(_, routes)| *routes)
}
