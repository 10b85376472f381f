//! Route of the files that depend on the brand.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[("GET", "/dashboard/brand/{file}", [404; 5])];
