//! Routes of the overview.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[
    ("GET", "/", [303; 5]),
    ("GET", "/dashboard", [303, 200, 200, 200, 200]),
    ("GET", "/dashboard/live", [303, 200, 200, 200, 200]),
];
