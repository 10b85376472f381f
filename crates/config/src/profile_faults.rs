//! Finds contradictions in the `profile` of a vendor, by one table.
//!
//! This file must not change a profile: `vendors.rs` does. Next: `vendors.rs`.

use super::raw;
use llm_protocol::Protocol;
use llm_protocol::profile::{self, VendorProfile};

/// The facts about a profile on which the table depends.
pub(super) struct ProfileFacts<'a> {
    pub protocol: Protocol,
    /// The profile in the config file, without a preset.
    pub own: &'a raw::Profile,
    pub thinking: &'a raw::ProfileThinking,
    pub has_placeholder: bool,
    pub profile: &'a VendorProfile,
}

/// Keys below `profile` that have an effect for chat vendors only.
const CHAT_ONLY: [&str; 12] = [
    "thinking.on",
    "thinking.off",
    "thinking.shown",
    "state",
    "state_placeholder",
    "state_in_answers",
    "service_tiers",
    "usage",
    "roles.developer",
    "roles.user_after_tool",
    "roles.alternate",
    "roles.prefix",
];

/// Returns whether this key below `profile` has an effect for chat vendors only.
pub fn is_chat_only(key: &str) -> bool {
    CHAT_ONLY.contains(&key)
}

/// Keys below `profile` with a fault. Each one has the faulty name in its value, unless the key
/// itself is the fault.
type Faults = Vec<(&'static str, Option<String>)>;

type FindFaults = fn(&ProfileFacts<'_>) -> Faults;

/// Functions that find a contradiction, with their messages.
const CONTRADICTIONS: [(FindFaults, &str); 11] = [
    (
        |facts| {
            let (profile, own) = (facts.profile, facts.own);
            let request = own.request.clone().unwrap_or_default();
            let usage = own.usage.clone().unwrap_or_default();
            let lists = [
                ("request", &request),
                ("drop", &profile.drop),
                ("state", &profile.state),
                ("usage", &usage),
            ];
            let faulty = |name: &str| !name.split('.').all(is_name);
            let found = lists.map(|(key, names)| select(key, names, faulty));
            found.concat()
        },
        "is not the name of a member, such as stream_options",
    ),
    (
        |facts| {
            let request = facts.own.request.iter().flatten();
            let request: Vec<_> = request.map(String::as_str).collect();
            select("drop", &facts.profile.drop, |name| request.contains(&name))
        },
        "is in `request` too: leave it out of one of them",
    ),
    (
        |facts| {
            let state = &facts.profile.state;
            let is_part = |name: &str| {
                state
                    .iter()
                    .any(|path| path.split('.').any(|it| it == name))
            };
            select("drop", &facts.profile.drop, is_part)
        },
        "is a part of `state`, which must go back: leave it out of one of them",
    ),
    (
        |facts| {
            let is_switch = |name: &str| facts.switches().any(|(_, switch)| switch == name);
            select("drop", &facts.profile.drop, is_switch)
        },
        "is a member of `thinking`, which the gateway sends: leave it out of one of them",
    ),
    (
        |facts| {
            let is_required = |name: &str| profile::is_required(facts.protocol, name);
            select("drop", &facts.profile.drop, is_required)
        },
        "is a member that every server of the protocol takes, and that a request cannot do without: leave it out",
    ),
    (
        |facts| {
            let is_base = |path: &str| VendorProfile::is_in_base(profile::outermost(path));
            select("state", &facts.profile.state, is_base)
        },
        "is a member that the gateway writes itself: leave it out",
    ),
    (
        |facts| {
            let found = facts
                .switches()
                .filter(|(_, name)| profile::is_written(name));
            found
                .map(|(key, name)| (key, Some(name.to_owned())))
                .collect()
        },
        "is a member that the gateway writes itself: leave it out",
    ),
    (
        |facts| {
            let raw::ProfileThinking { on, off, .. } = facts.thinking;
            flag("thinking.off", off.is_some() && on == off)
        },
        "is the same as `thinking.on`, so that it switches nothing",
    ),
    (
        |facts| {
            let is_idle = facts.has_placeholder && facts.profile.state.is_empty();
            flag("state_placeholder", is_idle)
        },
        "has no effect: `state` names no place for it",
    ),
    (
        |facts| {
            let (own, roles) = (facts.own, facts.own.roles);
            // The members have the order of the keys.
            let is_set = [
                own.thinking.on.is_some(),
                own.thinking.off.is_some(),
                own.thinking.shown.is_some(),
                own.state.is_some(),
                own.state_placeholder.is_some(),
                own.state_in_answers.is_some(),
                own.service_tiers.is_some(),
                own.usage.is_some(),
                roles.developer.is_some(),
                roles.user_after_tool.is_some(),
                roles.alternate.is_some(),
                roles.prefix.is_some(),
            ];
            let set = CHAT_ONLY.into_iter().zip(is_set);
            let found = set.filter(|(_, is_set)| *is_set && facts.protocol != Protocol::Chat);
            found.map(|(key, _)| (key, None)).collect()
        },
        "has an effect for chat vendors only: remove it",
    ),
    (
        |facts| {
            let is_idle = facts.own.strict.is_some() && facts.protocol == Protocol::Responses;
            flag("strict", is_idle)
        },
        "has no effect for a vendor of this protocol: name the members in `drop`",
    ),
];

impl ProfileFacts<'_> {
    /// Returns the contradictions: the key below `profile`, and the message.
    pub fn contradictions(&self) -> Vec<(&'static str, String)> {
        let found = CONTRADICTIONS.iter().flat_map(|(find, why)| {
            let found = find(self).into_iter();
            found.map(move |(key, name)| match name {
                None => (key, (*why).to_owned()),
                Some(name) => (key, format!("{name:?} {why}")),
            })
        });
        found.collect()
    }

    /// Returns the names of the members that switch reasoning, each with its key.
    fn switches(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let raw::ProfileThinking { on, off, .. } = self.thinking;
        let keyed = [("thinking.on", on), ("thinking.off", off)];
        keyed.into_iter().flat_map(|(key, members)| {
            let names = members.iter().flatten();
            names.map(move |(name, _)| (key, name.as_str()))
        })
    }
}

fn select(key: &'static str, names: &[String], is_faulty: impl Fn(&str) -> bool) -> Faults {
    let found = names.iter().filter(|name| is_faulty(name));
    found.map(|name| (key, Some(name.clone()))).collect()
}

fn flag(key: &'static str, is_faulty: bool) -> Faults {
    is_faulty.then_some((key, None)).into_iter().collect()
}

fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric();
    !name.is_empty() && name.bytes().all(|byte| is_letter(byte) || byte == b'_')
}
