//! Routes to sign up, sign in and sign out.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[
    ("GET", "/dashboard/sign-up", [200; 5]),
    ("POST", "/dashboard/sign-up", [400; 5]),
    ("GET", "/dashboard/sign-in", [200; 5]),
    ("POST", "/dashboard/sign-in", [400; 5]),
    ("POST", "/dashboard/sign-out", [303; 5]),
];
