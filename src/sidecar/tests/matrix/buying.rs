//! Routes of credits, where none are sold.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[
    ("GET", "/dashboard/credits", [303, 404, 404, 404, 404]),
    ("POST", "/dashboard/credits", [303, 404, 404, 404, 404]),
    ("GET", "/dashboard/credits/{id}", [303, 404, 404, 404, 404]),
    (
        "POST",
        "/dashboard/credits/redeem",
        [303, 404, 404, 404, 404],
    ),
    ("POST", "/webhooks/stripe", [404, 404, 404, 404, 404]),
];
