//! Every rule of the counters at its limit, as tables.

use super::*;
use crate::usage::{CacheWrites, ServiceTier};

fn bounds() -> UsageBounds {
    UsageBounds {
        compaction: false,
        tool_uses: PerTool::default(),
        ..UsageBounds::default()
    }
}

fn searches<T: Default>(count: T) -> PerTool<T> {
    PerTool {
        web_search: count,
        ..PerTool::default()
    }
}

fn estimate() -> Usage {
    Usage {
        input: 40,
        output: 7,
        ..Usage::default()
    }
}

/// Counters: prompt, cached, cache write, completion, reasoning, total.
fn chat(counters: [Option<u64>; 6]) -> ChatCounters {
    let [prompt, cached, cache_write, completion, reasoning, total] = counters;
    ChatCounters {
        prompt,
        cached,
        cache_writes: CacheWrites {
            sum: cache_write,
            ..CacheWrites::default()
        },
        completion,
        reasoning,
        total,
        ..ChatCounters::default()
    }
}

fn metered(counters: &ChatCounters) -> MeteredUsage {
    meter(&VendorCounters::Chat(*counters), &bounds(), &estimate())
}

/// Classes: input, cache read, cache written, output, reasoning.
fn classes(usage: &Usage) -> [u64; 5] {
    [
        usage.input,
        usage.cache_read,
        usage.cache_write_5m,
        usage.output,
        usage.reasoning,
    ]
}

fn check(rows: &[([Option<u64>; 6], [u64; 5])], verdict: UsageVerdict) {
    for (counters, expected) in rows {
        let metered = metered(&chat(*counters));
        assert_eq!(
            (classes(&metered.usage), metered.verdict),
            (*expected, verdict),
            "{counters:?}"
        );
        assert_eq!(metered.counted_output, metered.usage.output, "{counters:?}");
    }
}

const NO: Option<u64> = None;

fn n(count: u64) -> Option<u64> {
    Some(count)
}

#[test]
fn cached_tokens_are_a_part_of_the_prompt_unless_they_are_larger_or_the_total_says_so() {
    let rows = [
        ([n(100), n(60), n(10), n(50), NO, NO], [30, 60, 10, 50, 0]),
        (
            [n(100), n(60), n(10), n(50), NO, n(150)],
            [30, 60, 10, 50, 0],
        ),
        ([n(100), n(100), NO, n(50), NO, NO], [0, 100, 0, 50, 0]),
        ([n(100), NO, n(100), n(50), NO, NO], [0, 0, 100, 50, 0]),
        ([n(100), n(60), n(40), n(50), NO, NO], [0, 60, 40, 50, 0]),
        // A part larger than the prompt is counted separately from it.
        ([n(50), n(5_450), NO, n(10), NO, NO], [50, 5_450, 0, 10, 0]),
        (
            [n(50), n(5_450), NO, n(10), NO, n(5_510)],
            [50, 5_450, 0, 10, 0],
        ),
        (
            [n(50), n(5_450), NO, n(10), NO, n(60)],
            [50, 5_450, 0, 10, 0],
        ),
        ([n(50), NO, n(51), n(10), NO, NO], [50, 0, 51, 10, 0]),
        ([n(50), NO, n(51), n(10), NO, n(60)], [50, 0, 51, 10, 0]),
        ([n(50), n(51), NO, n(10), NO, n(60)], [50, 51, 0, 10, 0]),
        // Their sum is larger than the prompt: counted separately, unless the total shows that the
        // prompt includes them.
        ([n(50), n(40), n(11), n(10), NO, NO], [50, 40, 11, 10, 0]),
        (
            [n(50), n(40), n(11), n(10), NO, n(111)],
            [50, 40, 11, 10, 0],
        ),
        ([n(50), n(40), n(11), n(10), NO, n(60)], [0, 40, 10, 10, 0]),
        (
            [n(50), n(40), n(11), n(10), n(3), n(60)],
            [0, 40, 10, 10, 3],
        ),
        // In doubt the total decides.
        (
            [n(5_000), n(4_000), NO, n(10), NO, n(9_010)],
            [5_000, 4_000, 0, 10, 0],
        ),
        (
            [n(5_000), n(4_000), n(7), n(10), NO, n(9_017)],
            [5_000, 4_000, 7, 10, 0],
        ),
        (
            [n(5_000), n(4_000), NO, n(10), n(690), n(9_700)],
            [5_000, 4_000, 0, 700, 690],
        ),
        (
            [n(5_000), n(4_000), NO, n(10), n(690), n(5_700)],
            [1_000, 4_000, 0, 700, 690],
        ),
        (
            [n(5_000), n(4_000), NO, n(10), n(4_000), n(9_010)],
            [1_000, 4_000, 0, 4_010, 4_000],
        ),
        (
            [n(5_000), n(4_000), NO, n(10), NO, n(5_010)],
            [1_000, 4_000, 0, 10, 0],
        ),
        (
            [n(5_000), n(4_000), NO, n(10), n(7), n(9_010)],
            [5_000, 4_000, 0, 10, 7],
        ),
        // The total matches neither case.
        (
            [n(5_000), n(4_000), NO, n(10), NO, n(5_110)],
            [1_000, 4_000, 0, 110, 0],
        ),
        (
            [n(5_000), n(4_000), NO, n(10), n(7), n(5_110)],
            [1_000, 4_000, 0, 110, 7],
        ),
        (
            [n(5_000), n(1), NO, n(10), NO, n(5_011)],
            [5_000, 1, 0, 10, 0],
        ),
        // A total that is too small to be valid decides nothing.
        (
            [n(5_000), n(4_000), NO, n(10), NO, n(4_000)],
            [1_000, 4_000, 0, 10, 0],
        ),
        ([n(50), n(40), n(11), n(10), NO, n(0)], [50, 40, 11, 10, 0]),
        ([n(50), n(40), n(11), n(10), NO, n(55)], [50, 40, 11, 10, 0]),
    ];
    check(&rows, UsageVerdict::Exact);
}

#[test]
fn reasoning_beside_the_completion_is_output() {
    let rows = [
        ([n(36), NO, NO, n(10), n(690), n(736)], [36, 0, 0, 700, 690]),
        ([n(38), NO, NO, n(11), NO, n(266)], [38, 0, 0, 228, 0]),
        ([n(51), NO, NO, n(136), n(31), n(187)], [51, 0, 0, 136, 31]),
        ([n(10), NO, NO, n(5), n(20), NO], [10, 0, 0, 25, 20]),
        ([n(10), NO, NO, n(5), n(5), NO], [10, 0, 0, 5, 5]),
        ([n(10), NO, NO, n(5), n(3), NO], [10, 0, 0, 5, 3]),
        ([n(10), n(4), NO, n(5), n(20), n(35)], [6, 4, 0, 25, 20]),
        // The total shows that the completion includes all of it.
        ([n(10), NO, NO, n(5), n(20), n(15)], [10, 0, 0, 5, 5]),
        // The number cannot be a total.
        ([n(10), NO, NO, n(5), n(20), n(14)], [10, 0, 0, 25, 20]),
        ([n(10), NO, NO, n(5), n(20), n(0)], [10, 0, 0, 25, 20]),
        ([n(10), NO, NO, n(5), n(3), n(3)], [10, 0, 0, 5, 3]),
        // The reasoning and the cached tokens are both counted separately.
        (
            [n(50), n(5_450), NO, n(10), n(90), n(5_600)],
            [50, 5_450, 0, 100, 90],
        ),
    ];
    check(&rows, UsageVerdict::Exact);
}

#[test]
fn a_counter_that_is_no_count_is_the_rest_of_the_total_or_estimated_and_the_others_stand() {
    let rows = [
        ([NO, NO, NO, n(10), NO, NO], [40, 0, 0, 10, 0]),
        ([NO, NO, NO, n(10), NO, n(46)], [36, 0, 0, 10, 0]),
        ([NO, NO, NO, n(10), NO, n(10)], [40, 0, 0, 10, 0]),
        ([NO, NO, NO, n(10), NO, n(9)], [40, 0, 0, 10, 0]),
        ([NO, n(30), n(4), n(10), NO, NO], [6, 30, 4, 10, 0]),
        ([NO, n(300), NO, n(10), NO, NO], [0, 300, 0, 10, 0]),
        ([NO, n(300), n(4), n(10), NO, NO], [0, 300, 4, 10, 0]),
        ([n(36), NO, NO, NO, NO, NO], [36, 0, 0, 7, 0]),
        ([n(36), NO, NO, NO, n(9), NO], [36, 0, 0, 7, 7]),
        ([n(36), NO, NO, NO, NO, n(46)], [36, 0, 0, 10, 0]),
        ([n(36), n(6), NO, NO, NO, n(46)], [30, 6, 0, 10, 0]),
        ([n(36), NO, NO, NO, NO, n(36)], [36, 0, 0, 7, 0]),
        ([n(36), NO, NO, NO, NO, n(30)], [36, 0, 0, 7, 0]),
        ([NO, NO, NO, NO, NO, n(46)], [40, 0, 0, 7, 0]),
        ([NO, NO, NO, NO, NO, NO], [40, 0, 0, 7, 0]),
    ];
    for (counters, expected) in &rows {
        let metered = metered(&chat(*counters));
        assert_eq!(
            (classes(&metered.usage), metered.verdict),
            (*expected, UsageVerdict::Estimated),
            "{counters:?}"
        );
    }
}

#[test]
fn zeros_beside_what_was_generated_are_no_count() {
    let tier = Some(ServiceTier::from_wire("flex"));
    let zeros = ChatCounters {
        service_tier: tier,
        ..chat([n(0), NO, NO, n(0), NO, n(0)])
    };
    let usage = Usage {
        service_tier: tier,
        ..estimate()
    };
    assert_eq!(
        metered(&zeros),
        MeteredUsage {
            usage,
            verdict: UsageVerdict::Estimated,
            counted_output: 7,
            unknown: UnknownUsage::default(),
        }
    );
    let nothing = Usage {
        output: 0,
        ..estimate()
    };
    let empty = meter(&VendorCounters::Chat(zeros), &bounds(), &nothing);
    assert_eq!(
        (empty.usage.is_zero(), empty.verdict),
        (true, UsageVerdict::Exact),
        "nothing was generated"
    );
    let audio = Usage {
        audio_output: 3,
        ..Usage::default()
    };
    assert_eq!(
        meter(&VendorCounters::Chat(zeros), &bounds(), &audio).verdict,
        UsageVerdict::Estimated
    );
    // Nor is a zero beside a prompt that was counted.
    let one = chat([n(1), NO, NO, n(0), NO, NO]);
    let found = metered(&one);
    assert_eq!(
        (found.usage.input, found.usage.output, found.verdict),
        (1, estimate().output, UsageVerdict::Estimated)
    );
    let silent = meter(&VendorCounters::Chat(one), &bounds(), &nothing);
    assert_eq!(
        (silent.usage.output, silent.verdict),
        (0, UsageVerdict::Exact)
    );
}

#[test]
fn no_prompt_is_empty() {
    check(
        &[
            // The total says what the prompt was, or else nothing does.
            ([n(0), NO, NO, n(0), NO, n(1_290)], [40, 0, 0, 7, 0]),
            ([n(0), n(0), n(0), n(0), n(0), n(1_290)], [40, 0, 0, 7, 0]),
            ([n(0), NO, NO, n(12), NO, n(1_290)], [1_278, 0, 0, 12, 0]),
            ([n(0), NO, NO, n(12), NO, n(12)], [40, 0, 0, 12, 0]),
            ([n(0), NO, NO, n(12), NO, NO], [40, 0, 0, 12, 0]),
        ],
        UsageVerdict::Estimated,
    );
    // All of it was read from the cache, which the vendor counts separately.
    check(
        &[([n(0), n(60), NO, n(12), NO, NO], [0, 60, 0, 12, 0])],
        UsageVerdict::Exact,
    );
    let rows = [
        (answer(0, 12), [40, 0, 0, 12, 0], UsageVerdict::Estimated),
        (answer(0, 0), [40, 0, 0, 7, 0], UsageVerdict::Estimated),
        (
            MessagesCounters {
                cache_read: Some(60),
                ..answer(0, 12)
            },
            [0, 60, 0, 12, 0],
            UsageVerdict::Exact,
        ),
    ];
    for (counters, expected, verdict) in rows {
        let metered = messages(&counters, &bounds());
        assert_eq!(
            (classes(&metered.usage), metered.verdict),
            (expected, verdict)
        );
    }
    // An answer that paused after its compaction generated nothing itself.
    let open = UsageBounds::default();
    let nothing = Usage {
        output: 0,
        ..estimate()
    };
    let paused = VendorCounters::Messages(MessagesCounters {
        compactions: [PASS].into_iter().collect(),
        ..answer(0, 0)
    });
    let metered = meter(&paused, &open, &nothing);
    assert_eq!(
        (metered.usage.without_passes().is_zero(), metered.verdict),
        (true, UsageVerdict::Exact)
    );
}

#[test]
fn audio_is_a_part_of_both_sides_and_never_more_than_its_side() {
    let audio_counters = ChatCounters {
        audio_prompt: Some(20),
        audio_completion: Some(35),
        ..chat([n(100), n(60), n(10), n(50), n(30), n(150)])
    };
    let usage = metered(&audio_counters).usage;
    assert_eq!(
        (usage.input, usage.audio_input, usage.input_total()),
        (10, 20, 100)
    );
    assert_eq!(
        (
            usage.output,
            usage.audio_output,
            usage.output_total(),
            usage.reasoning
        ),
        (15, 35, 50, 15)
    );
    let absurd = ChatCounters {
        audio_prompt: Some(31),
        audio_completion: Some(51),
        ..audio_counters
    };
    let usage = metered(&absurd).usage;
    assert_eq!(
        (usage.input, usage.audio_input, usage.input_total()),
        (0, 30, 100)
    );
    assert_eq!(
        (usage.output, usage.audio_output, usage.reasoning),
        (0, 50, 0)
    );
}

#[test]
fn what_is_no_token_passes_through() {
    let tier = Some(ServiceTier::from_wire("flex"));
    let searched = ChatCounters {
        tool_uses: searches(3),
        service_tier: tier,
        ..chat([n(1), NO, NO, n(1), NO, NO])
    };
    let open = UsageBounds {
        tool_uses: searches(3),
        ..bounds()
    };
    let usage = meter(&VendorCounters::Chat(searched), &open, &estimate()).usage;
    assert_eq!((usage.web_searches, usage.service_tier), (3, tier));
    let messages = MessagesCounters {
        service_tier: tier,
        ..answer(1, 1)
    };
    let messages = MessagesCounters {
        tool_uses: searches(Some(3)),
        ..messages
    };
    let usage = meter(&VendorCounters::Messages(messages), &open, &estimate()).usage;
    assert_eq!((usage.web_searches, usage.service_tier), (3, tier));
}

fn answer(input: u64, output: u64) -> MessagesCounters {
    MessagesCounters {
        input: Some(input),
        output: Some(output),
        ..MessagesCounters::default()
    }
}

fn messages(counters: &MessagesCounters, bounds: &UsageBounds) -> MeteredUsage {
    meter(&VendorCounters::Messages(*counters), bounds, &estimate())
}

#[test]
fn messages_counters_stand_beside_each_other() {
    let all = MessagesCounters {
        cache_read: Some(60),
        cache_writes: CacheWrites {
            sum: Some(10),
            short: Some(4),
            long: Some(6),
            unknown: None,
        },
        reasoning: Some(30),
        ..answer(100, 50)
    };
    let exact = messages(&all, &bounds());
    let usage = Usage {
        input: 100,
        cache_read: 60,
        cache_write_5m: 4,
        cache_write_1h: 6,
        output: 50,
        reasoning: 30,
        ..Usage::default()
    };
    assert_eq!(
        exact,
        MeteredUsage {
            usage,
            verdict: UsageVerdict::Exact,
            counted_output: 50,
            unknown: UnknownUsage::default(),
        }
    );
    let reasoning = |reasoning| {
        messages(&MessagesCounters { reasoning, ..all }, &bounds())
            .usage
            .reasoning
    };
    assert_eq!((reasoning(Some(51)), reasoning(None)), (50, 0));
    let estimated = |counters| {
        let metered = messages(&counters, &bounds());
        assert_eq!(metered.verdict, UsageVerdict::Estimated);
        (metered.usage.input, metered.usage.output)
    };
    assert_eq!(
        estimated(MessagesCounters {
            output: None,
            ..all
        }),
        (100, 7)
    );
    // The cached tokens are a part of the estimate.
    assert_eq!(estimated(MessagesCounters { input: None, ..all }), (0, 50));
    let less = MessagesCounters {
        input: None,
        cache_read: Some(6),
        ..all
    };
    assert_eq!(estimated(less), (24, 50));
    assert_eq!(estimated(MessagesCounters::default()), (40, 7));
}

const PASS: CompactionPass = CompactionPass {
    input: 60_385,
    cache_read: 5,
    cache_write_5m: 3,
    cache_write_1h: 2,
    output: 592,
};

#[test]
fn passes_that_shortened_the_conversation_are_added() {
    let counters = MessagesCounters {
        compactions: [PASS].into_iter().collect(),
        ..answer(682, 1_320)
    };
    let open = UsageBounds {
        compaction: true,
        ..bounds()
    };
    let exact = messages(&counters, &open);
    assert_eq!(
        (exact.usage.input, exact.usage.output, exact.verdict),
        (61_067, 1_912, UsageVerdict::Exact)
    );
    assert_eq!(
        (
            exact.usage.cache_read,
            exact.usage.cache_write_5m,
            exact.usage.cache_write_1h
        ),
        (5, 3, 2)
    );
    assert_eq!(
        (exact.usage.compactions, exact.counted_output),
        (counters.compactions, 1_320)
    );
    // Only the output of the answer itself is limited by its bound.
    let tight = UsageBounds {
        output: 1_320,
        input: 682,
        input_believed: 682,
        ..open
    };
    assert_eq!(messages(&counters, &tight), exact);
    let excess = |bounds| {
        let metered = messages(&counters, &bounds);
        let expected = Excess {
            compaction: true,
            ..Excess::default()
        };
        assert_eq!(metered.verdict, UsageVerdict::Implausible(expected));
        metered.usage
    };
    assert_eq!(
        excess(bounds()),
        messages(&answer(682, 1_320), &bounds()).usage,
        "none was allowed"
    );
    let read = excess(UsageBounds {
        context: 60_394,
        ..open
    })
    .compactions;
    assert_eq!(
        read.into_iter().next(),
        Some(CompactionPass {
            input: 60_384,
            ..PASS
        })
    );
    let written = excess(UsageBounds {
        pass_output: 591,
        ..open
    })
    .compactions;
    assert_eq!(
        written.into_iter().next(),
        Some(CompactionPass {
            output: 591,
            ..PASS
        })
    );
    let fits = UsageBounds {
        context: 60_395,
        pass_output: 592,
        ..open
    };
    assert_eq!(messages(&counters, &fits), exact);
    // The estimate does not include passes that were counted.
    let known_usage = exact.usage;
    let unfinished = MessagesCounters {
        output: None,
        ..counters
    };
    let metered = meter(&VendorCounters::Messages(unfinished), &open, &known_usage);
    assert_eq!(metered.usage.output, 1_912);
}

#[test]
fn output_beyond_the_limit_is_billed_at_it() {
    let absurd = chat([n(11), NO, NO, n(4_294_967_295), n(5_000), NO]);
    let max_bounds = UsageBounds {
        output: 2_000,
        ..bounds()
    };
    let metered = meter(&VendorCounters::Chat(absurd), &max_bounds, &estimate());
    let expected = Excess {
        output: true,
        ..Excess::default()
    };
    assert_eq!(metered.verdict, UsageVerdict::Implausible(expected));
    assert_eq!(
        (
            metered.usage.input,
            metered.usage.output,
            metered.usage.reasoning
        ),
        (11, 2_000, 2_000)
    );
    assert_eq!(metered.counted_output, 4_294_967_295);
    let at = |completion| {
        meter(
            &VendorCounters::Chat(chat([n(11), NO, NO, completion, NO, NO])),
            &max_bounds,
            &estimate(),
        )
    };
    assert_eq!(
        (at(n(2_000)).verdict, at(n(2_000)).usage.output),
        (UsageVerdict::Exact, 2_000)
    );
    assert_eq!(
        (at(n(2_001)).verdict, at(n(2_001)).usage.output),
        (UsageVerdict::Implausible(expected), 2_000)
    );
    let audio_counters = ChatCounters {
        audio_completion: Some(1_990),
        ..chat([n(11), NO, NO, n(2_010), n(20), NO])
    };
    let usage = meter(
        &VendorCounters::Chat(audio_counters),
        &max_bounds,
        &estimate(),
    )
    .usage;
    assert_eq!(
        (usage.output, usage.audio_output, usage.reasoning),
        (20, 1_980, 20),
        "the largest is cut"
    );
    // The missing part is estimated, and the more serious verdict counts.
    let half = chat([NO, NO, NO, n(2_001), NO, NO]);
    assert_eq!(
        meter(&VendorCounters::Chat(half), &max_bounds, &estimate()).verdict,
        UsageVerdict::Implausible(expected)
    );
}

#[test]
fn input_beyond_what_is_believed_is_billed_at_what_the_request_holds() {
    let max_bounds = UsageBounds {
        input: 80,
        input_believed: 100,
        ..bounds()
    };
    let at = |counters| {
        meter(
            &VendorCounters::Messages(counters),
            &max_bounds,
            &estimate(),
        )
    };
    let expected = Excess {
        input: true,
        ..Excess::default()
    };
    assert_eq!(
        (at(answer(100, 1)).usage.input, at(answer(100, 1)).verdict),
        (100, UsageVerdict::Exact)
    );
    assert_eq!(
        (at(answer(101, 1)).usage.input, at(answer(101, 1)).verdict),
        (80, UsageVerdict::Implausible(expected))
    );
    let parts = |input, read, short, long| MessagesCounters {
        cache_read: Some(read),
        cache_writes: CacheWrites {
            short: Some(short),
            long: Some(long),
            ..CacheWrites::default()
        },
        ..answer(input, 1)
    };
    let cut = |counters| {
        let usage = at(counters).usage;
        [
            usage.input,
            usage.cache_read,
            usage.cache_write_5m,
            usage.cache_write_1h,
        ]
    };
    assert_eq!(cut(parts(100_000, 20, 10, 5)), [45, 20, 10, 5]);
    assert_eq!(cut(parts(20, 100_000, 10, 5)), [20, 45, 10, 5]);
    assert_eq!(cut(parts(20, 10, 100_000, 5)), [20, 10, 45, 5]);
    assert_eq!(cut(parts(20, 10, 5, 100_000)), [20, 10, 5, 45]);
    assert_eq!(
        cut(parts(100_000, 90_000, 10, 5)),
        [0, 65, 10, 5],
        "one after the other"
    );
    let audio_counters = ChatCounters {
        audio_prompt: Some(900),
        ..chat([n(950), NO, NO, n(1), NO, NO])
    };
    let usage = meter(
        &VendorCounters::Chat(audio_counters),
        &max_bounds,
        &estimate(),
    )
    .usage;
    assert_eq!((usage.input, usage.audio_input), (50, 30));
}

#[test]
fn searches_are_bounded_and_each_lets_the_conversation_be_read_once_more() {
    let open = UsageBounds {
        context: 1_000,
        input: 50,
        input_believed: 50,
        tool_uses: searches(2),
        ..bounds()
    };
    let at = |input, count| {
        let counters = MessagesCounters {
            tool_uses: searches(Some(count)),
            ..answer(input, 1)
        };
        let metered = messages(&counters, &open);
        (
            metered.usage.input,
            metered.usage.web_searches,
            metered.verdict,
        )
    };
    let over = |input, search| {
        UsageVerdict::Implausible(Excess {
            input,
            tool_uses: searches(search),
            ..Excess::default()
        })
    };
    assert_eq!(at(51, 0), (50, 0, over(true, false)));
    assert_eq!(at(2_000, 1), (2_000, 1, UsageVerdict::Exact));
    assert_eq!(at(2_001, 1), (2_000, 1, over(true, false)));
    assert_eq!(at(3_000, 2), (3_000, 2, UsageVerdict::Exact));
    assert_eq!(at(3_001, 3), (3_000, 2, over(true, true)));
    assert_eq!(at(20, 4_294_967_295), (20, 2, over(false, true)));
}

#[test]
fn an_estimate_is_bounded_without_being_implausible() {
    let max_bounds = UsageBounds {
        input: 30,
        input_believed: 35,
        output: 5,
        ..bounds()
    };
    let at = |counters| {
        let metered = meter(
            &VendorCounters::Chat(chat(counters)),
            &max_bounds,
            &estimate(),
        );
        (metered.usage.input, metered.usage.output, metered.verdict)
    };
    assert_eq!(
        at([NO, NO, NO, n(4), NO, NO]),
        (30, 4, UsageVerdict::Estimated)
    );
    assert_eq!(
        at([n(4), NO, NO, NO, NO, NO]),
        (4, 5, UsageVerdict::Estimated)
    );
    assert_eq!(
        at([n(0), NO, NO, n(0), NO, NO]),
        (30, 5, UsageVerdict::Estimated)
    );
}

#[test]
fn an_excess_names_its_counters() {
    let names = |excess: Excess| excess.counters().collect::<Vec<_>>();
    assert_eq!(names(Excess::default()), [""; 0]);
    assert_eq!(
        names(Excess {
            input: true,
            ..Excess::default()
        }),
        ["input"]
    );
    let all = Excess {
        input: true,
        output: true,
        compaction: true,
        tool_uses: PerTool::<u64>::default().map(|_| true),
        units: true,
    };
    assert_eq!(
        names(all),
        [
            "input",
            "output",
            "compaction",
            "units",
            "web_search",
            "web_fetch",
            "code_execution",
            "tool_search",
            "mcp"
        ]
    );
}
