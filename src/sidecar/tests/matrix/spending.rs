//! Routes of the spending page.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[("GET", "/dashboard/spending", [303, 200, 200, 200, 200])];
