//! Routes of the public documentation.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[
    ("GET", "/docs", [200; 5]),
    ("GET", "/docs/models.json", [200; 5]),
];
