//! Routes of credits, where none are sold: they do not exist.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[
    ("GET", "/dashboard/credits", [404; 5]),
    ("POST", "/dashboard/credits", [404; 5]),
    ("POST", "/dashboard/credits/auto", [404; 5]),
    ("POST", "/dashboard/credits/auto/stop", [404; 5]),
    ("GET", "/dashboard/credits/{id}", [404; 5]),
    ("GET", "/dashboard/credits/{id}/provider-receipt", [404; 5]),
    ("POST", "/dashboard/credits/redeem", [404; 5]),
    ("POST", "/webhooks/stripe", [404; 5]),
];
