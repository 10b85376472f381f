//! Routes of conversations.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[
    ("GET", "/dashboard/conversations", [303, 200, 200, 200, 200]),
    (
        "GET",
        "/dashboard/conversations/{id}",
        [303, 404, 404, 404, 404],
    ),
];
