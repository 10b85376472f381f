//! Routes of the alerts page. Nobody of the matrix has a webhook.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[
    ("GET", "/dashboard/alerts", [303, 200, 200, 200, 200]),
    ("POST", "/dashboard/alerts/rules", [303, 303, 303, 303, 303]),
    ("POST", "/dashboard/alerts/seen", [303, 404, 404, 404, 404]),
    (
        "POST",
        "/dashboard/alerts/webhook",
        [303, 422, 422, 422, 422],
    ),
    (
        "POST",
        "/dashboard/alerts/webhook/rotate",
        [303, 404, 404, 404, 404],
    ),
    (
        "POST",
        "/dashboard/alerts/webhook/remove",
        [303, 404, 404, 404, 404],
    ),
    (
        "POST",
        "/dashboard/alerts/webhook/test",
        [303, 409, 409, 409, 409],
    ),
    (
        "POST",
        "/dashboard/alerts/deliveries/{id}/resend",
        [303, 404, 404, 404, 404],
    ),
];
