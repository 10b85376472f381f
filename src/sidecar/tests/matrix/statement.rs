//! Routes of the statement.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[
    ("GET", "/dashboard/statement", [303, 200, 200, 200, 200]),
    ("GET", "/dashboard/statement.csv", [303, 200, 200, 200, 200]),
];
