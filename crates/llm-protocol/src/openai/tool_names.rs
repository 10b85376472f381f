//! Names of tools that a reader shares with the writers of other protocols.

/// Name that stands for the web search tool among the members that the IR does not represent. No
/// member of a body can have this name.
pub(crate) const WEB_SEARCH_MEMBER: &str = "tools[web_search]";
