//! Defines the counters in a vendor's usage objects, and merges the objects of one answer.
//!
//! This file must not decide the meaning of a counter or whether it is plausible:
//! `usage/metering.rs` does. `None` marks a counter that is missing or not a valid count (negative,
//! not integral, a string, above 2^53).

use super::passes::CompactionPasses;
use super::server_tool::{PerTool, ServerTool};
use super::tier::{InferenceGeo, ServiceTier, Speed};
use super::tokens::Usage;

/// The counters of one answer, by their protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "an answer keeps one; a box would be allocated for every usage object"
)]
pub enum VendorCounters {
    /// Counters of a vendor with the chat completions or the responses API.
    Chat(ChatCounters),
    Messages(MessagesCounters),
}

/// Number of tokens that a vendor wrote to its caches, by its own classes.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheWrites {
    pub sum: Option<u64>,
    /// Parts of the sum by price class. `short` has the price `cache_write_5m`, and `long` the
    /// price `cache_write_1h`.
    pub short: Option<u64>,
    pub long: Option<u64>,
    /// Part of the sum for lifetimes that `counters.rs` does not know.
    pub unknown: Option<u64>,
}

impl CacheWrites {
    /// Returns the tokens by price class. The sum counts if it has no parts or only zero ones. An
    /// unknown lifetime has the class of the longest ones, whose price is the highest. A part that
    /// exceeds the sum is not a lifetime.
    pub fn classes(&self) -> (u64, u64) {
        let (short, long) = (self.short.unwrap_or(0), self.long.unwrap_or(0));
        let known = short.saturating_add(long);
        let rest = self.sum.map_or(u64::MAX, |sum| sum.saturating_sub(known));
        let unknown = self.unknown.unwrap_or(0).min(rest);
        match known.saturating_add(unknown) {
            0 => (self.sum.unwrap_or(0), 0),
            _ => (short, long.saturating_add(unknown)),
        }
    }

    pub(super) fn total(&self) -> u64 {
        let (short, long) = self.classes();
        short.saturating_add(long)
    }

    fn has_parts(&self) -> bool {
        [self.short, self.long, self.unknown]
            .iter()
            .any(Option::is_some)
    }
}

/// Counts in a usage object under names that the gateway does not know.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownUsage {
    /// True if a cache lifetime is unknown. It is billed as the longest one.
    pub cache_lifetime: bool,
    /// True if `iterations` has an entry of an unknown type, which is not billed.
    pub iteration: bool,
}

impl UnknownUsage {
    /// Returns the names of the unknown counts in the metric labels.
    pub fn counters(self) -> impl Iterator<Item = &'static str> {
        let all = [
            (self.cache_lifetime, "cache_lifetime"),
            (self.iteration, "iteration"),
        ];
        all.into_iter()
            .filter(|(is_set, _)| *is_set)
            .map(|(_, name)| name)
    }

    #[must_use]
    fn or(self, other: Self) -> Self {
        Self {
            cache_lifetime: self.cache_lifetime || other.cache_lifetime,
            iteration: self.iteration || other.iteration,
        }
    }
}

/// One usage object of a vendor with the chat completions or the responses API.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChatCounters {
    /// Number of prompt tokens. Most vendors include `cached`, `cache_writes` and `audio_prompt`.
    pub prompt: Option<u64>,
    pub cached: Option<u64>,
    pub cache_writes: CacheWrites,
    pub audio_prompt: Option<u64>,
    /// Number of completion tokens. Most vendors include `reasoning` and `audio_completion`.
    pub completion: Option<u64>,
    pub reasoning: Option<u64>,
    pub audio_completion: Option<u64>,
    /// The vendor's own total of input and output.
    pub total: Option<u64>,
    /// Number of uses of server tools, from a responses vendor.
    pub tool_uses: PerTool<u64>,
    pub service_tier: Option<ServiceTier>,
    pub unknown: UnknownUsage,
    /// True if a counter has a form that no client expects, such as `12.0`, `-0`, `"12"` or `-3`.
    pub is_irregular: bool,
}

impl ChatCounters {
    /// Replaces an earlier usage object of an answer by a later one, unless the later one counts
    /// less. Some vendors repeat a growing usage, and some end with an empty one.
    pub fn merge(&mut self, later: &Self) {
        if later.size() >= self.size() {
            *self = *later;
        }
    }

    /// Returns whether the object has a count, valid or not.
    pub fn is_usage(&self) -> bool {
        self.prompt.is_some() || self.completion.is_some() || self.is_irregular
    }

    fn size(&self) -> u64 {
        let sum = self
            .prompt
            .unwrap_or(0)
            .saturating_add(self.completion.unwrap_or(0));
        sum.max(self.total.unwrap_or(0))
    }

    /// Returns true if these counters, by the plain rules of their protocol, mean `usage`.
    pub fn matches(&self, usage: &Usage) -> bool {
        let written = usage.cache_write_5m.saturating_add(usage.cache_write_1h);
        let part = |counter: Option<u64>, tokens: u64| counter.unwrap_or(0) == tokens;
        !self.is_irregular
            && self.prompt == Some(usage.input_total())
            && self.completion == Some(usage.output_total())
            && self.total.is_none_or(|total| total == usage.tokens_total())
            && part(self.cached, usage.cache_read)
            && self.cache_writes.total() == written
            && part(self.audio_prompt, usage.audio_input)
            && part(self.audio_completion, usage.audio_output)
            && part(self.reasoning, usage.reasoning)
    }
}

/// One usage object of a vendor with the messages API.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessagesCounters {
    pub input: Option<u64>,
    pub cache_read: Option<u64>,
    /// Tokens written to caches. `message_start` has the split by lifetime; `message_delta` repeats
    /// only the sum.
    pub cache_writes: CacheWrites,
    pub output: Option<u64>,
    pub reasoning: Option<u64>,
    /// Number of uses of server tools by the vendor's own count.
    pub tool_uses: PerTool<Option<u64>>,
    /// Compaction passes, which the counters above do not include.
    pub compactions: CompactionPasses,
    pub service_tier: Option<ServiceTier>,
    pub inference_geo: Option<InferenceGeo>,
    pub speed: Option<Speed>,
    pub unknown: UnknownUsage,
    /// True if a counter has a form that no client expects, such as `12.0`, `-0`, `"12"` or `-3`.
    pub is_irregular: bool,
}

impl MessagesCounters {
    pub fn input_size(&self) -> u64 {
        let parts = [
            self.input.unwrap_or(0),
            self.cache_read.unwrap_or(0),
            self.cache_writes.total(),
        ];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// Merges a later usage object. The counters are cumulative, so the larger output counts. The
    /// input side is replaced as a whole unless it shrinks, because some vendors split it into its
    /// classes only at the end.
    pub fn merge(&mut self, later: &Self) {
        let earlier = *self;
        let mut input = Self {
            input: later.input.or(earlier.input),
            cache_read: later.cache_read.or(earlier.cache_read),
            ..earlier
        };
        input.replace_cache_writes(later);
        if input.input_size() >= earlier.input_size() {
            *self = input;
        }
        self.output = earlier.output.max(later.output);
        self.reasoning = earlier.reasoning.max(later.reasoning);
        for tool in ServerTool::ALL {
            let uses = self.tool_uses.get_mut(tool);
            *uses = (*earlier.tool_uses.get(tool)).max(*later.tool_uses.get(tool));
        }
        self.compactions = if later.compactions.is_empty() {
            earlier.compactions
        } else {
            later.compactions
        };
        self.service_tier = later.service_tier.or(earlier.service_tier);
        self.inference_geo = later.inference_geo.or(earlier.inference_geo);
        self.speed = later.speed.or(earlier.speed);
        self.unknown = earlier.unknown.or(later.unknown);
        self.is_irregular = later.is_irregular;
    }

    /// Replaces the counters of cache writes. If a later sum has no split, its increase is added to
    /// the class in use, which is one hour if only that class was used.
    fn replace_cache_writes(&mut self, later: &Self) {
        if later.cache_writes.has_parts() {
            self.cache_writes = later.cache_writes;
            return;
        }
        let Some(sum) = later.cache_writes.sum else {
            return;
        };
        let (short, long) = match self.cache_writes.classes() {
            (0, 1..) => (0, sum),
            (_, long) => (sum.saturating_sub(long.min(sum)), long.min(sum)),
        };
        self.cache_writes = CacheWrites {
            sum: Some(sum),
            short: Some(short),
            long: Some(long),
            unknown: None,
        };
    }

    /// Returns whether a client that knows `before` and reads these counters by the rules of their
    /// protocol arrives at `usage`. A missing counter leaves the earlier value unchanged.
    pub fn matches(&self, usage: &Usage, before: &Usage) -> bool {
        let written = |usage: &Usage| usage.cache_write_5m.saturating_add(usage.cache_write_1h);
        let (own, earlier) = (usage.without_passes(), before.without_passes());
        let (sum, has_split) = (self.cache_writes.sum, self.cache_writes.has_parts());
        let parts = CacheWrites {
            sum: None,
            ..self.cache_writes
        };
        let is = |counter: Option<u64>, of: fn(&Usage) -> u64| {
            counter.unwrap_or(of(&earlier)) == of(&own)
        };
        let compactions = if self.compactions.is_empty() {
            before.compactions
        } else {
            self.compactions
        };
        !self.is_irregular
            && is(self.input, |usage| usage.input.saturating_add(usage.audio_input))
            && is(self.cache_read, |usage| usage.cache_read)
            && is(sum, written)
            // Many clients read only the sum.
            && (!has_split || parts.total() == written(&own) && sum.is_some())
            && is(self.output, Usage::output_total)
            && is(self.reasoning, |usage| usage.reasoning)
            // If a vendor does not count a tool's uses, the number of the tool's results counts.
            && ServerTool::ALL.into_iter().all(|tool| self.tool_uses.get(tool).is_none_or(|uses| uses == own.uses(tool)))
            && compactions == usage.compactions
    }
}

/// The counters of a messages answer as they arrive, one usage object after the other.
#[derive(Default, Clone, Copy, Debug)]
pub struct MessagesUsage {
    known: MessagesCounters,
    is_settled: bool,
    /// Output of the answer so far. The output in `known` may be a placeholder.
    output: Option<u64>,
    /// Number of tool uses whose results have arrived.
    uses_seen: PerTool<u64>,
}

impl MessagesUsage {
    /// Reads the usage of `message_start`, whose input is valid and whose output is a placeholder.
    pub fn start(&mut self, counters: &MessagesCounters) {
        self.known.merge(counters);
    }

    /// Reads the usage of `message_delta`, or of a complete answer.
    pub fn finish(&mut self, counters: &MessagesCounters) {
        self.known.merge(counters);
        self.output = self.output.max(counters.output);
        // An invalid counter is estimated, but the other counters are valid.
        self.is_settled |= self.output.is_some() || counters.is_irregular;
    }

    /// Adds results of server tools that have arrived. The vendor may not count them.
    pub fn add_tool_results(&mut self, uses: &PerTool<u64>) {
        for tool in ServerTool::ALL {
            let seen = self.uses_seen.get_mut(tool);
            *seen = seen.saturating_add(*uses.get(tool));
        }
    }

    /// Returns the counters of the complete answer, or `None` before its final output was counted.
    pub fn total(&self) -> Option<VendorCounters> {
        let tool_uses = self.known.tool_uses.or(&self.uses_seen).map(Some);
        let counters = MessagesCounters {
            output: self.output,
            tool_uses,
            ..self.known
        };
        self.is_settled
            .then_some(VendorCounters::Messages(counters))
    }

    /// Returns the counters and the tool uses so far, or `None` before any input was counted.
    pub fn so_far(&self) -> Option<VendorCounters> {
        let tool_uses = self.known.tool_uses.max_with(&self.uses_seen).map(Some);
        let is_begun = self.known.input.is_some() || self.known.is_irregular;
        let output = self.output.or(self.known.output);
        is_begun.then_some(VendorCounters::Messages(MessagesCounters {
            output,
            tool_uses,
            ..self.known
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(prompt: u64, completion: u64, total: Option<u64>) -> ChatCounters {
        ChatCounters {
            prompt: Some(prompt),
            completion: Some(completion),
            total,
            ..ChatCounters::default()
        }
    }

    #[test]
    fn of_chat_objects_the_last_that_is_larger_counts() {
        let mut known = ChatCounters::default();
        for (later, stands) in [
            (chat(0, 0, None), true),
            (chat(5, 1, Some(6)), true),
            (chat(5, 7, Some(12)), true),
            (chat(0, 0, Some(0)), false),
            (ChatCounters::default(), false),
            (chat(5, 6, None), false),
            (
                ChatCounters {
                    cached: Some(2),
                    ..chat(5, 7, Some(12))
                },
                true,
            ),
            (chat(5, 7, Some(20)), true),
        ] {
            let before = known;
            known.merge(&later);
            assert_eq!(known, if stands { later } else { before });
        }
    }

    fn messages(input: u64, cache_read: Option<u64>, output: Option<u64>) -> MessagesCounters {
        MessagesCounters {
            input: Some(input),
            cache_read,
            output,
            ..MessagesCounters::default()
        }
    }

    fn searches(count: u64) -> PerTool<Option<u64>> {
        PerTool {
            web_search: Some(count),
            ..PerTool::default()
        }
    }

    fn merged(objects: &[MessagesCounters]) -> MessagesCounters {
        let mut known = MessagesCounters::default();
        objects.iter().for_each(|later| known.merge(later));
        known
    }

    #[test]
    fn a_later_larger_number_wins_on_both_sides() {
        let start = messages(25, Some(100), Some(1));
        let end = |input| merged(&[start, messages(input, None, Some(9))]);
        assert_eq!(end(31), messages(31, Some(100), Some(9)));
        assert_eq!(
            end(24),
            messages(25, Some(100), Some(9)),
            "a smaller one does not"
        );
        assert_eq!(
            merged(&[messages(0, None, Some(9)), messages(0, None, Some(3))]).output,
            Some(9)
        );
        // The last object splits the sum of the first one into classes.
        let split = messages(200, Some(800), Some(9));
        assert_eq!(merged(&[messages(1_000, None, Some(1)), split]), split);
        let less = messages(200, Some(799), Some(9));
        assert_eq!(
            merged(&[messages(1_000, None, Some(1)), less]).input,
            Some(1_000)
        );
    }

    #[test]
    fn the_split_of_cache_writes_wins_over_their_sum() {
        let writes = |sum, short, long| MessagesCounters {
            cache_writes: CacheWrites {
                sum,
                short,
                long,
                unknown: None,
            },
            ..MessagesCounters::default()
        };
        for (counters, expected) in [
            (writes(Some(200), Some(100), Some(50)), (100, 50)),
            (writes(Some(10), Some(100), Some(50)), (100, 50)),
            (writes(Some(200), Some(0), Some(50)), (0, 50)),
            (writes(Some(200), Some(50), None), (50, 0)),
            (writes(Some(200), Some(0), Some(0)), (200, 0)),
            (writes(Some(200), None, None), (200, 0)),
            (writes(None, None, None), (0, 0)),
        ] {
            assert_eq!(counters.cache_writes.classes(), expected, "{counters:?}");
        }
        let later = |first, sum| {
            merged(&[first, writes(Some(sum), None, None)])
                .cache_writes
                .classes()
        };
        assert_eq!(
            later(writes(Some(100), Some(0), Some(100)), 120),
            (0, 120),
            "only an hour was used"
        );
        assert_eq!(later(writes(Some(100), Some(40), Some(60)), 120), (60, 60));
        assert_eq!(later(writes(Some(100), Some(100), Some(0)), 100), (100, 0));
        assert_eq!(
            later(writes(Some(100), Some(40), Some(60)), 50),
            (40, 60),
            "a smaller sum does not count"
        );
        assert_eq!(later(writes(None, None, None), 50), (50, 0));
        let split = merged(&[
            writes(Some(100), None, None),
            writes(None, Some(70), Some(40)),
        ]);
        assert_eq!(split.cache_writes.classes(), (70, 40));
        for half in [writes(None, Some(170), None), writes(None, None, Some(170))] {
            assert_eq!(
                merged(&[writes(Some(100), None, None), half]).cache_writes,
                half.cache_writes
            );
        }
    }

    #[test]
    fn an_unknown_lifetime_is_written_at_the_price_of_the_longest_within_the_sum() {
        let with = |sum, short, unknown| {
            let writes = CacheWrites {
                sum,
                short,
                long: None,
                unknown: Some(unknown),
            };
            writes.classes()
        };
        assert_eq!(with(Some(100), Some(60), 40), (60, 40));
        assert_eq!(with(Some(100), Some(60), 100), (60, 40), "a sum of its own");
        assert_eq!(with(Some(100), Some(100), 100), (100, 0));
        assert_eq!(with(Some(100), None, 100), (0, 100));
        assert_eq!(with(Some(100), None, 0), (100, 0));
        assert_eq!(with(None, None, 100), (0, 100));
    }

    #[test]
    fn chat_counters_state_a_usage_by_every_member_that_a_client_reads() {
        let usage = Usage {
            input: 10,
            cache_read: 60,
            cache_write_5m: 6,
            cache_write_1h: 4,
            audio_input: 20,
            output: 15,
            audio_output: 35,
            reasoning: 5,
            ..Usage::default()
        };
        let all = ChatCounters {
            cached: Some(60),
            cache_writes: CacheWrites {
                sum: Some(10),
                short: Some(6),
                long: Some(4),
                unknown: None,
            },
            audio_prompt: Some(20),
            reasoning: Some(5),
            audio_completion: Some(35),
            ..chat(100, 50, Some(150))
        };
        assert!(all.matches(&usage) && ChatCounters { total: None, ..all }.matches(&usage));
        for other in [
            ChatCounters {
                prompt: Some(101),
                ..all
            },
            ChatCounters {
                prompt: None,
                ..all
            },
            ChatCounters {
                completion: Some(49),
                ..all
            },
            ChatCounters {
                completion: None,
                ..all
            },
            ChatCounters {
                total: Some(151),
                ..all
            },
            ChatCounters {
                cached: None,
                ..all
            },
            ChatCounters {
                cache_writes: CacheWrites {
                    sum: Some(9),
                    ..CacheWrites::default()
                },
                ..all
            },
            ChatCounters {
                audio_prompt: None,
                ..all
            },
            ChatCounters {
                reasoning: Some(6),
                ..all
            },
            ChatCounters {
                audio_completion: Some(0),
                ..all
            },
            ChatCounters {
                is_irregular: true,
                ..all
            },
        ] {
            assert!(!other.matches(&usage), "{other:?}");
        }
        assert!(chat(3, 4, None).matches(&Usage {
            input: 3,
            output: 4,
            ..Usage::default()
        }));
    }

    #[test]
    fn messages_counters_state_a_usage_over_what_was_read_before() {
        let of = |sum, short, long| CacheWrites {
            sum,
            short,
            long,
            unknown: None,
        };
        let pass = super::super::CompactionPass {
            input: 7,
            output: 8,
            ..Default::default()
        };
        let own = Usage {
            input: 10,
            cache_read: 60,
            cache_write_5m: 6,
            cache_write_1h: 4,
            output: 50,
            reasoning: 5,
            web_searches: 2,
            ..Usage::default()
        };
        let usage = own.with_passes([pass].into_iter().collect());
        let all = MessagesCounters {
            input: Some(10),
            cache_read: Some(60),
            cache_writes: of(Some(10), Some(6), Some(4)),
            output: Some(50),
            reasoning: Some(5),
            tool_uses: searches(2),
            compactions: usage.compactions,
            ..MessagesCounters::default()
        };
        let nothing = Usage::default();
        let uncounted = MessagesCounters {
            tool_uses: PerTool::default(),
            ..all
        };
        assert!(
            uncounted.matches(&usage, &nothing),
            "its results are counted"
        );
        assert!(all.matches(&usage, &nothing));
        assert!(
            MessagesCounters::default().matches(&usage, &usage),
            "nothing is new"
        );
        assert!(!MessagesCounters::default().matches(&usage, &nothing));
        let sum = MessagesCounters {
            cache_writes: of(Some(10), None, None),
            ..all
        };
        assert!(sum.matches(&usage, &nothing), "the sum says it");
        let (none, wrong) = (None, Some(99));
        for (other, without) in [
            (
                MessagesCounters {
                    input: wrong,
                    ..all
                },
                MessagesCounters { input: none, ..all },
            ),
            (
                MessagesCounters {
                    cache_read: wrong,
                    ..all
                },
                MessagesCounters {
                    cache_read: none,
                    ..all
                },
            ),
            (
                MessagesCounters {
                    cache_writes: of(wrong, Some(6), Some(4)),
                    ..all
                },
                MessagesCounters {
                    cache_writes: of(none, None, None),
                    ..sum
                },
            ),
            (
                MessagesCounters {
                    output: wrong,
                    ..all
                },
                MessagesCounters {
                    output: none,
                    ..all
                },
            ),
            (
                MessagesCounters {
                    reasoning: wrong,
                    ..all
                },
                MessagesCounters {
                    reasoning: none,
                    ..all
                },
            ),
            (
                MessagesCounters {
                    compactions: [pass, pass].into_iter().collect(),
                    ..all
                },
                MessagesCounters {
                    compactions: CompactionPasses::default(),
                    ..all
                },
            ),
        ] {
            assert!(!other.matches(&usage, &usage), "{other:?}");
            assert!(without.matches(&usage, &usage), "{without:?}");
            assert!(!without.matches(&usage, &nothing), "{without:?}");
        }
        for other in [
            MessagesCounters {
                is_irregular: true,
                ..all
            },
            MessagesCounters {
                cache_writes: of(None, Some(6), Some(4)),
                ..all
            },
            MessagesCounters {
                cache_writes: of(Some(10), Some(7), Some(4)),
                ..all
            },
            MessagesCounters {
                cache_writes: of(Some(10), None, Some(4)),
                ..all
            },
            MessagesCounters {
                cache_writes: of(Some(10), Some(6), None),
                ..all
            },
            MessagesCounters {
                tool_uses: searches(3),
                ..all
            },
        ] {
            assert!(!other.matches(&usage, &usage), "{other:?}");
        }
    }

    #[test]
    fn a_messages_answer_is_counted_once_its_output_is_and_a_placeholder_is_none() {
        let read = |counters: Option<VendorCounters>| match counters {
            Some(VendorCounters::Messages(counters)) => Some((
                counters.input,
                counters.output,
                counters.tool_uses.web_search,
            )),
            _ => None,
        };
        let mut usage = MessagesUsage::default();
        assert_eq!((read(usage.total()), read(usage.so_far())), (None, None));
        usage.start(&messages(25, None, Some(8)));
        assert_eq!(
            (read(usage.total()), read(usage.so_far())),
            (None, Some((Some(25), Some(8), Some(0))))
        );
        let search = PerTool {
            web_search: 1,
            ..PerTool::default()
        };
        usage.add_tool_results(&search);
        usage.add_tool_results(&search);
        assert_eq!(read(usage.so_far()), Some((Some(25), Some(8), Some(2))));
        usage.finish(&MessagesCounters {
            tool_uses: searches(1),
            ..MessagesCounters::default()
        });
        assert_eq!(read(usage.total()), None, "no output was counted");
        usage.finish(&MessagesCounters {
            output: Some(3),
            ..MessagesCounters::default()
        });
        assert_eq!(read(usage.total()), Some((Some(25), Some(3), Some(1))));
        assert_eq!(read(usage.so_far()), Some((Some(25), Some(3), Some(2))));
        usage.finish(&MessagesCounters {
            output: Some(0),
            ..MessagesCounters::default()
        });
        assert_eq!(read(usage.total()), Some((Some(25), Some(3), Some(1))));
        let odd = MessagesCounters {
            is_irregular: true,
            ..MessagesCounters::default()
        };
        let mut usage = MessagesUsage::default();
        usage.start(&odd);
        assert_eq!(
            (read(usage.total()), read(usage.so_far())),
            (None, Some((None, None, Some(0))))
        );
        usage.finish(&odd);
        assert_eq!(read(usage.total()), Some((None, None, Some(0))));
    }

    #[test]
    fn what_is_not_counted_again_stays() {
        let first = MessagesCounters {
            reasoning: Some(4),
            tool_uses: searches(2),
            compactions: [super::super::CompactionPass::default()]
                .into_iter()
                .collect(),
            service_tier: Some(ServiceTier::from_wire("batch")),
            ..messages(1, Some(2), Some(5))
        };
        let later = MessagesCounters {
            is_irregular: true,
            ..MessagesCounters::default()
        };
        assert_eq!(
            merged(&[first, later]),
            MessagesCounters {
                is_irregular: true,
                ..first
            }
        );
        assert_eq!(merged(&[later, first]), first);
        let less = MessagesCounters {
            reasoning: Some(3),
            tool_uses: searches(1),
            output: Some(4),
            ..first
        };
        assert_eq!(merged(&[first, less]), first);
        assert!(
            !ChatCounters {
                total: Some(5),
                ..ChatCounters::default()
            }
            .is_usage()
        );
        for counted in [
            ChatCounters {
                prompt: Some(0),
                ..ChatCounters::default()
            },
            ChatCounters {
                completion: Some(0),
                ..ChatCounters::default()
            },
            ChatCounters {
                is_irregular: true,
                ..ChatCounters::default()
            },
        ] {
            assert!(counted.is_usage(), "{counted:?}");
        }
    }
}
