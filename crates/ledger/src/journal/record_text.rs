//! Converts a journal record to text and back. An ending has its fields between tabs, and other
//! records are JSON.
//!
//! `open` and `end` are written for every request, so their text is short: a field has no name, and
//! is empty if it is zero. Older programs wrote them as JSON too, which can still be read. A field
//! with a name may be added at the end, but no field may be removed or moved. This file must not do
//! I/O.

use super::record::JournalRecord;
use crate::{Ending, EndingDetail, RequestOutcome};
use credits::money::Micro;
use llm_protocol::Protocol;
use llm_protocol::ir::CacheMarkerOrigin;
use llm_protocol::usage::Usage;
use std::borrow::Cow;
use std::io::{self, Write};

const OPEN: &str = "open";
const END: &str = "end";

/// Number of fields without a name.
const FIELDS: usize = 14;

const ESTIMATED: &str = "estimated";
const IMPLAUSIBLE: &str = "implausible";
const CONVERSATION: &str = "conversation";
const TOOK_MS: &str = "took_ms";
const FIRST_TOKEN_MS: &str = "first_token_ms";
const CACHE_MARKS: &str = "cache_marks";
const MEMBER: &str = "member";

/// Appends the text of `record`, which has no line end.
pub(crate) fn write(record: &JournalRecord, line: &mut Vec<u8>) -> io::Result<()> {
    match record {
        JournalRecord::Open(ending) => write_ending(OPEN, ending, line),
        JournalRecord::End(ending) => write_ending(END, ending, line),
        other => Ok(serde_json::to_writer(line, other)?),
    }
}

fn write_ending(kind: &str, ending: &Ending, line: &mut Vec<u8>) -> io::Result<()> {
    let Ending {
        request_id,
        account,
        at_ms,
        paid,
        trial,
        writeoff,
        detail:
            EndingDetail {
                key_id,
                key_shown,
                model,
                surface,
                vendor,
                outcome,
                usage,
                price_version,
                estimated,
                implausible,
                conversation,
                took_ms,
                first_token_ms,
                cache_marks,
                member,
            },
    } = ending;
    line.extend_from_slice(kind.as_bytes());
    put_text(line, request_id);
    put_text(line, account);
    put_number(line, *at_ms)?;
    for amount in [paid, trial, writeoff] {
        put_number(line, amount.get())?;
    }
    put_text(line, key_id);
    put_text(line, key_shown);
    put_text(line, model);
    put_text(line, surface.as_str());
    put_text(line, vendor);
    put_text(line, outcome.as_str());
    put_usage(line, usage)?;
    put_text(line, price_version);
    for (name, is_set) in [(ESTIMATED, *estimated), (IMPLAUSIBLE, *implausible)] {
        if is_set {
            put_text(line, name);
        }
    }
    for (name, text) in [(CONVERSATION, conversation), (MEMBER, member)] {
        if let Some(text) = text {
            write!(line, "\t{name}=")?;
            put_escaped(line, text);
        }
    }
    for (name, ms) in [(TOOK_MS, took_ms), (FIRST_TOKEN_MS, first_token_ms)] {
        if let Some(ms) = ms {
            write!(line, "\t{name}={ms}")?;
        }
    }
    if let Some(origin) = cache_marks {
        write!(line, "\t{CACHE_MARKS}={}", origin.as_str())?;
    }
    Ok(())
}

fn put_text(line: &mut Vec<u8>, text: &str) {
    line.push(b'\t');
    put_escaped(line, text);
}

/// Appends a text in a form without tabs and line ends.
fn put_escaped(line: &mut Vec<u8>, text: &str) {
    if !text.contains(['\t', '\n', '\\']) {
        line.extend_from_slice(text.as_bytes());
        return;
    }
    for byte in text.bytes() {
        match byte {
            b'\t' => line.extend_from_slice(b"\\t"),
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\\' => line.extend_from_slice(b"\\\\"),
            _ => line.push(byte),
        }
    }
}

fn put_number(line: &mut Vec<u8>, number: i64) -> io::Result<()> {
    line.push(b'\t');
    if number == 0 {
        return Ok(());
    }
    write!(line, "{number}")
}

/// Appends the six counters of tokens that nearly every usage has, or all fields as JSON. A usage
/// of zero becomes an empty field.
fn put_usage(line: &mut Vec<u8>, usage: &Usage) -> io::Result<()> {
    line.push(b'\t');
    if *usage == Usage::default() {
        return Ok(());
    }
    let counters = common_counters(usage);
    if *usage != with_common_counters(counters) {
        // JSON contains neither a tab nor a line end, but may contain a backslash.
        let json = serde_json::to_string(usage)?;
        put_escaped(line, &json);
        return Ok(());
    }
    let [first, others @ ..] = counters;
    write!(line, "{first}")?;
    others
        .iter()
        .try_for_each(|counter| write!(line, ",{counter}"))
}

fn common_counters(usage: &Usage) -> [u64; 6] {
    [
        usage.input,
        usage.cache_read,
        usage.cache_write_5m,
        usage.cache_write_1h,
        usage.output,
        usage.reasoning,
    ]
}

fn with_common_counters(counters: [u64; 6]) -> Usage {
    let [
        input,
        cache_read,
        cache_write_5m,
        cache_write_1h,
        output,
        reasoning,
    ] = counters;
    Usage {
        input,
        cache_read,
        cache_write_5m,
        cache_write_1h,
        output,
        reasoning,
        ..Usage::default()
    }
}

/// Parses the text of a record. Returns `None` if no program can have written it.
pub(crate) fn parse(text: &[u8]) -> Option<JournalRecord> {
    if text.starts_with(b"{") || text.starts_with(b"\"") {
        return serde_json::from_slice(text).ok();
    }
    let mut fields = std::str::from_utf8(text).ok()?.split('\t');
    let kind = fields.next()?;
    let ending = parse_ending(fields)?;
    match kind {
        OPEN => Some(JournalRecord::Open(ending)),
        END => Some(JournalRecord::End(ending)),
        _ => None,
    }
}

fn parse_ending<'a>(mut fields: impl Iterator<Item = &'a str>) -> Option<Ending> {
    let mut unnamed = [""; FIELDS];
    for field in &mut unnamed {
        *field = fields.next()?;
    }
    let [
        request_id,
        account,
        at_ms,
        paid,
        trial,
        writeoff,
        key_id,
        key_shown,
        model,
        surface,
        vendor,
        outcome,
        usage,
        price_version,
    ] = unnamed;
    let mut ending = Ending {
        request_id: unescape(request_id)?.into(),
        account: unescape(account)?.into(),
        at_ms: parse_number(at_ms)?,
        paid: Micro::new(parse_number(paid)?),
        trial: Micro::new(parse_number(trial)?),
        writeoff: Micro::new(parse_number(writeoff)?),
        detail: EndingDetail {
            key_id: unescape(key_id)?.into(),
            key_shown: unescape(key_shown)?.into(),
            model: unescape(model)?.into(),
            surface: parse_surface(surface)?,
            vendor: unescape(vendor)?.into(),
            outcome: RequestOutcome::parse(outcome)?,
            usage: parse_usage(usage)?,
            price_version: unescape(price_version)?.into(),
            estimated: false,
            implausible: false,
            conversation: None,
            took_ms: None,
            first_token_ms: None,
            cache_marks: None,
            member: None,
        },
    };
    for field in fields {
        let detail = &mut ending.detail;
        match field.split_once('=').unwrap_or((field, "")) {
            (ESTIMATED, "") => detail.estimated = true,
            (IMPLAUSIBLE, "") => detail.implausible = true,
            (CONVERSATION, name) => detail.conversation = Some(unescape(name)?.into()),
            (MEMBER, name) => detail.member = Some(unescape(name)?.into()),
            (TOOK_MS, ms) => detail.took_ms = Some(ms.parse().ok()?),
            (FIRST_TOKEN_MS, ms) => detail.first_token_ms = Some(ms.parse().ok()?),
            (CACHE_MARKS, origin) => detail.cache_marks = Some(CacheMarkerOrigin::parse(origin)?),
            _ => return None,
        }
    }
    Some(ending)
}

fn parse_number(field: &str) -> Option<i64> {
    if field.is_empty() {
        return Some(0);
    }
    field.parse().ok()
}

fn parse_surface(field: &str) -> Option<Protocol> {
    [Protocol::Chat, Protocol::Messages, Protocol::Responses]
        .into_iter()
        .find(|protocol| protocol.as_str() == field)
}

fn parse_usage(field: &str) -> Option<Usage> {
    if field.is_empty() {
        return Some(Usage::default());
    }
    if field.starts_with('{') {
        return serde_json::from_str(&unescape(field)?).ok();
    }
    let mut counters = [0; 6];
    let mut found = field.split(',');
    for counter in &mut counters {
        *counter = found.next()?.parse().ok()?;
    }
    found
        .next()
        .is_none()
        .then(|| with_common_counters(counters))
}

/// Reverses [`put_escaped`]. Returns `None` if that function cannot have written the field.
fn unescape(field: &str) -> Option<Cow<'_, str>> {
    if !field.contains('\\') {
        return Some(Cow::Borrowed(field));
    }
    let mut text = String::with_capacity(field.len());
    let mut letters = field.chars();
    while let Some(letter) = letters.next() {
        text.push(match letter {
            '\\' => match letters.next()? {
                't' => '\t',
                'n' => '\n',
                '\\' => '\\',
                _ => return None,
            },
            letter => letter,
        });
    }
    Some(Cow::Owned(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use llm_protocol::usage::ServiceTier;
    use proptest::prelude::*;

    fn text_of(record: &JournalRecord) -> String {
        let mut line = Vec::new();
        write(record, &mut line).unwrap();
        String::from_utf8(line).unwrap()
    }

    fn ending() -> Ending {
        let mut ending = Ending::in_test("req_1", "acct_1", 5, RequestOutcome::Completed);
        ending.paid = Micro::new(7);
        ending.detail.usage = Usage {
            input: 12,
            output: 3,
            ..Usage::default()
        };
        ending.detail.conversation = Some("talk".into());
        ending.detail.took_ms = Some(40);
        ending
    }

    /// The form is on the disks of others: a later program must read it.
    #[test]
    fn an_ending_is_a_line_of_fields() {
        let record = JournalRecord::End(ending());
        let text = "end\treq_1\tacct_1\t5\t7\t\t\tkey_1\tgw-sk-…\tbeta-5.2\tchat\tbeta\tcompleted\t12,0,0,0,3,0\tpv_1\tconversation=talk\ttook_ms=40";
        assert_eq!(text_of(&record), text);
        assert_eq!(parse(text.as_bytes()), Some(record));
    }

    #[test]
    fn the_json_of_older_programs_is_read() {
        for record in [
            JournalRecord::Open(ending()),
            JournalRecord::End(ending()),
            JournalRecord::Forgotten("req_1".into()),
            JournalRecord::Begun {
                file: 2,
                lines_before: 9,
            },
            JournalRecord::Sealed,
        ] {
            let json = serde_json::to_vec(&record).unwrap();
            assert_eq!(parse(&json), Some(record));
        }
    }

    #[test]
    fn what_no_program_wrote_is_no_record() {
        let text = text_of(&JournalRecord::End(ending()));
        let (head, _) = text.rsplit_once("\tconversation").unwrap();
        assert!(parse(head.as_bytes()).is_some());
        let (shorter, _) = head.rsplit_once('\t').unwrap();
        let others = [
            shorter.to_owned(),
            format!("{head}\tunknown=1"),
            format!("{head}\ttook_ms=x"),
            head.replace("completed", "complete"),
            head.replace("12,0,0,0,3,0", "12,0,0,0,3"),
            head.replace("12,0,0,0,3,0", "12,0,0,0,3,0,0"),
            head.replace("beta-5.2", "beta\\x"),
            head.replace("beta-5.2", "beta\\"),
            head.replacen("end", "ending", 1),
            String::new(),
        ];
        for other in others {
            assert_eq!(parse(other.as_bytes()), None, "{other:?}");
        }
        assert_eq!(parse(b"end\xff"), None);
    }

    fn any_ending() -> impl Strategy<Value = Ending> {
        let texts = proptest::collection::vec("[\t\n\r\\\\=,{}\"a-cé…]{0,6}", 8);
        let numbers = proptest::collection::vec(any::<i64>(), 4);
        let counters = proptest::collection::vec(any::<u64>(), 8);
        let choices = (0..7_usize, 0..3_usize, any::<[bool; 6]>());
        (texts, numbers, counters, choices).prop_map(|(texts, numbers, counters, choices)| {
            let (outcome, surface, [estimated, implausible, talks, took, first, rare]) = choices;
            let text = |index: usize| texts[index].clone();
            let mut ending =
                Ending::in_test(&text(0), &text(1), numbers[0], RequestOutcome::ALL[outcome]);
            (ending.paid, ending.trial) = (Micro::new(numbers[1]), Micro::new(numbers[2]));
            ending.writeoff = Micro::new(numbers[3]);
            ending.detail = EndingDetail {
                key_id: text(2),
                key_shown: text(3),
                model: text(4),
                surface: [Protocol::Chat, Protocol::Messages, Protocol::Responses][surface],
                vendor: text(5),
                outcome: ending.detail.outcome,
                usage: Usage {
                    audio_input: if rare { counters[6] } else { 0 },
                    service_tier: rare.then(|| ServiceTier::from_wire("priority")),
                    ..with_common_counters(counters[..6].try_into().unwrap())
                },
                price_version: text(6),
                estimated,
                implausible,
                conversation: talks.then(|| text(7)),
                took_ms: took.then_some(counters[7]),
                first_token_ms: first.then_some(counters[0]),
                cache_marks: [
                    None,
                    Some(CacheMarkerOrigin::Gateway),
                    Some(CacheMarkerOrigin::Caller),
                ][surface],
                member: rare.then(|| text(7)),
            };
            ending
        })
    }

    proptest! {
        #[test]
        fn every_ending_comes_back(ending in any_ending(), is_end in any::<bool>()) {
            let record = match is_end {
                true => JournalRecord::End(ending),
                false => JournalRecord::Open(ending),
            };
            let text = text_of(&record);
            prop_assert!(!text.contains('\n'));
            prop_assert_eq!(parse(text.as_bytes()), Some(record));
        }
    }
}
