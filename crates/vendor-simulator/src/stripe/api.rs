//! Contains the table of the calls of Stripe's API that a shop uses, with their parameters and
//! checks.
//!
//! This file must not change an object.

use super::currency;
use super::errors::StripeRefusal;
use super::form::{StripeForm, segments};

/// Effect of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StripeOperation {
    CreateSession,
    ExpireSession,
    CreateCustomer,
    CreatePayment,
    CreateRefund,
    /// The call removes a payment method from its customer.
    DetachMethod,
    /// The call returns the object of this type that the path names.
    Retrieve(&'static str),
    /// The call lists objects of this type, newest first.
    List(&'static str),
}

#[derive(Debug, Clone, Copy)]
pub enum ParamForm {
    /// The value is a text of at most this number of characters.
    Text(usize),
    Integer,
    Flag,
    Word(&'static [&'static str]),
    Currency,
    Url,
}

/// A call of the API.
pub struct StripeCall {
    pub method: &'static str,
    /// Path of the call, where `{id}` is the id of an object.
    pub path: &'static str,
    pub operation: StripeOperation,
    /// Names and forms of the parameters. In a name, `#` is an index and `*` any key.
    params: &'static [(&'static str, ParamForm)],
    required: &'static [&'static str],
    /// Values that `expand[]` may have.
    expands: &'static [&'static str],
}

/// Form of most texts. The next constants are the forms of a value of `metadata` and of an id.
const LONG: ParamForm = ParamForm::Text(5_000);
const METADATA: ParamForm = ParamForm::Text(500);
const ID: ParamForm = ParamForm::Text(255);
/// Maximum length of a key of `metadata`. The next constant is the maximum number of keys.
const MAX_METADATA_KEY: usize = 40;
const MAX_METADATA: usize = 50;

const LIST: &[(&str, ParamForm)] = &[
    ("limit", ParamForm::Integer),
    ("starting_after", ID),
    ("ending_before", ID),
    ("created[gt]", ParamForm::Integer),
    ("created[gte]", ParamForm::Integer),
    ("created[lt]", ParamForm::Integer),
    ("created[lte]", ParamForm::Integer),
    ("payment_intent", ID),
    ("charge", ID),
    ("customer", ID),
    ("type", ID),
    ("status", ParamForm::Word(&["open", "complete", "expired"])),
];

const SESSION: &[(&str, ParamForm)] = &[
    (
        "mode",
        ParamForm::Word(&["payment", "setup", "subscription"]),
    ),
    ("client_reference_id", ParamForm::Text(200)),
    ("metadata[*]", METADATA),
    ("payment_intent_data[metadata][*]", METADATA),
    ("payment_intent_data[description]", ParamForm::Text(1_000)),
    ("payment_intent_data[receipt_email]", ParamForm::Text(800)),
    (
        "payment_intent_data[setup_future_usage]",
        ParamForm::Word(&["off_session", "on_session"]),
    ),
    ("setup_intent_data[metadata][*]", METADATA),
    ("setup_intent_data[description]", ParamForm::Text(1_000)),
    ("currency", ParamForm::Currency),
    (
        "payment_method_options[card][setup_future_usage]",
        ParamForm::Word(&["off_session", "on_session"]),
    ),
    (
        "payment_method_options[card][request_three_d_secure]",
        ParamForm::Word(&["any", "automatic", "challenge"]),
    ),
    ("line_items[#][quantity]", ParamForm::Integer),
    ("line_items[#][price_data][currency]", ParamForm::Currency),
    ("line_items[#][price_data][unit_amount]", ParamForm::Integer),
    (
        "line_items[#][price_data][tax_behavior]",
        ParamForm::Word(&["exclusive", "inclusive", "unspecified"]),
    ),
    (
        "line_items[#][price_data][product_data][name]",
        ParamForm::Text(250),
    ),
    ("line_items[#][price_data][product_data][description]", LONG),
    ("line_items[#][price_data][product_data][tax_code]", ID),
    ("success_url", ParamForm::Url),
    ("cancel_url", ParamForm::Url),
    ("expires_at", ParamForm::Integer),
    ("customer", ID),
    ("customer_email", ParamForm::Text(800)),
    (
        "customer_creation",
        ParamForm::Word(&["always", "if_required"]),
    ),
    ("automatic_tax[enabled]", ParamForm::Flag),
    ("allow_promotion_codes", ParamForm::Flag),
    (
        "billing_address_collection",
        ParamForm::Word(&["auto", "required"]),
    ),
    ("tax_id_collection[enabled]", ParamForm::Flag),
    ("invoice_creation[enabled]", ParamForm::Flag),
    (
        "submit_type",
        ParamForm::Word(&["auto", "book", "donate", "pay", "subscribe"]),
    ),
    (
        "ui_mode",
        ParamForm::Word(&["elements", "embedded_page", "form", "hosted_page"]),
    ),
    (
        "saved_payment_method_options[payment_method_save]",
        ParamForm::Word(&["enabled", "disabled"]),
    ),
    // The second is the name in versions from 2026-10-28 on.
    ("payment_method_types[#]", ID),
    ("allowed_payment_method_types[#]", ID),
];

const PAYMENT: &[(&str, ParamForm)] = &[
    ("amount", ParamForm::Integer),
    ("currency", ParamForm::Currency),
    ("customer", ID),
    ("payment_method", ID),
    ("confirm", ParamForm::Flag),
    (
        "off_session",
        ParamForm::Word(&["true", "false", "one_off", "recurring"]),
    ),
    ("error_on_requires_action", ParamForm::Flag),
    ("automatic_payment_methods[enabled]", ParamForm::Flag),
    (
        "automatic_payment_methods[allow_redirects]",
        ParamForm::Word(&["always", "never"]),
    ),
    (
        "setup_future_usage",
        ParamForm::Word(&["off_session", "on_session"]),
    ),
    ("receipt_email", ParamForm::Text(800)),
    ("return_url", ParamForm::Url),
    ("statement_descriptor_suffix", ParamForm::Text(22)),
    ("description", ParamForm::Text(1_000)),
    ("metadata[*]", METADATA),
    ("payment_method_types[#]", ID),
    ("allowed_payment_method_types[#]", ID),
];

const REFUND: &[(&str, ParamForm)] = &[
    ("payment_intent", ID),
    ("charge", ID),
    ("amount", ParamForm::Integer),
    (
        "reason",
        ParamForm::Word(&["duplicate", "fraudulent", "requested_by_customer"]),
    ),
    ("metadata[*]", METADATA),
];

const CUSTOMER: &[(&str, ParamForm)] = &[
    ("email", ParamForm::Text(512)),
    ("name", ParamForm::Text(256)),
    ("description", LONG),
    ("metadata[*]", METADATA),
];

const fn call(
    method: &'static str,
    path: &'static str,
    operation: StripeOperation,
    params: &'static [(&'static str, ParamForm)],
    required: &'static [&'static str],
    expands: &'static [&'static str],
) -> StripeCall {
    StripeCall {
        method,
        path,
        operation,
        params,
        required,
        expands,
    }
}

const OF_SESSION: &[&str] = &[
    "payment_intent",
    "payment_intent.latest_charge",
    "customer",
    "line_items",
    "setup_intent",
    "setup_intent.payment_method",
];
const OF_CHARGE: &[&str] = &[
    "payment_intent",
    "customer",
    "refunds",
    "data.payment_intent",
];

#[rustfmt::skip]
pub const CALLS: &[StripeCall] = {
    use StripeOperation::*;
    &[
        call("POST", "/v1/checkout/sessions", CreateSession, SESSION, &["mode", "success_url"], OF_SESSION),
        call("GET", "/v1/checkout/sessions", List("checkout.session"), LIST, &[], &["data.payment_intent", "data.payment_intent.latest_charge"]),
        call("GET", "/v1/checkout/sessions/{id}", Retrieve("checkout.session"), &[], &[], OF_SESSION),
        call("POST", "/v1/checkout/sessions/{id}/expire", ExpireSession, &[], &[], OF_SESSION),
        call("POST", "/v1/customers", CreateCustomer, CUSTOMER, &[], &[]),
        call("GET", "/v1/customers/{id}", Retrieve("customer"), &[], &[], &[]),
        call("GET", "/v1/customers/{id}/payment_methods", List("payment_method"), LIST, &[], &[]),
        call("GET", "/v1/payment_methods/{id}", Retrieve("payment_method"), &[], &[], &["customer"]),
        call("POST", "/v1/payment_methods/{id}/detach", DetachMethod, &[], &[], &["customer"]),
        call("GET", "/v1/setup_intents", List("setup_intent"), LIST, &[], &["data.payment_method"]),
        call("GET", "/v1/setup_intents/{id}", Retrieve("setup_intent"), &[], &[], &["customer", "payment_method"]),
        call("POST", "/v1/payment_intents", CreatePayment, PAYMENT, &["amount", "currency"], &["latest_charge", "customer"]),
        call("GET", "/v1/payment_intents", List("payment_intent"), LIST, &[], &["data.latest_charge"]),
        call("GET", "/v1/payment_intents/{id}", Retrieve("payment_intent"), &[], &[], &["latest_charge", "customer", "payment_method"]),
        call("GET", "/v1/charges", List("charge"), LIST, &[], OF_CHARGE),
        call("GET", "/v1/charges/{id}", Retrieve("charge"), &[], &[], OF_CHARGE),
        call("POST", "/v1/refunds", CreateRefund, REFUND, &[], &["charge", "payment_intent"]),
        call("GET", "/v1/refunds", List("refund"), LIST, &[], &["data.charge", "data.payment_intent"]),
        call("GET", "/v1/refunds/{id}", Retrieve("refund"), &[], &[], &["charge", "payment_intent"]),
        call("GET", "/v1/disputes", List("dispute"), LIST, &[], &["data.charge", "data.payment_intent"]),
        call("GET", "/v1/disputes/{id}", Retrieve("dispute"), &[], &[], &["charge", "payment_intent"]),
        call("GET", "/v1/events", List("event"), LIST, &[], &[]),
        call("GET", "/v1/events/{id}", Retrieve("event"), &[], &[], &[]),
    ]
};

/// Returns the call of a request, and the id in its path.
pub fn find<'a>(method: &str, path: &'a str) -> Option<(&'static StripeCall, &'a str)> {
    CALLS
        .iter()
        .filter(|call| call.method == method)
        .find_map(|call| {
            let Some((before, after)) = call.path.split_once("{id}") else {
                return (call.path == path).then_some((call, ""));
            };
            let id = path.strip_prefix(before)?.strip_suffix(after)?;
            (!id.is_empty() && !id.contains('/')).then_some((call, id))
        })
}

impl StripeCall {
    pub fn check(&self, form: &StripeForm) -> Result<(), StripeRefusal> {
        for (name, value) in form.iter() {
            if let Some(index) = name.strip_prefix("expand[") {
                if index
                    .strip_suffix(']')
                    .is_none_or(|it| it.parse::<u8>().is_err())
                {
                    return Err(StripeRefusal::invalid(
                        "parameter_unknown",
                        "expand",
                        "Invalid array",
                    ));
                }
                if !self.expands.contains(&value) {
                    let message = format!("This property cannot be expanded ({value}).");
                    return Err(StripeRefusal::invalid(
                        "property_cannot_be_expanded",
                        "expand",
                        message,
                    ));
                }
                continue;
            }
            let form = self.params.iter().find(|(known, _)| has_name(known, name));
            let Some((_, form)) = form else {
                let message = format!("Received unknown parameter: {name}");
                return Err(StripeRefusal::invalid("parameter_unknown", name, message));
            };
            check_value(name, value, *form)?;
        }
        for name in self.required {
            let is_there = form.iter().any(|(sent, _)| {
                sent.strip_prefix(name)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
            });
            if !is_there {
                let message = format!("Missing required param: {name}.");
                return Err(StripeRefusal::invalid("parameter_missing", name, message));
            }
        }
        for map in [
            "metadata",
            "payment_intent_data[metadata]",
            "setup_intent_data[metadata]",
        ] {
            let map = form.map(map);
            if map.len() > MAX_METADATA
                || map.keys().any(|key| key.chars().count() > MAX_METADATA_KEY)
            {
                let message = "Metadata can have up to 50 keys of up to 40 characters";
                return Err(StripeRefusal::invalid(
                    "parameter_invalid",
                    "metadata",
                    message,
                ));
            }
        }
        Ok(())
    }
}

/// Returns whether a name matches a pattern.
fn has_name(pattern: &str, name: &str) -> bool {
    let (Some(pattern), Some(name)) = (segments(pattern), segments(name)) else {
        return false;
    };
    pattern.len() == name.len()
        && pattern
            .iter()
            .zip(name)
            .all(|(pattern, part)| match *pattern {
                "#" => part.parse::<u8>().is_ok_and(|index| index < 100),
                "*" => true,
                pattern => pattern == part,
            })
}

fn check_value(name: &str, value: &str, form: ParamForm) -> Result<(), StripeRefusal> {
    let wrong = |code, message: String| Err(StripeRefusal::invalid(code, name, message));
    if value.is_empty() {
        return wrong(
            "parameter_invalid_empty",
            format!(
                "You passed an empty string for '{name}'. We assume empty values are an attempt to unset a parameter; however '{name}' cannot be unset."
            ),
        );
    }
    match form {
        ParamForm::Text(max) if value.chars().count() > max => wrong(
            "parameter_invalid_string",
            format!("Invalid string: must be at most {max} characters"),
        ),
        // Only digits are allowed, because Stripe reads no sign, space or fraction.
        ParamForm::Integer
            if !value.bytes().all(|byte| byte.is_ascii_digit())
                || value.parse::<i64>().is_err() =>
        {
            wrong(
                "parameter_invalid_integer",
                format!("Invalid integer: {value}"),
            )
        }
        ParamForm::Flag if value != "true" && value != "false" => {
            wrong("parameter_invalid", format!("Invalid boolean: {value}"))
        }
        ParamForm::Word(words) if !words.contains(&value) => wrong(
            "parameter_invalid",
            format!("Invalid {name}: must be one of {}", words.join(", ")),
        ),
        ParamForm::Currency if !currency::is_known(value) => {
            wrong("parameter_invalid", format!("Invalid currency: {value}"))
        }
        ParamForm::Url if !is_url(value) => wrong("url_invalid", "Not a valid URL".to_owned()),
        _ => Ok(()),
    }
}

fn is_url(text: &str) -> bool {
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    let host = rest.and_then(|rest| rest.split(['/', '?', '#']).next());
    host.is_some_and(|host| !host.is_empty())
        && !text.contains(|letter: char| letter.is_whitespace())
}
