//! Routes of keys.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[
    ("GET", "/dashboard/keys", [303, 200, 200, 200, 200]),
    ("POST", "/dashboard/keys", [303, 422, 422, 422, 422]),
    (
        "GET",
        "/dashboard/keys/new/{ticket}",
        [303, 404, 404, 404, 404],
    ),
    ("GET", "/dashboard/keys/{id}", [303, 404, 404, 404, 404]),
    (
        "POST",
        "/dashboard/keys/{id}/settings",
        [303, 404, 404, 404, 404],
    ),
    (
        "POST",
        "/dashboard/keys/{id}/enable",
        [303, 404, 404, 404, 404],
    ),
    (
        "POST",
        "/dashboard/keys/{id}/disable",
        [303, 404, 404, 404, 404],
    ),
    (
        "POST",
        "/dashboard/keys/{id}/rotate",
        [303, 404, 404, 404, 404],
    ),
    (
        "GET",
        "/dashboard/keys/{id}/revoke",
        [303, 404, 404, 404, 404],
    ),
    (
        "POST",
        "/dashboard/keys/{id}/revoke",
        [303, 404, 404, 404, 404],
    ),
];
