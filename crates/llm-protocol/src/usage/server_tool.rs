//! Tools that run at the vendor and are billed per use.
//!
//! This file must not depend on JSON or a price. The readers of requests and answers map a
//! protocol's names to these tools; price lists and quotes have one slot for each tool.

use super::tokens::Usage;

/// A tool that runs at the vendor and has a price key of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerTool {
    WebSearch,
    WebFetch,
    /// Code execution in the messages API; the code interpreter in the responses API.
    CodeExecution,
    ToolSearch,
    /// A call of a remote MCP server's tool.
    Mcp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PerTool<T> {
    pub web_search: T,
    pub web_fetch: T,
    pub code_execution: T,
    pub tool_search: T,
    pub mcp: T,
}

impl ServerTool {
    /// Every tool, in the order of a receipt.
    pub const ALL: [Self; 5] = [
        Self::WebSearch,
        Self::WebFetch,
        Self::CodeExecution,
        Self::ToolSearch,
        Self::Mcp,
    ];

    /// Returns the price key, which is also the class of the tool's line on a receipt.
    pub fn key(self) -> &'static str {
        match self {
            Self::WebSearch => "web_search",
            Self::WebFetch => "web_fetch",
            Self::CodeExecution => "code_execution",
            Self::ToolSearch => "tool_search",
            Self::Mcp => "mcp",
        }
    }

    /// Returns the tool for a result block of a messages answer.
    pub fn from_result_block(kind: &str) -> Option<Self> {
        match kind {
            "web_search_tool_result" => Some(Self::WebSearch),
            "web_fetch_tool_result" => Some(Self::WebFetch),
            "code_execution_tool_result"
            | "bash_code_execution_tool_result"
            | "text_editor_code_execution_tool_result" => Some(Self::CodeExecution),
            "tool_search_tool_result" => Some(Self::ToolSearch),
            "mcp_tool_result" => Some(Self::Mcp),
            _ => None,
        }
    }

    /// Returns the tool for a call item of a responses answer.
    pub fn from_call_item(kind: &str) -> Option<Self> {
        match kind {
            "web_search_call" => Some(Self::WebSearch),
            "code_interpreter_call" => Some(Self::CodeExecution),
            "mcp_call" => Some(Self::Mcp),
            _ => None,
        }
    }
}

impl<T> PerTool<T> {
    pub fn map<U>(self, change: impl Fn(T) -> U) -> PerTool<U> {
        PerTool {
            web_search: change(self.web_search),
            web_fetch: change(self.web_fetch),
            code_execution: change(self.code_execution),
            tool_search: change(self.tool_search),
            mcp: change(self.mcp),
        }
    }

    pub fn get(&self, tool: ServerTool) -> &T {
        match tool {
            ServerTool::WebSearch => &self.web_search,
            ServerTool::WebFetch => &self.web_fetch,
            ServerTool::CodeExecution => &self.code_execution,
            ServerTool::ToolSearch => &self.tool_search,
            ServerTool::Mcp => &self.mcp,
        }
    }

    pub fn get_mut(&mut self, tool: ServerTool) -> &mut T {
        match tool {
            ServerTool::WebSearch => &mut self.web_search,
            ServerTool::WebFetch => &mut self.web_fetch,
            ServerTool::CodeExecution => &mut self.code_execution,
            ServerTool::ToolSearch => &mut self.tool_search,
            ServerTool::Mcp => &mut self.mcp,
        }
    }
}

impl PerTool<u64> {
    pub fn add(&mut self, tool: ServerTool) {
        let count = self.get_mut(tool);
        *count = count.saturating_add(1);
    }

    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

impl PerTool<Option<u64>> {
    /// Returns the reported counts. A tool without a report gets the count in `seen`.
    pub fn or(&self, seen: &PerTool<u64>) -> PerTool<u64> {
        let mut uses = *seen;
        for tool in ServerTool::ALL {
            *uses.get_mut(tool) = self.get(tool).unwrap_or(*seen.get(tool));
        }
        uses
    }

    /// Returns the larger of each reported count and the count in `seen`, for an answer that has
    /// not ended.
    pub fn max_with(&self, seen: &PerTool<u64>) -> PerTool<u64> {
        let mut uses = *seen;
        for tool in ServerTool::ALL {
            *uses.get_mut(tool) = self.get(tool).unwrap_or(0).max(*seen.get(tool));
        }
        uses
    }
}

impl Usage {
    pub fn uses(&self, tool: ServerTool) -> u64 {
        match tool {
            ServerTool::WebSearch => self.web_searches,
            ServerTool::WebFetch => self.web_fetches,
            ServerTool::CodeExecution => self.code_executions,
            ServerTool::ToolSearch => self.tool_searches,
            ServerTool::Mcp => self.mcp_calls,
        }
    }

    /// Returns this usage with its uses of server tools replaced.
    #[must_use]
    pub fn with_uses(self, uses: PerTool<u64>) -> Usage {
        Usage {
            web_searches: uses.web_search,
            web_fetches: uses.web_fetch,
            code_executions: uses.code_execution,
            tool_searches: uses.tool_search,
            mcp_calls: uses.mcp,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tool_has_a_place_of_its_own_everywhere() {
        for (number, tool) in (1..).zip(ServerTool::ALL) {
            let mut uses = PerTool::<u64>::default();
            for _ in 0..number {
                uses.add(tool);
            }
            let usage = Usage::default().with_uses(uses);
            let counts = ServerTool::ALL.map(|tool| usage.uses(tool));
            assert_eq!(
                (usage.uses(tool), counts.iter().sum::<u64>()),
                (number, number),
                "{tool:?}"
            );
            assert!(!usage.is_zero() && !uses.is_zero());
        }
        let keys: std::collections::BTreeSet<_> = ServerTool::ALL.map(ServerTool::key).into();
        assert_eq!(keys.len(), ServerTool::ALL.len());
    }

    #[test]
    fn a_reported_count_wins_once_the_answer_has_ended_and_the_larger_one_before() {
        let seen = PerTool {
            web_search: 3,
            mcp: 2,
            ..PerTool::default()
        };
        let reported = PerTool {
            web_search: Some(1),
            web_fetch: Some(4),
            ..PerTool::default()
        };
        assert_eq!(
            reported.or(&seen),
            PerTool {
                web_search: 1,
                web_fetch: 4,
                mcp: 2,
                ..PerTool::default()
            }
        );
        assert_eq!(
            reported.max_with(&seen),
            PerTool {
                web_search: 3,
                web_fetch: 4,
                mcp: 2,
                ..PerTool::default()
            }
        );
    }
}
