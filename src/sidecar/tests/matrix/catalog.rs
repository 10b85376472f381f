//! Routes of the public documentation.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[
    ("GET", "/docs", [200; 5]),
    ("GET", "/docs/clients", [200; 5]),
    ("GET", "/docs/models", [200; 5]),
    ("GET", "/docs/billing", [200; 5]),
    ("GET", "/docs/errors", [200; 5]),
    ("GET", "/docs/models.json", [200; 5]),
];
