//! Lists members of chat requests that only some compatible vendors support, by their effect at the
//! vendor.
//!
//! A compatible vendor reads members that the protocol does not have, and the gateway forwards the
//! body unchanged. If such a member makes the vendor search, fetch or run something, the operator
//! pays for it, so it is refused unless it has a price. A second output limit would let the vendor
//! generate more than was reserved, so it is removed. Members that reference objects of the vendor
//! account are in `request/vendor_state.rs`. This file must not refuse or edit a member:
//! `billing/quote.rs` and `request/foreign_fields/limits.rs` do.
//!
//! Names are compared without case and underscores: servers built on Protocol Buffers accept both
//! `cached_content` and `cachedContent`.

use super::features::Features;
use super::member_name::is_same_name;
use super::vendor_state::{self, VendorObject};
use crate::Protocol;
use crate::json::{JsonKind, JsonScanner, ScanResult};
use crate::table_text::names_in;

/// The names, by their effect.
const NAMES: &str = include_str!("extensions.txt");

/// Members that make a vendor search, fetch or run something, by vendor. The sources are the
/// vendors' API references, read 2026-11.
const UNPRICED_MEMBERS: [&str; 24] = names_in(NAMES, "unpriced");

/// Output limits and answer counts under other names than the surface's.
const FOREIGN_OUTPUT_LIMITS: [&str; 17] = names_in(NAMES, "output limits");

/// Names of objects that contain a vendor's own options. Some vendors, and gateways before them,
/// read the options as top-level members.
const OPTION_OBJECTS: [&str; 10] = names_in(NAMES, "option objects");

/// Members that decide the bill, and so must not occur in an object of options.
const BILLING_OPTIONS: [&str; 7] = names_in(NAMES, "billing options");

/// Effect of a member at the vendor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Extension {
    /// The vendor searches, fetches or runs something.
    Unpriced(&'static str),
    /// The vendor applies another output limit than the surface's.
    OutputLimit(&'static str),
    /// The member is an object of further options.
    Options(&'static str),
}

impl Extension {
    /// Returns the extension of a top-level member in a body of `protocol`.
    pub fn from_top_level(protocol: Protocol, name: &str) -> Option<Self> {
        // The responses protocol has its own limits and objects with these names, and its servers
        // ignore other names.
        if protocol == Protocol::Responses {
            return find_name(&UNPRICED_MEMBERS, name).map(Self::Unpriced);
        }
        let is_own = match protocol {
            Protocol::Chat => matches!(name, "max_tokens" | "max_completion_tokens"),
            Protocol::Messages | Protocol::Responses => name == "max_tokens",
        };
        if is_own {
            return None;
        }
        find_name(&OPTION_OBJECTS, name)
            .map(Self::Options)
            .or_else(|| Self::from_any_level(name))
    }

    /// Returns the extension of a member in an object of options.
    pub fn from_options(name: &str) -> Option<Self> {
        find_name(&BILLING_OPTIONS, name)
            .map(Self::OutputLimit)
            .or_else(|| Self::from_any_level(name))
    }

    /// Returns whether a member with this name marks a tool as the vendor's own.
    pub fn is_vendor_tool(name: &str) -> bool {
        find_name(&UNPRICED_MEMBERS, name).is_some()
    }

    fn from_any_level(name: &str) -> Option<Self> {
        find_name(&FOREIGN_OUTPUT_LIMITS, name)
            .map(Self::OutputLimit)
            .or_else(|| find_name(&UNPRICED_MEMBERS, name).map(Self::Unpriced))
    }
}

/// Returns the known name that equals this one without case and underscores.
fn find_name(names: &[&'static str], name: &str) -> Option<&'static str> {
    names
        .iter()
        .find(|known| is_same_name(known, name))
        .copied()
}

impl Features {
    /// Reads the value of a member that has this effect.
    pub(super) fn read_extension(
        &mut self,
        protocol: Protocol,
        extension: Extension,
        scan: &mut JsonScanner<'_>,
    ) -> ScanResult {
        match extension {
            Extension::Unpriced(name) => {
                if is_enabled(scan)? {
                    self.server_tools = true;
                    self.server_tool_member.get_or_insert(name);
                }
                Ok(())
            }
            Extension::OutputLimit(_) => {
                self.leftovers.second_limits = true;
                scan.skip()
            }
            Extension::Options(_) => self.read_options(protocol, scan),
        }
    }

    /// Reads a vendor's own options, at any depth. They count as top-level members.
    fn read_options(&mut self, protocol: Protocol, scan: &mut JsonScanner<'_>) -> ScanResult {
        match scan.kind()? {
            JsonKind::Array => scan
                .array(|scan| self.read_options(protocol, scan))
                .map(drop),
            JsonKind::Object => scan
                .object(|scan, key| self.read_option(protocol, &key.name(), scan))
                .map(drop),
            _ => scan.skip(),
        }
    }

    fn read_option(
        &mut self,
        protocol: Protocol,
        name: &str,
        scan: &mut JsonScanner<'_>,
    ) -> ScanResult {
        const AS_AT_TOP: [&str; 9] = [
            "tools",
            "functions",
            "fallbacks",
            "models",
            "mcp_servers",
            "speed",
            "inference_geo",
            "modalities",
            "audio",
        ];
        if let Some(object) = VendorObject::from_top_level_member(protocol, name) {
            return self.vendor_reference.record(object, scan);
        }
        if let Some(extension) = Extension::from_options(name) {
            return self.read_extension(protocol, extension, scan);
        }
        match name {
            name if AS_AT_TOP.contains(&name) => self.read_member(protocol, name, scan),
            "container" => self.vendor_reference.record_container(scan),
            name if vendor_state::is_client_data(name) && name != "parameters" => scan.skip(),
            _ => self.read_options(protocol, scan),
        }
    }
}

/// Consumes the next value and returns whether it enables the feature. Null, false, an empty list
/// and an object that switches the feature off do not.
fn is_enabled(scan: &mut JsonScanner<'_>) -> ScanResult<bool> {
    match scan.kind()? {
        JsonKind::Null | JsonKind::False => scan.skip().map(|_| false),
        JsonKind::Array => {
            let mut is_present = false;
            scan.array(|scan| {
                is_present = true;
                scan.skip()
            })?;
            Ok(is_present)
        }
        JsonKind::Object => {
            // If the member is duplicated, the vendor may read either.
            let (mut is_off, mut is_on) = (false, false);
            scan.object(|scan, key| {
                match key.name().as_ref() {
                    "enable" | "enabled" if scan.kind()? == JsonKind::False => {
                        is_off = true;
                        scan.skip()?;
                    }
                    "mode" => {
                        let mode = scan.string_or_skip()?.map(|mode| mode.name() == "off");
                        is_off |= mode == Some(true);
                        is_on |= mode != Some(true);
                    }
                    "enable" | "enabled" => {
                        is_on = true;
                        scan.skip()?;
                    }
                    _ => scan.skip()?,
                }
                ScanResult::Ok(())
            })?;
            Ok(is_on || !is_off)
        }
        _ => scan.skip().map(|_| true),
    }
}

#[cfg(test)]
mod tests {
    use crate::Protocol::{self, Chat, Messages, Responses};
    use crate::request::read_summary;
    use serde_json::{Value, json};

    fn with(members: &Value) -> String {
        let mut members = members.to_string();
        members.pop();
        format!(r#"{{"model":"m",{}}}"#, &members[1..])
    }

    /// Returns the member that asks the vendor to run something, if there is one.
    fn requested_feature(protocol: Protocol, body: &str) -> Option<&'static str> {
        let features = read_summary(protocol, body.as_bytes())
            .unwrap_or_else(|failure| panic!("{body}: {failure:?}"))
            .features;
        assert_eq!(
            features.server_tools,
            features.server_tool_member.is_some(),
            "{body}"
        );
        features.server_tool_member
    }

    #[test]
    fn what_makes_a_vendor_search_fetch_or_run_is_found_by_its_name() {
        for (members, name) in [
            (
                json!({"search_parameters": {"mode": "on"}}),
                "search_parameters",
            ),
            (json!({"search_parameters": {}}), "search_parameters"),
            (
                json!({"searchParameters": {"mode": "auto"}}),
                "search_parameters",
            ),
            (json!({"enable_search": true}), "enable_search"),
            (json!({"ENABLE_SEARCH": 1}), "enable_search"),
            (json!({"web_search": {"enable": true}}), "web_search"),
            (json!({"web_search_options": {}}), "web_search_options"),
            (json!({"plugins": [{"id": "web"}]}), "plugins"),
            (
                json!({"data_sources": [{"type": "azure_search"}]}),
                "data_sources",
            ),
            (
                json!({"compound_custom": {"tools": {"enabled_tools": ["web_search"]}}}),
                "compound_custom",
            ),
            (
                json!({"extra_body": {"enable_search": true}}),
                "enable_search",
            ),
            (
                json!({"extra_body": {"extra_body": {"google": {"googleSearch": {}}}}}),
                "google_search",
            ),
            (
                json!({"extra_body": {"google": {"tools": [{"google_search": {}}]}}}),
                "tools",
            ),
            (
                json!({"extra_body": [{"tools": [{"type": "web_search"}]}]}),
                "tools",
            ),
            (json!({"tools": [{"google_search": {}}]}), "tools"),
            (json!({"tools": [{"url_context": {}}]}), "tools"),
            (json!({"tools": [{"code_execution": {}}]}), "tools"),
            (
                json!({"tools": [{"codeExecution": {}, "type": "function", "function": {"name": "f"}}]}),
                "tools",
            ),
            (json!({"tools": [{"something_new": {}}]}), "tools"),
            (json!({"tools": [{}]}), "tools"),
            (
                json!({"tools": [{"type": "builtin_function", "function": {"name": "$web_search"}}]}),
                "tools",
            ),
            (json!({"tools": [{"type": "bash_20250124"}]}), "tools"),
            (json!({"tools": [{"type": null}]}), "tools"),
        ] {
            assert_eq!(
                requested_feature(Chat, &with(&members)),
                Some(name),
                "{members}"
            );
        }
        for body in [
            r#"{"model":"m","enable_search":false,"enable\u005fsearch":true}"#,
            r#"{"model":"m","enable_search":true,"enable_search":false}"#,
            r#"{"model":"m","search_parameters":{"mode":"on","mode":"off"}}"#,
            r#"{"model":"m","search_parameters":{"mode":"off","mode":"on"}}"#,
            r#"{"model":"m","tools":[{"type":"function","type":"web_browser","function":{}}]}"#,
            r#"{"model":"m","tools":[{"type":"function","function":{},"google\u005fsearch":{}}]}"#,
        ] {
            assert!(requested_feature(Chat, body).is_some(), "{body}");
        }
        assert_eq!(
            requested_feature(
                Responses,
                &with(&json!({"search_parameters": {"mode": "on"}}))
            ),
            Some("search_parameters")
        );
    }

    #[test]
    fn what_is_switched_off_or_is_data_makes_a_vendor_do_nothing() {
        let schema = json!({"type": "object", "properties": {"google_search": {"type": "object"}}});
        for (protocol, members) in [
            (Chat, json!({"search_parameters": {"mode": "off"}})),
            (
                Chat,
                json!({"enable_search": false, "plugins": [], "web_search_options": null}),
            ),
            (Chat, json!({"web_search": {"enable": false}})),
            (
                Chat,
                json!({"extra_body": {"google": {"thinking_config": {"thinking_budget": 5}}}}),
            ),
            (
                Chat,
                json!({"extra_body": {"google": {"tools": [{"functionDeclarations": [{"name": "f"}]}]}}}),
            ),
            (
                Chat,
                json!({"tools": [{"type": "function", "function": {"name": "google_search", "parameters": schema}}]}),
            ),
            (
                Chat,
                json!({"tools": [{"function": {"name": "f"}}, {"type": "custom", "custom": {"name": "g"}}]}),
            ),
            (
                Chat,
                json!({"tools": [{"type": "function", "function": {"name": "f"}, "annotations": {"title": "F"}}]}),
            ),
            (
                Chat,
                json!({"messages": [{"role": "user", "content": "enable_search: true"}]}),
            ),
            (
                Chat,
                json!({"metadata": {"enable_search": true}, "chat_template_kwargs": {"enable_search": true}}),
            ),
            (
                Messages,
                json!({"tools": [{"name": "google_search", "input_schema": schema}]}),
            ),
        ] {
            assert_eq!(
                requested_feature(protocol, &with(&members)),
                None,
                "{members}"
            );
        }
    }

    #[test]
    fn a_limit_of_nothing_is_only_for_messages_vendors_and_never_for_a_stream() {
        let refusal = |protocol, members: Value| {
            read_summary(protocol, with(&members).as_bytes())
                .err()
                .map(|failure| failure.param.unwrap_or_default())
        };
        for (protocol, field) in [
            (Chat, "max_tokens"),
            (Chat, "max_completion_tokens"),
            (Responses, "max_output_tokens"),
        ] {
            for limit in [0, -1] {
                assert_eq!(
                    refusal(protocol, json!({field: limit})).as_deref(),
                    Some(field)
                );
            }
            assert_eq!(refusal(protocol, json!({field: 1})), None);
        }
        assert_eq!(
            refusal(Messages, json!({"max_tokens": -1})).as_deref(),
            Some("max_tokens")
        );
        assert_eq!(refusal(Messages, json!({"max_tokens": 0})), None);
        assert_eq!(
            refusal(Messages, json!({"max_tokens": 0, "stream": true})).as_deref(),
            Some("max_tokens")
        );
        assert_eq!(
            refusal(Messages, json!({"stream": true, "max_tokens": 0})).as_deref(),
            Some("max_tokens")
        );
    }
}
