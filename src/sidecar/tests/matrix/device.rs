//! Routes of sign-in from a terminal. Without `sign_in.device`, there is none.

use super::RouteAccess;

pub const ROUTES: &[RouteAccess] = &[
    ("GET", "/.well-known/oauth-authorization-server", [404; 5]),
    ("POST", "/oauth/device_authorization", [404; 5]),
    ("POST", "/oauth/token", [404; 5]),
    ("POST", "/oauth/revoke", [404; 5]),
    ("GET", "/device", [404; 5]),
    ("POST", "/device", [404; 5]),
    ("GET", "/managed/settings", [404; 5]),
];
