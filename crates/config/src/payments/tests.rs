use super::*;
use crate::{ConfigFault, Settings};

const SECTION: &str = "payments:
  provider: stripe
  secret_key: sk_test_abc
  webhook_secret: whsec_abc
  currency: usd
  credit_price: \"0.01\"
  amounts: [\"10\", 25, \"100\"]
  min: \"5\"
  max: \"1000\"
  bonus: [{from: \"100\", percent: \"5\"}, {from: \"50\", percent: \"2.5\"}]
  per_account_per_day: \"2000\"
";

fn parse_section(section: &str) -> Result<Settings, Vec<ConfigFault>> {
    let text = format!("{}{section}", include_str!("../../../../conf/local.yaml"));
    crate::parse(&text, &|_| None)
}

fn settings(section: &str) -> PaymentSettings {
    let payments = parse_section(section).unwrap().payments.unwrap();
    payments.as_ref().clone()
}

#[test]
fn without_the_section_nothing_is_sold() {
    let none = parse_section("").unwrap();
    assert!(none.payments.is_none() && !none.codes);
}

#[test]
fn codes_need_no_provider_and_a_provider_needs_its_keys() {
    for section in ["payments: {}\n", "payments: {codes: true}\n"] {
        let codes = parse_section(section).unwrap();
        assert!(codes.payments.is_none() && codes.codes, "{section}");
    }
    assert!(parse_section(SECTION).unwrap().codes);
    let without = SECTION.replace("  provider", "  codes: false\n  provider");
    assert!(!parse_section(&without).unwrap().codes);
    let keys = |section: &str| -> Vec<_> {
        let faults = parse_section(section).unwrap_err();
        faults.into_iter().map(|fault| fault.key).collect()
    };
    for section in ["payments: {codes: false}\n", "payments: {currency: usd}\n"] {
        assert_eq!(keys(section), ["payments.provider"], "{section}");
    }
    let missing = keys("payments: {provider: stripe, currency: usd}\n");
    let expected = ["secret_key", "webhook_secret", "credit_price"];
    assert_eq!(missing, expected.map(|name| format!("payments.{name}")));
}

#[test]
fn an_amount_buys_its_credits_and_the_largest_bonus_that_it_reaches() {
    let settings = settings(SECTION);
    assert_eq!(settings.amounts, [1_000, 2_500, 10_000]);
    let bought = |minor| {
        let (credits, bonus) = (settings.credits_for(minor), settings.bonus_for(minor));
        (credits.to_string(), bonus.to_string())
    };
    assert_eq!(bought(1_000), ("1000".into(), "0".into()));
    assert_eq!(bought(4_999), ("4999".into(), "0".into()));
    assert_eq!(bought(5_000), ("5000".into(), "125".into()));
    assert_eq!(bought(9_999), ("9999".into(), "249.975".into()));
    assert_eq!(bought(10_000), ("10000".into(), "500".into()));
    assert_eq!(settings.is_live, Some(false));
    assert_eq!(format!("{:?}", settings.api), "https://api.stripe.com");
}

#[test]
fn a_price_that_does_not_divide_the_amount_is_rounded_down() {
    let settings = settings(&SECTION.replace("\"0.01\"", "\"0.03\""));
    assert_eq!(settings.credits_for(1_000).to_string(), "333.333333");
}

#[test]
fn a_currency_has_the_decimals_that_the_provider_counts() {
    for (code, text, minor, written) in [
        ("usd", "10", 1_000, "10.00 USD"),
        ("eur", "0.5", 50, "0.50 EUR"),
        ("jpy", "1000", 1_000, "1000 JPY"),
        ("kwd", "1.25", 1_250, "1.250 KWD"),
        ("isk", "500", 50_000, "500.00 ISK"),
    ] {
        let currency = Currency::from_code(code).unwrap();
        assert_eq!(currency.parse(text), Ok(minor), "{code}");
        assert_eq!(currency.write(minor), written);
    }
    for (code, text) in [
        ("usd", "0.001"),
        ("usd", "0"),
        ("usd", "-1"),
        ("usd", "1,5"),
        ("jpy", "0.5"),
        ("kwd", "0.001"),
        ("isk", "0.5"),
    ] {
        let currency = Currency::from_code(code).unwrap();
        assert!(currency.parse(text).is_err(), "{text} {code}");
    }
    for code in ["", "us", "USD", "uds", "usdx"] {
        assert_eq!(Currency::from_code(code), None, "{code}");
    }
    assert_eq!(Currency::from_code("jpy").unwrap().write(-5), "-5 JPY");
}

#[test]
fn yen_buy_credits_without_a_factor_of_a_hundred() {
    let yen = SECTION
        .replace("usd", "jpy")
        .replace("\"0.01\"", "\"1.5\"")
        .replace("[\"10\", 25,", "[\"1000\",")
        .replace("min: \"5\"", "min: \"50\"");
    assert_eq!(settings(&yen).credits_for(1_500).to_string(), "1000");
    let faults = parse_section(&yen.replace("\"50\"\n", "\"49\"\n")).unwrap_err();
    assert!(faults[0].message.contains("at least 50 JPY"), "{faults:?}");
}

#[test]
fn each_fault_is_found_with_its_line_and_key_and_shows_no_secret() {
    for (from, to, key, words) in [
        ("sk_test_abc", "pk_test_abc", "secret_key", "publishable"),
        ("sk_test_abc", "whsec_abc", "secret_key", "webhook's secret"),
        ("sk_test_abc", "abc", "secret_key", "sk_live_"),
        ("sk_test_abc", "\"sk_test_a bc \"", "secret_key", "space"),
        (
            "whsec_abc",
            "sk_test_abc",
            "webhook_secret",
            "is an API key",
        ),
        ("whsec_abc", "\"\"", "webhook_secret", "is empty"),
        ("whsec_abc", "[]", "webhook_secret", "one secret or two"),
        ("whsec_abc", "[a, b, c]", "webhook_secret", "not 3"),
        (
            "whsec_abc",
            "whsec_live_abc",
            "webhook_secret",
            "another mode",
        ),
        ("usd", "USD", "currency", "in lower case"),
        ("usd", "uds", "currency", "three-letter code"),
        ("\"0.01\"", "0", "credit_price", "more than 0"),
        ("\"0.01\"", "\"99999999\"", "credit_price", "buys nothing"),
        (
            "[\"10\",",
            "[\"4.99\",",
            "amounts[0]",
            "from `min`, 5.00 USD",
        ),
        (
            "[\"10\",",
            "[\"10.001\",",
            "amounts[0]",
            "multiple of 0.01 USD",
        ),
        ("min: \"5\"", "min: \"1000.01\"", "min", "at most `max`"),
        ("min: \"5\"", "min: \"0.49\"", "min", "at least 0.50 USD"),
        (
            "max: \"1000\"",
            "max: \"1000000\"",
            "max",
            "at most 999999.99 USD",
        ),
        ("\"2000\"", "\"4\"", "per_account_per_day", "at least `min`"),
        ("\"2.5\"", "\"101\"", "bonus[1].percent", "at most 100"),
        ("\"2.5\"", "0", "bonus[1].percent", "above 0"),
        ("from: \"50\"", "from: 100", "bonus[1].from", "the same"),
    ] {
        assert!(SECTION.contains(from), "{from}");
        let section = SECTION.replacen(from, to, 1);
        let faults = parse_section(&section).unwrap_err();
        let fault = faults
            .iter()
            .find(|fault| fault.key == format!("payments.{key}"));
        let fault = fault.unwrap_or_else(|| panic!("{to}: {faults:?}"));
        assert!(fault.message.contains(words), "{to}: {}", fault.message);
        assert!(fault.line > 0, "{to}");
        assert!(!format!("{faults:?}").contains("abc"), "{faults:?}");
    }
}

#[test]
fn a_payment_buys_no_more_than_a_balance_can_have() {
    let section = SECTION
        .replace("\"0.01\"", "\"0.000001\"")
        .replace("\"1000\"", "\"10000\"");
    let faults = parse_section(&section).unwrap_err();
    assert!(faults[0].message.contains("so low"), "{faults:?}");
}

#[test]
fn a_stand_in_without_tls_is_on_this_machine_and_gets_no_live_key() {
    let with_base = |section: &str, base: &str| {
        let faults = parse_section(&format!("{section}  api_base: \"{base}\"\n"));
        faults.err().map(|faults| faults[0].message.clone())
    };
    for base in [
        "http://127.0.0.1:4242",
        "http://localhost:1/x",
        "http://[::1]:2",
        "https://stripe.example",
    ] {
        assert_eq!(with_base(SECTION, base), None, "{base}");
    }
    for base in [
        "http://10.0.0.1",
        "http://stripe.example",
        "stripe",
        "ftp://x",
    ] {
        assert!(with_base(SECTION, base).is_some(), "{base}");
    }
    let live = SECTION.replace("sk_test_", "sk_live_");
    let fault = with_base(&live, "http://127.0.0.1:4242").unwrap();
    assert!(fault.contains("no live key"), "{fault}");
    assert_eq!(with_base(&live, "https://api.stripe.com"), None);
}

#[test]
fn secrets_come_from_files_and_are_never_printed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    std::fs::write(&file, "sk_live_from_a_file\n").unwrap();
    let section = SECTION
        .replace("sk_test_abc", &format!("\"file:{}\"", file.display()))
        .replace("whsec_abc", "[whsec_one, whsec_two]");
    let settings = settings(&section);
    assert_eq!(settings.secret_key.reveal(), "sk_live_from_a_file");
    assert_eq!(settings.is_live, Some(true));
    assert_eq!(settings.webhook_secrets.len(), 2);
    let printed = format!("{settings:?}");
    assert!(!printed.contains("from_a_file") && !printed.contains("whsec_one"));
}
