//! Routes of one-time links. They are for someone who cannot sign in.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[
    (
        "POST",
        "/dashboard/account/verify",
        [303, 404, 404, 404, 404],
    ),
    ("GET", "/dashboard/forgot", [200; 5]),
    ("POST", "/dashboard/forgot", [400; 5]),
    ("GET", "/dashboard/link/{token}", [410; 5]),
    ("POST", "/dashboard/link/{token}", [410; 5]),
];
