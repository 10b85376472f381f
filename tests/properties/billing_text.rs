//! The account holder's billing page: the tests recompute its examples from the page's numbers and
//! the shipped prices.

use credits::money::{Factor, Micro, exact_line};
use credits::pricing::{self, Quote, WorstCase};
use llm_protocol::usage::Usage;

const PAGE: &str = include_str!("../../docs/billing.md");
const SHIPPED: &str = include_str!("../../conf/gateway.yaml");

fn settings() -> config::Settings {
    config::parse(SHIPPED, &|name| {
        name.ends_with("_API_KEY").then(|| "set".into())
    })
    .unwrap()
}

/// The rows of the example's table, each as its cells.
fn rows() -> Vec<Vec<&'static str>> {
    let table = PAGE
        .split_once("| class | tokens | price | credits |")
        .expect("the example")
        .1;
    let lines = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    lines
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

/// The text between two others, wherever its lines break.
fn between(start: &str, end: &str) -> String {
    let page = PAGE.replace('\n', " ");
    let rest = page
        .split_once(start)
        .unwrap_or_else(|| panic!("the page has no {start:?} any more"))
        .1;
    rest.split_once(end)
        .unwrap_or_else(|| panic!("the page has no {end:?} after {start:?} any more"))
        .0
        .to_owned()
}

fn micro(text: &str) -> Micro {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_example_adds_up_with_the_shipped_prices() {
    let settings = settings();
    let model = settings
        .catalog
        .find(&between("An example: an answer of `", "`"))
        .expect("a shipped model");
    let (mut usage, mut sum) = (Usage::default(), 0_u128);
    let rows = rows();
    assert_eq!(rows.len(), 5);
    for row in &rows[..3] {
        let tokens: u64 = row[1].parse().unwrap();
        let class = match row[0] {
            "input" => &mut usage.input,
            "cache_read" => &mut usage.cache_read,
            "output" => &mut usage.output,
            other => panic!("a class {other:?}"),
        };
        *class = tokens;
        let lines = pricing::cost_lines(&usage, &model.price);
        let line = lines.into_iter().find(|line| line.class == row[0]).unwrap();
        assert_eq!(micro(row[2]), line.price, "the shipped price of {}", row[0]);
        assert_eq!(
            row[3],
            exact_line(tokens, line.price, line.factor),
            "{}",
            row[0]
        );
        sum += u128::from(tokens) * u128::from(line.price.get().unsigned_abs());
    }
    // The sum is in millionths of a µc, which is a millionth of a credit.
    assert_eq!(
        rows[3][3],
        exact_line(u64::try_from(sum).unwrap(), Micro::new(1), Factor::ONE)
    );
    assert!(
        sum % 1_000_000 > 0,
        "an example of rounding must have something to round"
    );
    assert_eq!(micro(rows[4][3]), pricing::cost(&usage, &model.price));
}

#[test]
fn the_example_of_a_hold_adds_up() {
    let settings = settings();
    let model = settings.catalog.find(&between("bytes to `", "`")).unwrap();
    let number = |start, end| between(start, end).parse::<u64>().unwrap();
    let reach = WorstCase {
        input_tokens: number("a request of ", " bytes"),
        // A chat vendor writes its cache unasked. The shipped price of a cache write is the input
        // price.
        input_price: model.price.input.max(model.price.cache_write_5m),
        output_price: model.price.output,
    };
    let quote = Quote::flat(
        reach,
        1,
        number("that allows ", " output tokens"),
        settings.limits.min_output_tokens,
    );
    let held = quote.cost(quote.output_limit);
    assert_eq!(
        micro(&between("output tokens sets ", " credits aside")),
        held
    );
    let balance = micro(&between("With a balance of ", ", "));
    let available = between("With a balance of ", " are available");
    assert_eq!(
        micro(available.split_once(", ").unwrap().1),
        balance.minus(held)
    );
    let cost = micro(&between("has come and cost ", ","));
    assert_eq!(rows()[4][3], cost.to_string(), "the same answer as above");
    assert_eq!(
        micro(&between("and the balance is ", ". ")),
        balance.minus(cost)
    );
}

#[test]
fn the_settings_that_the_page_names_are_the_shipped_ones() {
    let settings = settings();
    let (limits, signup) = (&settings.limits, &settings.signup);
    assert_eq!(
        micro(&between("A new account gets ", " credits")),
        signup.trial_credits
    );
    assert_eq!(
        between("credits for ", " days"),
        (signup.trial_ms / 86_400_000).to_string()
    );
    for (start, end, value) in [
        ("done only down to ", " tokens", limits.min_output_tokens),
        (
            "read on for up to ",
            " seconds",
            limits.drain_after_client_seconds,
        ),
        ("(up to ", " seconds", limits.drain_reasoning_seconds),
        ("took longer than ", " minutes", limits.total_seconds / 60),
        ("Then for ", " hours", limits.idempotency_seconds / 3_600),
    ] {
        assert_eq!(between(start, end), value.to_string(), "{start}…{end}");
    }
}
