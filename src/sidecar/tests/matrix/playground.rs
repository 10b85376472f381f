//! Routes of the playground.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[
    ("GET", "/dashboard/playground", [303, 200, 200, 200, 200]),
    (
        "POST",
        "/dashboard/playground/key",
        [303, 422, 422, 422, 422],
    ),
];
