//! Routes of the operator pages.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[
    ("GET", "/dashboard/operator", [303, 404, 404, 200, 200]),
    (
        "GET",
        "/dashboard/operator/accounts/{id}",
        [303, 404, 404, 404, 404],
    ),
    (
        "POST",
        "/dashboard/operator/accounts/{id}/post",
        [303, 404, 404, 403, 404],
    ),
    (
        "POST",
        "/dashboard/operator/accounts/{id}/suspend",
        [303, 404, 404, 403, 404],
    ),
    (
        "POST",
        "/dashboard/operator/accounts/{id}/resume",
        [303, 404, 404, 403, 404],
    ),
    (
        "POST",
        "/dashboard/operator/accounts/{id}/trial",
        [303, 404, 404, 403, 404],
    ),
    (
        "POST",
        "/dashboard/operator/accounts/{id}/rates",
        [303, 404, 404, 403, 404],
    ),
    (
        "POST",
        "/dashboard/operator/accounts/{id}/keys",
        [303, 404, 404, 403, 404],
    ),
    (
        "POST",
        "/dashboard/operator/accounts/{id}/domains",
        [303, 404, 404, 403, 404],
    ),
    (
        "POST",
        "/dashboard/operator/accounts/{id}/role",
        [303, 404, 404, 403, 404],
    ),
    (
        "POST",
        "/dashboard/operator/accounts/{id}/delete",
        [303, 404, 404, 403, 404],
    ),
    (
        "POST",
        "/dashboard/operator/accounts/{id}/link",
        [303, 404, 404, 403, 404],
    ),
    (
        "POST",
        "/dashboard/operator/accounts/{id}/refund",
        [303, 404, 404, 403, 404],
    ),
    (
        "POST",
        "/dashboard/operator/accounts/{id}/keys/{key}/move",
        [303, 404, 404, 403, 404],
    ),
    (
        "POST",
        "/dashboard/operator/accounts/{id}/keys/{key}/enable",
        [303, 404, 404, 403, 404],
    ),
    (
        "POST",
        "/dashboard/operator/accounts/{id}/keys/{key}/disable",
        [303, 404, 404, 403, 404],
    ),
    (
        "POST",
        "/dashboard/operator/accounts/{id}/keys/{key}/revoke",
        [303, 404, 404, 403, 404],
    ),
    (
        "GET",
        "/dashboard/operator/new-account",
        [303, 404, 404, 403, 200],
    ),
    (
        "POST",
        "/dashboard/operator/new-account",
        [303, 404, 404, 403, 422],
    ),
    (
        "GET",
        "/dashboard/operator/service",
        [303, 404, 404, 200, 200],
    ),
    (
        "POST",
        "/dashboard/operator/test-mail",
        [303, 404, 404, 403, 409],
    ),
    (
        "POST",
        "/dashboard/operator/verify",
        [303, 404, 404, 403, 303],
    ),
    (
        "GET",
        "/dashboard/operator/invites",
        [303, 404, 404, 200, 200],
    ),
    (
        "POST",
        "/dashboard/operator/invites",
        [303, 404, 404, 403, 422],
    ),
    (
        "POST",
        "/dashboard/operator/invites/{id}/withdraw",
        [303, 404, 404, 403, 404],
    ),
    (
        "GET",
        "/dashboard/operator/accounts",
        [303, 404, 404, 200, 200],
    ),
    (
        "GET",
        "/dashboard/operator/accounts/{id}/activity",
        [303, 404, 404, 404, 404],
    ),
    (
        "GET",
        "/dashboard/operator/accounts/{id}/activity.csv",
        [303, 404, 404, 404, 404],
    ),
    (
        "GET",
        "/dashboard/operator/accounts/{id}/spending",
        [303, 404, 404, 404, 404],
    ),
    (
        "GET",
        "/dashboard/operator/accounts/{id}/conversations/{conversation}",
        [303, 404, 404, 404, 404],
    ),
    (
        "GET",
        "/dashboard/operator/activity/{request_id}",
        [303, 404, 404, 404, 404],
    ),
    ("GET", "/dashboard/operator/payments", [404; 5]),
    ("GET", "/dashboard/operator/payments/{id}", [404; 5]),
    ("POST", "/dashboard/operator/payments/{id}/refund", [404; 5]),
    ("GET", "/dashboard/operator/codes", [404; 5]),
    ("POST", "/dashboard/operator/codes", [404; 5]),
    ("POST", "/dashboard/operator/codes/{id}/void", [404; 5]),
    (
        "GET",
        "/dashboard/operator/models",
        [303, 404, 404, 200, 200],
    ),
    (
        "GET",
        "/dashboard/operator/prices/{version}",
        [303, 404, 404, 404, 404],
    ),
    (
        "GET",
        "/dashboard/operator/search",
        [303, 404, 404, 200, 200],
    ),
    (
        "GET",
        "/dashboard/operator/audit",
        [303, 404, 404, 200, 200],
    ),
    ("GET", "/dashboard/operator/log", [303, 404, 404, 303, 303]),
];
