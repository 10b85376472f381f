//! Computes the cost of a usual turn on a model, so that a page can show it before any credits are
//! spent.
//!
//! The numbers of tokens are an assumption, which pages state. This file must not depend on an
//! account.

use super::guide::ClientKind;
use super::native::is_native;
use config::catalog::CatalogModel;
use credits::money::Micro;
use credits::pricing;
use llm_protocol::Protocol;
use llm_protocol::usage::Usage;

/// The tokens of a usual turn.
#[derive(Debug, PartialEq, Eq)]
pub struct UsualTurn {
    /// Name in the head of a column.
    pub name: &'static str,
    /// Input that no earlier turn sent.
    pub new_input: u64,
    /// Input that is in the vendor's cache.
    pub cached: u64,
    pub output: u64,
}

/// Turns of programs that send instructions and tools with every turn. The first is the turn of
/// Claude Code 2.1.332 that says hello.
const AGENT_TURNS: &[UsualTurn] = &[
    UsualTurn {
        name: "First turn of a session",
        new_input: 15_000,
        cached: 0,
        output: 100,
    },
    UsualTurn {
        name: "Each further turn",
        new_input: 1_500,
        cached: 18_000,
        output: 500,
    },
];

/// Turns of programs that send only the user's own text.
const PLAIN_TURNS: &[UsualTurn] = &[UsualTurn {
    name: "One request",
    new_input: 1_000,
    cached: 0,
    output: 500,
}];

impl ClientKind {
    pub fn usual_turns(self) -> &'static [UsualTurn] {
        match self {
            Self::TerminalAgent | Self::Editor => AGENT_TURNS,
            Self::ChatApp | Self::CommandLine | Self::Library => PLAIN_TURNS,
        }
    }
}

impl UsualTurn {
    /// Returns the cost on a model. A messages vendor writes the new input of a conversation to its
    /// cache.
    pub fn cost(&self, model: &CatalogModel) -> Micro {
        let writes = is_native(model, Protocol::Messages) && self.is_of_conversation();
        let (input, cache_write_5m) = if writes {
            (0, self.new_input)
        } else {
            (self.new_input, 0)
        };
        let usage = Usage {
            input,
            cache_write_5m,
            cache_read: self.cached,
            output: self.output,
            ..Usage::default()
        };
        pricing::cost(&usage, &model.price)
    }

    /// Describes the assumption for pages.
    pub fn describe(&self) -> String {
        let Self {
            new_input,
            cached,
            output,
            ..
        } = self;
        match cached {
            0 => format!("{new_input} tokens in, none of them cached, {output} out"),
            _ => format!("{new_input} new tokens in, {cached} cached, {output} out"),
        }
    }

    fn is_of_conversation(&self) -> bool {
        AGENT_TURNS.contains(self)
    }
}

/// Returns the cost by which guides compare models, which is that of an agent's most frequent turn.
pub fn comparable_cost(model: &CatalogModel) -> Micro {
    AGENT_TURNS
        .iter()
        .fold(Micro::ZERO, |sum, turn| sum.plus(turn.cost(model)))
}
