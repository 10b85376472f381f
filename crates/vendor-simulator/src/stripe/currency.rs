//! Lists the currencies, their valid amounts, and their smallest charges.
//!
//! The source is https://docs.stripe.com/currencies. The gateway has a table of its own in
//! `crates/config/src/payments.rs`: both were copied from there on purpose, and tests compare them,
//! so that an error in one shows.

use super::errors::StripeRefusal;

/// Largest amount of a charge, in minor units.
const MAX_AMOUNT: i64 = 99_999_999;

const KNOWN: &str = "aed afn all amd ang aoa ars aud awg azn bam bbd bdt bgn bhd bif bmd bnd bob brl bsd bwp byn bzd cad cdf \
    chf clp cny cop crc cve czk djf dkk dop dzd egp etb eur fjd fkp gbp gel gip gmd gnf gtq gyd hkd hnl htg huf idr ils inr isk \
    jmd jod jpy kes kgs khr kmf krw kwd kyd kzt lak lbp lkr lrd lsl mad mdl mga mkd mmk mnt mop mur mvr mwk mxn myr mzn nad ngn \
    nio nok npr nzd omr pab pen pgk php pkr pln pyg qar ron rsd rub rwf sar sbd scr sek sgd shp sle sos srd std szl thb tjs tnd \
    top try ttd twd tzs uah ugx usd uyu uzs vnd vuv wst xaf xcd xcg xof xpf yer zar zmw";

/// Currencies in which only multiples of some minor units are charged.
const STEPS: &[(&str, i64)] = &[
    ("bhd", 10),
    ("isk", 100),
    ("jod", 10),
    ("kwd", 10),
    ("omr", 10),
    ("tnd", 10),
    ("ugx", 100),
];

/// The smallest charges that Stripe documents, in minor units.
const SMALLEST: &[(&str, i64)] = &[
    ("aed", 200),
    ("aud", 50),
    ("brl", 50),
    ("cad", 50),
    ("chf", 50),
    ("czk", 1_500),
    ("dkk", 250),
    ("eur", 50),
    ("gbp", 30),
    ("hkd", 400),
    ("huf", 17_500),
    ("inr", 50),
    ("jpy", 50),
    ("mxn", 1_000),
    ("myr", 200),
    ("nok", 300),
    ("nzd", 50),
    ("pln", 200),
    ("ron", 200),
    ("sek", 300),
    ("sgd", 50),
    ("thb", 1_000),
    ("usd", 50),
];

pub fn is_known(code: &str) -> bool {
    KNOWN.split_whitespace().any(|known| known == code)
}

/// Checks the amount of a charge.
pub fn check_amount(code: &str, amount: i64, param: &str) -> Result<(), StripeRefusal> {
    let find = |table: &[(&str, i64)]| table.iter().find(|it| it.0 == code).map_or(1, |it| it.1);
    let (step, smallest) = (find(STEPS), find(SMALLEST));
    if amount < smallest {
        let message = format!("Amount must be at least {smallest} {code}");
        return Err(StripeRefusal::invalid("amount_too_small", param, message));
    }
    if amount > MAX_AMOUNT {
        let message = format!("Amount must be no more than {MAX_AMOUNT} {code}");
        return Err(StripeRefusal::invalid("amount_too_large", param, message));
    }
    if amount % step != 0 {
        let message = format!("Amounts in {code} must be evenly divisible by {step}");
        return Err(StripeRefusal::invalid(
            "parameter_invalid_integer",
            param,
            message,
        ));
    }
    Ok(())
}
