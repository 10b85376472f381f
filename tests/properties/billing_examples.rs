//! The tables of examples on the account holder's billing page: the functions that bill recompute
//! each row.
//!
//! Read next: `properties/billing_text.rs`, which tests the rest of the page.

use base64::Engine;
use config::catalog::CatalogModel;
use credits::price_list::PriceList;
use credits::pricing;
use llm_protocol::Protocol;
use llm_protocol::request::{self, ContentSize};
use llm_protocol::usage::{
    CacheWrites, ChatCounters, CompactionPass, MessagesCounters, MessagesUsage, Usage, UsageBounds,
    UsageEstimator, UsageVerdict, VendorCounters, meter,
};
use model_gateway::billing::estimate::{InputEstimate, ReportedTurn};
use std::sync::Arc;

const PAGE: &str = include_str!("../../docs/billing.md");
const SHIPPED: &str = include_str!("../../conf/gateway.yaml");

/// Prices of input, cache reads, cache writes for five minutes and for an hour, and output.
fn price() -> PriceList {
    PriceList::new(["5", "0.5", "6.25", "10", "25"].map(|credits| credits.parse().unwrap()))
}

fn model() -> Arc<CatalogModel> {
    let settings = config::parse(SHIPPED, &|name| {
        name.ends_with("_API_KEY").then(|| "set".into())
    })
    .unwrap();
    Arc::clone(settings.catalog.find("beta-5.2").unwrap())
}

/// The cells of the table whose header row begins with `head`.
fn table(head: &str) -> Vec<Vec<&'static str>> {
    let (_, table) = PAGE
        .split_once(head)
        .unwrap_or_else(|| panic!("the page has no table {head:?} any more"));
    let lines = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let rows: Vec<Vec<_>> = lines
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() > 1, "{head}");
    rows
}

/// Returns `None` for an empty cell.
fn count(cell: &str) -> Option<u64> {
    (!cell.is_empty()).then(|| {
        cell.parse()
            .unwrap_or_else(|error| panic!("{cell:?}: {error}"))
    })
}

fn credits(usage: &Usage) -> String {
    pricing::exact_cost(usage, &price())
}

/// Compares the last cells of a row with the computed values.
fn check(head: &str, row: &[&str], computed: &[String]) {
    assert_eq!(
        row[row.len() - computed.len()..],
        *computed,
        "{head} {row:?}"
    );
}

fn metered(counters: &VendorCounters) -> Usage {
    meter(counters, &UsageBounds::default(), &Usage::default()).usage
}

#[test]
fn the_usage_of_chat_vendors_comes_to_what_the_page_says() {
    let head = "| prompt | cached |";
    for row in table(head) {
        let counters = ChatCounters {
            prompt: count(row[0]),
            cached: count(row[1]),
            completion: count(row[2]),
            reasoning: count(row[3]),
            total: count(row[4]),
            ..ChatCounters::default()
        };
        let usage = metered(&VendorCounters::Chat(counters));
        let counts = [usage.input, usage.cache_read, usage.output].map(|count| count.to_string());
        check(head, &row, &[&counts[..], &[credits(&usage)]].concat());
    }
}

#[test]
fn the_usage_of_messages_vendors_comes_to_what_the_page_says() {
    let head = "| input | cache read |";
    for row in table(head) {
        let mut reported = MessagesUsage::default();
        reported.finish(&MessagesCounters {
            input: count(row[0]),
            cache_read: count(row[1]),
            cache_writes: CacheWrites {
                sum: count(row[2]),
                short: count(row[3]),
                long: count(row[4]),
                unknown: None,
            },
            output: count(row[5]),
            ..MessagesCounters::default()
        });
        let usage = metered(&reported.total().unwrap());
        let counts = [usage.cache_write_5m, usage.cache_write_1h].map(|count| count.to_string());
        check(head, &row, &[&counts[..], &[credits(&usage)]].concat());
    }
}

#[test]
fn a_compaction_is_added_to_the_answer() {
    let rows = table("| of a conversation that was shortened once |");
    let usages: Vec<_> = rows
        .iter()
        .map(|row| Usage {
            input: count(row[1]).unwrap(),
            output: count(row[2]).unwrap(),
            ..Usage::default()
        })
        .collect();
    for (row, usage) in rows.iter().zip(&usages) {
        assert_eq!(row[3], credits(usage), "{row:?}");
    }
    let [answer, pass, billed] = usages[..] else {
        panic!("{rows:?}")
    };
    let [input, output] = [pass.input, pass.output].map(|tokens| tokens.try_into().unwrap());
    let counters = MessagesCounters {
        input: Some(answer.input),
        output: Some(answer.output),
        compactions: [CompactionPass {
            input,
            output,
            ..CompactionPass::default()
        }]
        .into_iter()
        .collect(),
        ..MessagesCounters::default()
    };
    let usage = metered(&VendorCounters::Messages(counters));
    assert_eq!((usage.input, usage.output), (billed.input, billed.output));
    assert_eq!(credits(&usage), rows[2][3]);
}

#[test]
fn what_cannot_be_is_billed_at_its_bound() {
    for row in table("| reported | could be at most |") {
        let [reported, most, billed] = [0, 1, 2].map(|cell| count(row[cell]).unwrap());
        let counters = ChatCounters {
            prompt: Some(0),
            completion: Some(reported),
            ..ChatCounters::default()
        };
        let bounds = UsageBounds {
            output: most,
            ..UsageBounds::default()
        };
        let metered = meter(&VendorCounters::Chat(counters), &bounds, &Usage::default());
        assert_eq!(metered.usage.output, billed, "{row:?}");
        assert_eq!(
            matches!(metered.verdict, UsageVerdict::Implausible(_)),
            reported > most,
            "{row:?}"
        );
    }
}

fn content(body: &str) -> ContentSize {
    request::read_summary(Protocol::Chat, body.as_bytes())
        .unwrap()
        .features
        .content
}

/// The content size of a body with this number of bytes, its JSON frame included.
fn text_of(bytes: u64) -> ContentSize {
    let frame = r#"{"model":"m","messages":[{"role":"user","content":""}]}"#;
    let text = "x".repeat(usize::try_from(bytes).unwrap() - frame.len());
    content(&frame.replace(r#""content":"""#, &format!(r#""content":"{text}""#)))
}

/// The tokens of a part of a message, without those of the JSON around `data`.
fn part_tokens(part: &str, data: &str) -> u64 {
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{part}]}}]}}"#);
    let around = text_of((body.len() - data.len()) as u64).estimated_tokens();
    let content = content(&body);
    (content.estimated_tokens() + content.audio_tokens()) - around
}

fn encoded(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn image_part(data: &str) -> String {
    format!(r#"{{"type":"image_url","image_url":{{"url":"{data}"}}}}"#)
}

fn file_part(data: &str) -> String {
    format!(r#"{{"type":"file","file":{{"file_data":"{data}"}}}}"#)
}

fn png(size: &str) -> String {
    let (width, height) = size.split_once(" × ").unwrap();
    let mut image = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    [width, height]
        .into_iter()
        .for_each(|side| image.extend(side.parse::<u32>().unwrap().to_be_bytes()));
    image.resize(750_000, 7);
    format!("data:image/png;base64,{}", encoded(&image))
}

#[test]
fn each_kind_of_content_is_estimated_at_what_the_page_says() {
    for row in table("| content | size |") {
        let size = || count(row[1]).unwrap();
        let letters = || "A".repeat(usize::try_from(size()).unwrap());
        let tokens = match row[0] {
            "text of the request, in bytes" => text_of(size()).estimated_tokens(),
            "text of the answer, in bytes" => UsageEstimator::default().usage(None, size()).output,
            "an image, in pixels" => part_tokens(&image_part(&png(row[1])), &png(row[1])),
            "an image somewhere else, or of a size that cannot be read" => {
                let far = part_tokens(&image_part("https://x/y.png"), "");
                assert_eq!(
                    far,
                    part_tokens(
                        &image_part("data:image/png;base64,AAAA"),
                        "data:image/png;base64,AAAA"
                    )
                );
                far
            }
            "a PDF, in pages" => {
                let pages = "<< /Type /Page >>".repeat(usize::try_from(size()).unwrap());
                let data = encoded(format!("%PDF-1.4 {pages}").as_bytes());
                part_tokens(&file_part(&data), &data)
            }
            "a PDF whose pages cannot be counted, in bytes of base64" => {
                part_tokens(&file_part(&letters()), &letters())
            }
            "a file somewhere else" => {
                let part = r#"{"type":"document","source":{"type":"url","url":"https://x/y.pdf"}}"#;
                part_tokens(part, "")
            }
            "audio, in bytes of base64" => {
                let part = format!(
                    r#"{{"type":"input_audio","input_audio":{{"data":"{}"}}}}"#,
                    letters()
                );
                part_tokens(&part, &letters())
            }
            other => panic!("a kind of content {other:?}"),
        };
        assert_eq!(count(row[2]), Some(tokens), "{row:?}");
    }
    // The page states the same bound per image that the gateway reserves.
    assert!(PAGE.contains("for as an image (5 000 tokens)"));
    assert_eq!(request::MAX_IMAGE_TOKENS, 5_000);
}

#[test]
fn a_turn_that_is_not_reported_is_estimated_by_the_one_before() {
    let rows = table("| turn | bytes |");
    let cells = |row: &[&str]| [1, 2, 3].map(|cell| count(row[cell]).unwrap());
    let model = model();
    let [bytes, input, cache_read] = cells(&rows[0]);
    let reported = Usage {
        input,
        cache_read,
        ..Usage::default()
    };
    assert_eq!(rows[0][4], credits(&reported));
    let turn = ReportedTurn::new(&text_of(bytes), &reported, 0, None);
    for (row, remembered) in [(&rows[1], Some(&turn)), (&rows[2], None)] {
        let [bytes, input, cache_read] = cells(row);
        let assumed = InputEstimate::new(&text_of(bytes), &model, remembered)
            .estimator
            .input();
        assert_eq!(
            (assumed.input, assumed.cache_read),
            (input, cache_read),
            "{row:?}"
        );
        assert_eq!(row[4], credits(&assumed), "{row:?}");
    }
}
