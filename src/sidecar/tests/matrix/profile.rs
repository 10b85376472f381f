//! Routes of the account page.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[
    ("GET", "/dashboard/account", [303, 200, 200, 200, 200]),
    (
        "GET",
        "/dashboard/account/export",
        [303, 200, 200, 200, 200],
    ),
    (
        "POST",
        "/dashboard/account/password",
        [303, 403, 403, 403, 403],
    ),
    (
        "POST",
        "/dashboard/account/sessions/{id}/end",
        [303, 404, 404, 404, 404],
    ),
    (
        "POST",
        "/dashboard/account/end-other-sessions",
        [303, 200, 200, 200, 200],
    ),
    (
        "POST",
        "/dashboard/account/identities/{id}/unlink",
        [303, 404, 404, 404, 404],
    ),
    (
        "POST",
        "/dashboard/account/delete",
        [303, 422, 422, 422, 422],
    ),
];
