//! Routes of sign-in with an identity provider. Without the section `sign_in`, there is none.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[
    ("POST", "/dashboard/sign-in/{provider}", [404; 5]),
    ("GET", "/dashboard/sign-in/{provider}/callback", [404; 5]),
    ("GET", "/dashboard/sign-in/{provider}/complete", [404; 5]),
    ("POST", "/dashboard/sign-in/{provider}/complete", [404; 5]),
];
