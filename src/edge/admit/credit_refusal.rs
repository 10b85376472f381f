//! Builds the error for a client whose account cannot pay. It names the tokens that the client
//! asked for, the tokens that its credits pay for, the cause, and where to buy credits. Of a
//! suspended account, it names whom to ask.
//!
//! This file must not decide whether a request can be paid.

use crate::billing::ReserveError;
use crate::payments::CREDITS_PATH;
use base::clock::rfc3339;
use config::Settings;
use credits::limits::Spender;
use credits::money::Micro;
use credits::pricing::Quote;
use llm_protocol::failure::{Failure, Kind};
use std::fmt::Write as _;

/// Returns the failure of a suspended account, with whom its holder can ask.
pub(super) fn suspended(settings: &Settings) -> Failure {
    let mut failure = Failure::from_kind(Kind::AccountSuspended);
    if let Some(support) = &settings.support {
        failure.message = format!("{} Contact: {}", failure.message, support.shown());
    }
    failure
}

/// Returns the failure for an account without enough credits. `asked` is the request's quote, if
/// the body was read, and whether the output limit may not be lowered.
pub(super) fn failure(
    refused: &ReserveError,
    settings: &Settings,
    asked: Option<(&Quote, bool)>,
    now_ms: i64,
) -> Failure {
    let mut spend_advice = None;
    let (kind, cause, payable) = match refused {
        ReserveError::SpendLimit { of, period, free } => {
            let (kind, limit, advice) = match of {
                Spender::Key => (
                    Kind::KeySpendLimit,
                    "spend limit of this key",
                    format!(
                        "Raise the limit at {}/dashboard/keys, or use another key.",
                        settings.base_url
                    ),
                ),
                Spender::Member => (
                    Kind::MemberBudget,
                    "budget of this key's member",
                    format!(
                        "An owner or admin of the organisation can raise it at {}/dashboard/organisation",
                        settings.base_url
                    ),
                ),
            };
            let ends = match period.end_ms(now_ms) {
                Some(end_ms) => format!("{}, until {}", period.name(), rfc3339(end_ms)),
                None => period.name().to_owned(),
            };
            spend_advice = Some(advice);
            (
                kind,
                format!("The {limit} ({ends}) leaves {free} credits."),
                *free,
            )
        }
        ReserveError::TrialExpired => (
            Kind::TrialExpired,
            "The trial has ended, and its credits have expired.".to_owned(),
            Micro::ZERO,
        ),
        ReserveError::Insufficient { available, .. } => (
            Kind::InsufficientCredits,
            format!("Insufficient credits: {available} are available."),
            *available,
        ),
        _ => return Failure::from_kind(Kind::Internal),
    };
    let mut message = cause;
    // Writing to a `String` cannot fail.
    let _ = match asked {
        Some((quote, is_exact)) => {
            write!(message, " {}", describe_tokens(quote, is_exact, payable))
        }
        None => write!(
            message,
            " This request asks for at least 1 input and 1 output token; 0 are affordable, of any model."
        ),
    };
    let _ = write!(
        message,
        " {}",
        spend_advice.unwrap_or_else(|| where_to_get_credits(settings))
    );
    Failure::new(kind, message)
}

fn describe_tokens(quote: &Quote, is_exact: bool, payable: Micro) -> String {
    let reach = quote.reaches.iter();
    let input = reach.map(|reach| reach.input_tokens).max().unwrap_or(0);
    let asked = quote.output_limit;
    if asked == 0 {
        return describe_input(quote, payable);
    }
    // Strict mode does not lower an output limit.
    let needed = if is_exact {
        asked
    } else {
        quote.output_floor.min(asked)
    };
    let each = if quote.choices > 1 {
        format!(" for each of {} answers", quote.choices)
    } else {
        String::new()
    };
    let affordable = quote.payable_output(payable).unwrap_or(0);
    let advice = match quote.payable_output(payable) {
        None => "The input alone costs more: shorten it.",
        Some(_) => "Shorten the input or ask for less output.",
    };
    format!(
        "This request asks for up to {asked} output tokens{each} after an input of up to {input} \
         tokens, which can cost {} credits. The gateway accepts it from {} credits on, which pay for \
         {needed} output tokens; the available credits pay for {affordable}. {advice}",
        quote.cost(asked),
        quote.cost(needed),
    )
}

/// Names the units that a request without output asks for, and how many of them `payable` credits
/// pay for.
fn describe_input(quote: &Quote, payable: Micro) -> String {
    let reach = quote.reaches.first();
    let asked = reach.map_or(0, |reach| reach.input_tokens);
    let affordable = reach.map_or(0, |reach| reach.payable_input(payable));
    format!(
        "This request asks for up to {asked} {}, which can cost {}; {affordable} of them are affordable; \
         shorten the input.",
        quote.input_unit,
        quote.cost(0)
    )
}

/// Returns where an account holder gets credits. All messages take the text from this function.
fn where_to_get_credits(settings: &Settings) -> String {
    if settings.payments.is_some() {
        return format!("Buy credits: {}{CREDITS_PATH}", settings.base_url);
    }
    let mut places = Vec::new();
    if settings.codes {
        places.push(format!(
            "Redeem a code: {}{CREDITS_PATH}",
            settings.base_url
        ));
    }
    if let Some(support) = &settings.support {
        places.push(format!("For more credits: {}", support.shown()));
    }
    match places.is_empty() {
        true => format!("Your credits: {}/dashboard", settings.base_url),
        false => places.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use credits::limits::Period;
    use credits::pricing::WorstCase;

    fn settings(support: &str) -> Settings {
        let text = include_str!("../../../conf/local.yaml");
        let support = format!("support: {support:?}\n{text}");
        config::parse(&support, &|_| None).unwrap()
    }

    /// 1 000 input tokens at 1 000 credits per million and up to 8 000 output tokens at 2 000.
    fn quote() -> Quote {
        let reach = WorstCase {
            input_tokens: 1_000,
            input_price: Micro::new(1_000_000_000),
            output_price: Micro::new(2_000_000_000),
        };
        Quote::flat(reach, 1, 8_000, 256)
    }

    #[test]
    fn every_refusal_names_the_tokens_the_cause_and_an_address() {
        let settings_of = settings("");
        let base = &settings_of.base_url;
        let credits = |micro| Micro::new(micro);
        let insufficient = ReserveError::Insufficient {
            available: credits(1_200_000),
            needed: credits(1_512_000),
        };
        let shown = failure(&insufficient, &settings_of, Some((&quote(), false)), 0);
        assert_eq!(
            shown.message,
            format!(
                "Insufficient credits: 1.2 are available. This request asks for up to 8000 output tokens \
                 after an input of up to 1000 tokens, which can cost 17 credits. The gateway accepts it \
                 from 1.512 credits on, which pay for 256 output tokens; the available credits pay for \
                 100. Shorten the input or ask for less output. Your credits: {base}/dashboard"
            )
        );
        let supported = settings("mailto:help@corp.example");
        let short = "the available credits pay for 0; The input alone costs more".split("; ");
        let keys = format!("{base}/dashboard/keys");
        let organisation = format!("can raise it at {base}/dashboard/organisation");
        for (of, period, parts) in [
            (
                Spender::Key,
                Period::Total,
                [
                    "The spend limit of this key (total) leaves 0.00001 credits.",
                    &*keys,
                ],
            ),
            (
                Spender::Member,
                Period::Month,
                [
                    "The budget of this key's member (month, until 1970-02-01T00:00:00.000Z) leaves",
                    &*organisation,
                ],
            ),
        ] {
            let free = credits(10);
            let refused = ReserveError::SpendLimit { of, period, free };
            let shown = failure(&refused, &supported, Some((&quote(), false)), 0).message;
            for part in parts.into_iter().chain(short.clone()) {
                assert!(shown.contains(part), "{part}: {shown}");
            }
            assert!(
                !shown.contains("help@corp.example"),
                "no credits help: {shown}"
            );
        }
        let broke = |settings| failure(&insufficient, settings, None, 0).message;
        assert!(broke(&supported).ends_with("For more credits: help@corp.example"));
        let mut takes_codes = settings("help@corp.example");
        takes_codes.codes = true;
        assert!(broke(&takes_codes).ends_with(&format!(
            "Redeem a code: {base}/dashboard/credits For more credits: help@corp.example"
        )));
        let mut selling = settings("help@corp.example");
        let text = concat!(
            include_str!("../../../conf/local.yaml"),
            "payments: {provider: stripe, secret_key: sk_test_a, webhook_secret: whsec_a, currency: usd, credit_price: '0.01'}\n"
        );
        selling.payments = config::parse(text, &|_| None).unwrap().payments;
        let shown = broke(&selling);
        assert!(
            shown.ends_with(&format!("Buy credits: {base}/dashboard/credits")),
            "{shown}"
        );
        let trial = failure(&ReserveError::TrialExpired, &settings_of, None, 0);
        assert_eq!(trial.kind, Kind::TrialExpired);
        for part in [
            "The trial has ended",
            "at least 1 input",
            "0 are affordable",
            base,
        ] {
            assert!(trial.message.contains(part), "{part}: {}", trial.message);
        }
    }
}
