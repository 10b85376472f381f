//! Routes of organisations, which this gateway has not: `tests/organisation.rs` has one that does.

use super::RouteAccess;

const NONE: [u16; 5] = [404; 5];

pub const ROUTES: &[RouteAccess] = &[
    ("GET", "/dashboard/organisation", NONE),
    ("POST", "/dashboard/organisation", NONE),
    ("POST", "/dashboard/organisation/invites", NONE),
    ("POST", "/dashboard/organisation/invites/{id}/revoke", NONE),
    ("POST", "/dashboard/organisation/members/{id}/role", NONE),
    ("POST", "/dashboard/organisation/members/{id}/budget", NONE),
    ("GET", "/dashboard/organisation/members/{id}/models", NONE),
    ("POST", "/dashboard/organisation/members/{id}/models", NONE),
    ("GET", "/dashboard/organisation/members/{id}/remove", NONE),
    ("POST", "/dashboard/organisation/members/{id}/remove", NONE),
    ("GET", "/dashboard/switch", NONE),
    ("POST", "/dashboard/switch", NONE),
    ("GET", "/dashboard/join/{token}", NONE),
    ("POST", "/dashboard/join/{token}", NONE),
];
