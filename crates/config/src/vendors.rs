//! Validates the entries of `vendors` and fills in what their presets define.
//!
//! This file must not open a connection. Next: `presets.rs` (the defaults), `endpoint.rs` (the
//! endpoints).

use super::presets::{self, Preset};
use super::profile_faults::ProfileFacts;
use super::validator::{PLACEHOLDER, VendorSection, header_fault};
use super::{raw, suggest};
use crate::catalog::{CatalogVendor, EndpointAuth, Secret};
use http::{HeaderName, HeaderValue};
use llm_protocol::Protocol;
use llm_protocol::profile::{USAGE_PATHS, VendorProfile, outermost};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Maximum number of endpoints of one vendor. It is bounded because each request examines all.
const MAX_ENDPOINTS: usize = 32;
/// Fewest letters of `errors.full_context` that tell it from other errors.
const MIN_CONTEXT_WORDS: usize = 6;
/// Warning for a chat vendor without `stream_options`.
const NO_STREAM_OPTIONS: &str = "without stream_options the gateway cannot ask for the usage of streams: they are billed by \
     estimates. If the vendor reports it unasked, write `usage: [usage]`";

pub(super) struct VendorEntry {
    /// `None` if the vendor is disabled or has a fault.
    pub vendor: Option<Arc<CatalogVendor>>,
    pub preset: Option<&'static Preset>,
    /// The vendor's profile in the config file, completed by the defaults of preset and protocol.
    pub profile: raw::Profile,
    /// The roles in the config file, without defaults.
    pub own_roles: raw::Roles,
}

impl VendorSection<'_> {
    pub(super) fn vendors(
        &mut self,
        vendors: BTreeMap<String, raw::Vendor>,
    ) -> HashMap<String, VendorEntry> {
        let mut entries = HashMap::new();
        for (name, vendor) in vendors {
            let key = format!("vendors.{name}");
            let preset = vendor
                .preset
                .as_deref()
                .map(|preset| self.preset(&key, preset));
            let of_preset = preset.flatten().map(|preset| preset.profile.clone());
            let own_roles = vendor.profile.roles;
            let mut profile = vendor.profile.clone().or(of_preset);
            profile.roles = default_roles(profile.roles, &vendor, preset.flatten());
            let vendor = match preset {
                Some(None) => None,
                preset => self.vendor(&name, vendor, preset.flatten()).map(Arc::new),
            };
            entries.insert(
                name,
                VendorEntry {
                    vendor,
                    preset: preset.flatten(),
                    profile,
                    own_roles,
                },
            );
        }
        entries
    }

    fn preset(&mut self, key: &str, name: &str) -> Option<&'static Preset> {
        let found = presets::find(name);
        if found.is_none() {
            let key = format!("{key}.preset");
            match presets::unsupported(name) {
                Some(why) => self.0.add_fault(key, why),
                None => {
                    let known: Vec<_> = presets::names().collect();
                    let suggestion = suggest::nearest(name, known.iter().copied());
                    let suggestion = suggestion.map_or_else(String::new, |suggestion| {
                        format!(" Did you mean {suggestion:?}?")
                    });
                    self.0.add_fault(
                        key,
                        format!(
                            "there is no preset {name:?}.{suggestion} Known: {}",
                            known.join(", ")
                        ),
                    );
                }
            }
        }
        found
    }

    fn vendor(
        &mut self,
        name: &str,
        mut vendor: raw::Vendor,
        preset: Option<&'static Preset>,
    ) -> Option<CatalogVendor> {
        let key = format!("vendors.{name}");
        let Some(protocol) = vendor.protocol.or(preset.map(|preset| preset.protocol)) else {
            self.0.add_fault(
                format!("{key}.protocol"),
                "is required: messages, chat or responses; or name a `preset`",
            );
            return None;
        };
        let protocol = protocol_of(protocol);
        let listed = self.listed_endpoints(&key, std::mem::take(&mut vendor.endpoints), preset);
        let header = vendor
            .version_header
            .as_ref()
            .or_else(|| preset.and_then(|preset| preset.version_header.as_ref()));
        let version_header =
            header.map(|header| (header.name.to_ascii_lowercase(), header.value.clone()));
        let defaults = self.defaults(
            &key,
            &vendor,
            (protocol, preset),
            version_header.as_ref().map(|(name, _)| &**name),
        );
        let validate = |(index, endpoint)| {
            self.endpoint(&format!("{key}.endpoints[{index}]"), endpoint, &defaults)
        };
        let endpoints: Vec<_> = listed.iter().enumerate().map(validate).collect();
        let wants_key = endpoints
            .iter()
            .flatten()
            .any(|endpoint| endpoint.auth != EndpointAuth::None);
        // The authentication of an endpoint with a fault is unknown.
        let are_all_valid = !endpoints.is_empty() && endpoints.iter().all(Option::is_some);
        let wants_key = wants_key || !are_all_valid && defaults.auth != EndpointAuth::None;
        let key_path = format!("{key}.api_key");
        let api_key = self.api_key(&key_path, vendor.api_key.as_deref(), wants_key)?;
        // Only a whole `authorization` header has a word before the key.
        let whole_header = EndpointAuth::Header("authorization".to_owned());
        let sends_whole_header = endpoints
            .iter()
            .flatten()
            .any(|endpoint| endpoint.auth == whole_header);
        if let Some(fault) = api_key_mistake(api_key.reveal(), sends_whole_header)
            && header_fault(api_key.reveal()).is_none()
        {
            self.0.add_fault(key_path, fault);
        }
        self.check_version_header(&key, version_header.as_ref());
        Some(CatalogVendor {
            name: name.to_owned(),
            protocol,
            profile: self.profile(name, protocol, &vendor, preset),
            endpoints: endpoints.into_iter().collect::<Option<_>>()?,
            sticky: vendor.sticky,
            api_key,
            version_header,
        })
    }

    fn check_version_header(&mut self, key: &str, header: Option<&(String, String)>) {
        if let Some((name, value)) = header
            && (HeaderName::from_bytes(name.as_bytes()).is_err()
                || HeaderValue::from_str(value).is_err())
        {
            self.0.add_fault(
                format!("{key}.version_header"),
                "not a valid header name and value",
            );
        }
    }

    /// Returns the endpoints of the config file, or else that of the preset.
    fn listed_endpoints(
        &mut self,
        key: &str,
        written: Vec<raw::Endpoint>,
        preset: Option<&'static Preset>,
    ) -> Vec<raw::Endpoint> {
        let listed = if written.is_empty() {
            preset.and_then(preset_endpoint).into_iter().collect()
        } else {
            written
        };
        if !(1..=MAX_ENDPOINTS).contains(&listed.len()) {
            let message = match preset
                .and_then(|preset| preset.needs_url.as_deref())
                .filter(|_| listed.is_empty())
            {
                Some(example) => format!(
                    "is required: each customer of this vendor has a different address, such as [{{url: {example:?}}}]"
                ),
                None => format!("needs 1 to {MAX_ENDPOINTS} endpoints"),
            };
            self.0.add_fault(format!("{key}.endpoints"), message);
        }
        listed
    }

    /// Returns the profile of the vendor's server. The config file takes precedence over the
    /// preset, and the preset over the protocol.
    fn profile(
        &mut self,
        name: &str,
        protocol: Protocol,
        vendor: &raw::Vendor,
        preset: Option<&'static Preset>,
    ) -> VendorProfile {
        let key = &format!("vendors.{name}");
        let base = match is_official(vendor, preset) {
            true => VendorProfile::official(protocol),
            false => VendorProfile::compatible(),
        };
        let own = &vendor.profile;
        let written = own.clone().or(preset.map(|preset| preset.profile.clone()));
        let state = written.state_paths();
        let placeholder = written.state_placeholder.as_deref();
        let usage = written.usage.unwrap_or_default();
        let mut request = written.request.unwrap_or_else(|| {
            let mut request = base.request.clone();
            // A vendor whose profile names the place of its usage reports it in every stream.
            request.retain(|name| usage.is_empty() || name != "stream_options");
            request
        });
        // The config file's settings for a member take precedence over the preset.
        if let (None, Some(drop)) = (&own.request, &own.drop) {
            request.retain(|name| !drop.contains(name));
        }
        request.extend(state.iter().map(|(_, path)| outermost(path).to_owned()));
        let raw::ProfileThinking { on, off, .. } = &written.thinking;
        let switches = on.iter().chain(off).flatten();
        request.extend(switches.map(|(name, _)| name.clone()));
        let mut drop = written.drop.unwrap_or_else(|| base.drop.clone());
        if own.drop.is_none() {
            drop.retain(|name| !request.contains(name));
        }
        let placeholder_at = |of_message: bool| {
            let ((is_of_message, path), value) = state.first().zip(placeholder)?;
            (*is_of_message == of_message).then(|| member_at(path, value))
        };
        let full_context = self.full_context_words(key, written.errors.full_context);
        let profile = VendorProfile {
            full_context,
            request,
            drop,
            strict: written.strict.unwrap_or(base.strict),
            state: state.iter().map(|(_, path)| path.clone()).collect(),
            usage: usage
                .iter()
                .filter(|path| !USAGE_PATHS.contains(&path.as_str()))
                .cloned()
                .collect(),
            call_placeholder: placeholder_at(false),
            message_placeholder: placeholder_at(true),
            state_in_answers: written.state_in_answers.unwrap_or_default(),
            service_tiers: written.service_tiers.unwrap_or_default(),
            alternates: written.roles.alternate == Some(true),
            takes_betas: written.betas.unwrap_or(base.takes_betas),
            hides_thinking: written.thinking.shown == Some(false),
            maker: vendor.preset.clone().unwrap_or_else(|| name.to_owned()),
            ..base.clone()
        };
        let facts = ProfileFacts {
            protocol,
            own,
            thinking: &written.thinking,
            has_placeholder: placeholder.is_some(),
            profile: &profile,
        };
        for (below, message) in facts.contradictions() {
            self.0.add_fault(format!("{key}.profile.{below}"), message);
        }
        if protocol == Protocol::Chat && !profile.takes("stream_options") && usage.is_empty() {
            let below = match own.request {
                Some(_) => "request",
                None => "drop",
            };
            self.0
                .add_warning(format!("{key}.profile.{below}"), NO_STREAM_OPTIONS);
        }
        profile
    }

    /// Checks the texts by which the gateway recognises the vendor's error for a full context.
    fn full_context_words(&mut self, key: &str, words: Option<Vec<String>>) -> Vec<String> {
        let lengths = words.iter().flatten().map(|words| words.trim().len());
        let shortest = lengths.min().or(words.as_ref().map(Vec::len));
        let message = match shortest {
            Some(0) => "names no words: write some that the vendor's message has",
            Some(..MIN_CONTEXT_WORDS) => {
                "names letters that other errors have too: write more of the vendor's message"
            }
            _ => return words.unwrap_or_default(),
        };
        self.0
            .add_fault(format!("{key}.profile.errors.full_context"), message);
        words.unwrap_or_default()
    }

    /// Returns the vendor's key, or `None` if it has a fault or is empty. The vendor is then off.
    fn api_key(&mut self, key: &str, written: Option<&str>, is_required: bool) -> Option<Secret> {
        let Some(written) = written else {
            if is_required {
                self.0.add_fault(
                    key,
                    "is required: the vendor's key, as in \"${API_KEY}\"; or `auth: none` if the server needs no key",
                );
                return None;
            }
            return Some(Secret::new(String::new()));
        };
        if self.0.withholds_vendor_keys {
            return Some(Secret::new(PLACEHOLDER.into()));
        }
        let api_key = self.0.secret(key, written)?;
        if api_key.reveal().is_empty() && is_required {
            return None;
        }
        if let Some(fault) = header_fault(api_key.reveal()) {
            self.0.add_fault(key, fault);
        } else if !api_key.reveal().is_empty() && !is_required {
            self.0.add_fault(
                key,
                "has no effect: `auth` is none, so the gateway never sends it",
            );
        }
        Some(api_key)
    }
}

/// Describes the text that was written in place of a vendor's key, and the remedy.
fn api_key_mistake(text: &str, is_whole_header: bool) -> Option<&'static str> {
    let text = text.to_ascii_lowercase();
    let is_shell_parameter =
        |text: &str| !text.is_empty() && text.chars().all(|letter| letter.is_ascii_digit());
    if text.starts_with("$(") || text.starts_with('`') {
        Some("is a command of a shell, which the gateway does not run: write file:/path")
    } else if text.strip_prefix('$').is_some_and(is_shell_parameter) {
        Some("names a parameter of a shell: write a variable as \"${NAME}\"")
    } else if text.starts_with("file:") {
        Some("is not read as a file: write file: in lower case and the whole path after it")
    } else if text.starts_with('<') && text.ends_with('>')
        || text.starts_with("your_")
        || text.starts_with("your-")
    {
        Some("is an example: write the vendor's key, as in \"${API_KEY}\"")
    } else if text.starts_with("bearer ") && !is_whole_header {
        Some("begins with Bearer, which the gateway adds: write the key alone")
    } else if text.contains(char::is_whitespace) && !is_whole_header {
        Some("contains a space: write the key alone")
    } else {
        None
    }
}

/// Returns a string at a dotted path, as the inside of a JSON object.
fn member_at(path: &str, value: &str) -> String {
    let nest = |inside: serde_json::Value, name: &str| serde_json::json!({ name: inside });
    let whole = path.rsplit('.').fold(value.into(), nest).to_string();
    let inside = whole
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'));
    inside.unwrap_or_default().to_owned()
}

/// Adds the roles that follow from the protocol. The vendor that defined chat accepts instructions
/// anywhere, and only some models of the vendor that defined messages accept them in `messages`.
fn default_roles(
    mut roles: raw::Roles,
    vendor: &raw::Vendor,
    preset: Option<&'static Preset>,
) -> raw::Roles {
    let protocol = vendor.protocol.or(preset.map(|preset| preset.protocol));
    let place = match (protocol, is_official(vendor, preset)) {
        (Some(raw::VendorProtocol::Messages), false) => Some(raw::SystemPlace::First),
        (Some(raw::VendorProtocol::Chat | raw::VendorProtocol::Responses), true) => {
            Some(raw::SystemPlace::Anywhere)
        }
        _ => None,
    };
    roles.system = roles.system.or(place);
    roles
}

/// Returns whether the vendor is the one that defined its protocol.
fn is_official(vendor: &raw::Vendor, preset: Option<&'static Preset>) -> bool {
    vendor
        .official
        .unwrap_or(preset.is_some_and(|preset| preset.official))
}

fn protocol_of(written: raw::VendorProtocol) -> Protocol {
    match written {
        raw::VendorProtocol::Chat => Protocol::Chat,
        raw::VendorProtocol::Messages => Protocol::Messages,
        raw::VendorProtocol::Responses => Protocol::Responses,
    }
}

/// Returns the endpoint of a preset, if the preset has an address.
fn preset_endpoint(preset: &'static Preset) -> Option<raw::Endpoint> {
    Some(raw::Endpoint {
        url: preset.url.clone()?,
        path: None,
        query: BTreeMap::new(),
        headers: BTreeMap::new(),
        auth: None,
        http_version: None,
        weight: 1,
        max_concurrent: None,
        health_check: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_that_contradicts_itself_or_names_no_member_is_a_fault() {
        let local = include_str!("../../../conf/local.yaml");
        let with = |profile: &str| {
            let key = "    protocol: chat\n";
            let text = local.replacen(key, &format!("{key}    profile: {profile}\n"), 1);
            crate::parse(&text, &|_| Some("http://a".to_owned()))
        };
        let vendor =
            with("{request: [reasoning_content, user], state: [extra_content.a.b]}").unwrap();
        let model = vendor.catalog.find("beta-5.2").unwrap();
        let profile = &model.vendor.profile;
        assert!(profile.takes("reasoning_content") && profile.takes("extra_content"));
        assert!(
            !profile.drop.contains(&"reasoning_content".to_owned()),
            "{:?}",
            profile.drop
        );
        for (profile, key, words) in [
            (
                "{request: [user], drop: [user]}",
                "drop",
                "is in `request` too",
            ),
            ("{state: [user.a], drop: [user]}", "drop", "`state`"),
            ("{state: [user.a.b], drop: [a]}", "drop", "`state`"),
            ("{state: [message.a.b], drop: [b]}", "drop", "`state`"),
            ("{thinking: {off: {a: 1}}, drop: [a]}", "drop", "`thinking`"),
            ("{drop: [messages]}", "drop", "every server"),
            ("{drop: [parameters]}", "drop", "cannot do without"),
            ("{drop: [text]}", "drop", "cannot do without"),
            ("{drop: [properties]}", "drop", "cannot do without"),
            ("{usage: [meta..tokens]}", "usage", "is not the name"),
            ("{state: [content]}", "state", "writes itself"),
            ("{state: [message.role]}", "state", "writes itself"),
            ("{state: [function.arguments]}", "state", "writes itself"),
            ("{state: [\"\"]}", "state", "not the name of a member"),
            (
                "{thinking: {on: {a: 1}, off: {a: 1}}}",
                "thinking.off",
                "switches nothing",
            ),
            (
                "{thinking: {on: {max_tokens: 9}}}",
                "thinking.on",
                "writes itself",
            ),
            ("{thinking: {off: {n: 8}}}", "thinking.off", "writes itself"),
            (
                "{thinking: {off: {service_tier: x}}}",
                "thinking.off",
                "writes itself",
            ),
            (
                "{request: [\"a b\"]}",
                "request",
                "not the name of a member",
            ),
            (
                "{state_placeholder: x}",
                "state_placeholder",
                "names no place",
            ),
            (
                "{errors: {full_context: []}}",
                "errors.full_context",
                "names no words",
            ),
            (
                "{errors: {full_context: [too big, \" \"]}}",
                "errors.full_context",
                "names no words",
            ),
            (
                "{errors: {full_context: [a]}}",
                "errors.full_context",
                "other errors have",
            ),
            ("{takes: [user]}", "takes", "unknown"),
            ("{roles: {system: last}}", "roles.system", "first"),
        ] {
            let faults = with(profile).map(drop).unwrap_err();
            let fault = faults.first().unwrap();
            assert_eq!(
                fault.key,
                format!("vendors.beta.profile.{key}"),
                "{faults:?}"
            );
            assert!(fault.message.contains(words), "{profile}: {fault:?}");
        }
    }

    #[test]
    fn keys_of_another_protocol_and_roles_that_a_model_contradicts_are_faults() {
        let local = include_str!("../../../conf/local.yaml");
        let with = |(key, profile): (&str, &str), (model, capabilities): (&str, &str)| {
            let profile = format!("{key}    profile: {profile}\n");
            let model_key = format!("    upstream_model: {model}\n");
            let capabilities = format!("{model_key}    capabilities: {capabilities}\n");
            let text = local.replacen(key, &profile, 1);
            let text = text.replacen(&model_key, &capabilities, 1);
            crate::parse(&text, &|_| Some("http://a".to_owned()))
        };
        let (chat, messages) = ("    protocol: chat\n", "    protocol: messages\n");
        let chat_model = "gpt-5.2";
        for (vendor, profile, capabilities, key) in [
            (
                messages,
                "{drop: [max_tokens]}",
                "{}",
                "vendors.alpha.profile.drop",
            ),
            (
                messages,
                "{state: [a]}",
                "{}",
                "vendors.alpha.profile.state",
            ),
            (
                messages,
                "{roles: {prefix: true}}",
                "{}",
                "vendors.alpha.profile.roles.prefix",
            ),
            (
                chat,
                "{roles: {developer: false}}",
                "{system_role: developer}",
                "models[3].capabilities.system_role",
            ),
            (
                chat,
                "{roles: {system: first}}",
                "{mid_system: true}",
                "models[3].capabilities.mid_system",
            ),
        ] {
            let faults = with((vendor, profile), (chat_model, capabilities)).map(drop);
            let faults = faults.unwrap_err();
            assert_eq!(faults.first().unwrap().key, key, "{faults:?}");
        }
    }

    #[test]
    fn streams_whose_usage_cannot_be_asked_for_are_a_warning_and_the_file_wins_over_the_preset() {
        let local = include_str!("../../../conf/local.yaml");
        let with = |preset: &str, profile: &str| {
            let vendor = format!("    preset: {preset}\n    profile: {profile}\n");
            let text = local.replacen("    protocol: chat\n", &vendor, 1);
            crate::parse(&text, &|_| Some("http://a".to_owned())).unwrap()
        };
        for (profile, key) in [
            ("{request: [seed]}", Some("request")),
            ("{strict: true, request: []}", Some("request")),
            ("{drop: [stream_options]}", Some("drop")),
            ("{strict: true}", None),
        ] {
            let settings = with("xai", profile);
            let found: Vec<_> = settings.warnings.iter().map(|found| &*found.key).collect();
            let key = key.map(|key| format!("vendors.beta.profile.{key}"));
            assert_eq!(found, key.iter().collect::<Vec<_>>(), "{profile}");
            assert!(settings.warnings.iter().all(|found| found.line > 0));
        }
        let settings = with("mistral", "{strict: true}");
        assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
        let model = with("xai", "{drop: [parallel_tool_calls]}");
        let profile = &model.catalog.find("beta-5.2").unwrap().vendor.profile;
        assert!(!profile.takes("parallel_tool_calls") && profile.takes("stream_options"));
        let stateless = with("moonshot", "{state: []}");
        let profile = &stateless.catalog.find("beta-5.2").unwrap().vendor.profile;
        assert_eq!(profile.message_placeholder, None);
    }

    #[test]
    fn reasoning_that_must_return_and_is_refused_is_a_fault() {
        let local = include_str!("../../../conf/local.yaml");
        let model = "    upstream_model: gpt-5.2\n";
        let with = |profile: &str, replay: &str| {
            let replay = format!("{model}    capabilities: {{reasoning_replay: {replay}}}\n");
            let key = "    protocol: chat\n";
            let text = local.replacen(key, &format!("{key}    profile: {profile}\n"), 1);
            crate::parse(&text.replacen(model, &replay, 1), &|_| {
                Some("http://a".to_owned())
            })
        };
        for (profile, replay) in [
            ("{drop: [reasoning_content]}", "reasoning_content"),
            ("{strict: true, drop: []}", "reasoning_details"),
        ] {
            let faults = with(profile, replay).map(drop).unwrap_err();
            let found = [&faults[0].key, &faults[0].message].map(String::as_str);
            assert_eq!(
                found[0], "models[3].capabilities.reasoning_replay",
                "{faults:?}"
            );
            assert!(
                found[1].contains(replay) && found[1].contains("\"beta\""),
                "{faults:?}"
            );
        }
        let taken = "{strict: true, drop: [], request: [reasoning_content]}";
        assert!(with(taken, "reasoning_content").is_ok());
    }

    #[test]
    fn what_stands_in_the_place_of_a_key_is_named_and_a_key_is_not() {
        for (text, words) in [
            ("$(cat /k)", "does not run"),
            ("`cat /k`", "does not run"),
            ("$1", "${NAME}"),
            ("FILE:/etc/key", "lower case"),
            ("<your key>", "is an example"),
            ("YOUR_API_KEY", "is an example"),
            ("your-api-key", "is an example"),
            ("Bearer sk-1", "the key alone"),
            ("sk a", "contains a space"),
        ] {
            let found = api_key_mistake(text, false);
            assert!(found.is_some_and(|found| found.contains(words)), "{text}");
        }
        for key in ["", "sk-1", "$1a", "a<b>", "yours"] {
            assert_eq!(api_key_mistake(key, false), None, "{key}");
        }
        assert_eq!(api_key_mistake("Basic YTpi", true), None);
    }
}
