//! Routes of the set-up pages.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[
    ("GET", "/dashboard/setup", [303, 200, 200, 200, 200]),
    (
        "GET",
        "/dashboard/setup/{client}",
        [303, 404, 404, 404, 404],
    ),
    ("GET", "/docs/clients/{client}", [404; 5]),
];
