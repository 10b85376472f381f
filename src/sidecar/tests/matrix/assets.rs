//! Route of the static files.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[("GET", "/dashboard/static/{file}", [404; 5])];
