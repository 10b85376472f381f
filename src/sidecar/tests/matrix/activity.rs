//! Routes of billed responses.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[
    ("GET", "/dashboard/activity", [303, 200, 200, 200, 200]),
    (
        "GET",
        "/dashboard/activity/{request_id}",
        [303, 404, 404, 404, 404],
    ),
    ("GET", "/dashboard/activity.csv", [303, 200, 200, 200, 200]),
];
