//! Lists the vendors' error messages by status.
//!
//! This file must not define the format of an error (`errors.rs` does).

/// Returns the messages vendor's error type for a status.
pub fn messages_error_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        409 => "conflict_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    }
}

/// Returns the messages vendor's default message for a status.
pub fn messages_error_message(status: u16) -> &'static str {
    match status {
        400 | 422 => "messages: Input should be a valid list",
        401 => "invalid x-api-key",
        402 => "Your account has a billing problem.",
        403 => "Your API key does not have permission to use the specified resource.",
        404 => "model: simulated",
        408 | 504 => "Request timed out.",
        409 => "The request conflicts with another one.",
        413 => "Request exceeds the maximum size",
        429 => {
            "This request would exceed your organization's rate limit of 50 requests per minute."
        }
        503 | 529 => "Overloaded",
        500.. => "Internal server error",
        _ => "Simulated error",
    }
}

/// Returns the chat vendor's default message for a status.
pub fn chat_error_message(status: u16) -> &'static str {
    match status {
        400 | 422 => "Invalid value for 'messages'.",
        401 => "Incorrect API key provided: sk-sim****.",
        402 => "Your account is not active, please check your billing details.",
        403 => {
            "You have insufficient permissions for this operation. Missing scopes: model.request."
        }
        404 => "The model `simulated` does not exist or you do not have access to it.",
        408 | 504 => "Request timed out.",
        409 => "The resource was updated by another request.",
        413 => "Request body is too large.",
        429 => "Rate limit reached for requests. Limit: 3 / min. Please try again in 20s.",
        503 | 529 => "The engine is currently overloaded, please try again later",
        500.. => "The server had an error while processing your request. Sorry about that!",
        _ => "Simulated error",
    }
}
