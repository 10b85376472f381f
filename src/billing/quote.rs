//! Computes the quote of a request, which is its maximum cost, from the content of its body.
//!
//! A vendor reads at most one token per byte of the body itself. Content that makes the vendor read
//! or do more (an image, a fetched file, a stored conversation, a search) has a bound, or counts as
//! the model's whole context. A feature without a price is refused. This file must not depend on
//! accounts.

use config::catalog::CatalogModel;
use credits::money::Micro;
use credits::price_list::{TokenPrices, listed_tier};
use credits::pricing::{Quote, ServiceTerms, TierRequest, ToolHold, WorstCase};
use llm_protocol::Protocol;
use llm_protocol::failure::Failure;
use llm_protocol::request::{Features, MAX_IMAGE_TOKENS, RequestSummary};
use llm_protocol::usage::{PerTool, ServerTool, ServiceTier, UsageBounds};

/// Minimum thinking budget that a messages vendor accepts, in tokens.
pub const MIN_THINKING_TOKENS: u64 = 1_024;

/// Maximum number of uses of a server tool for which one request is held and billed, if it sets no
/// limit itself: two in each of the ten rounds after which a messages vendor ends the turn
/// (`pause_turn`). The source is the vendor's server tools guide, read 2026-11. The operator pays
/// for further uses.
const MAX_TOOL_USES: u64 = 20;

/// Maximum number of tokens that a vendor adds to a prompt itself: the rules for tools (up to 530
/// tokens, as the messages vendor documents), the system prompt of a chat template or of a hosted
/// model. Usage that exceeds the hold by more is implausible, and is billed at the held amount.
const MAX_TEMPLATE_TOKENS: u64 = 8_192;

/// Quotes the maximum cost of a request as a function of its output limit. `summary` and
/// `text_bytes` (all bytes except the base64 of images) describe the body that the vendor gets;
/// `surface` is the client's protocol, for the wording of a refusal.
///
/// # Errors
/// Returns an error if the request uses a feature that has no price.
pub fn quote(
    model: &CatalogModel,
    surface: Protocol,
    summary: &RequestSummary,
    text_bytes: u64,
    min_output: u64,
) -> Result<Quote, Failure> {
    if let Some(param) = find_unpriced(model, surface, summary) {
        return Err(Failure::unpriced_feature(surface, param));
    }
    let output_limit = summary
        .output_limit
        .map_or(model.max_output_tokens, |limit| limit.tokens);
    let own_floor = summary
        .output_limit
        .map_or(min_output, |limit| min_output.min(limit.tokens));
    let output_floor = match summary.thinking_budget {
        Some(_) => output_limit.min(MIN_THINKING_TOKENS.saturating_add(min_output)),
        None => own_floor,
    };
    let service = service_terms(&summary.features);
    Ok(Quote {
        reaches: worst_cases(model, summary, text_bytes),
        input_unit: "input tokens",
        choices: summary.drafts().max(1),
        tools: tool_holds(model, &summary.features),
        service,
        factor: service.max_factor(&model.price),
        output_limit,
        output_floor,
        own_limit: output_limit,
        others: Vec::new(),
        bounds: usage_bounds(model, summary, max_input_tokens(model, summary, text_bytes)),
    })
}

/// Finds the first requested feature without a price, by the client's name for it.
fn find_unpriced(
    model: &CatalogModel,
    surface: Protocol,
    summary: &RequestSummary,
) -> Option<&'static str> {
    let (features, priced) = (&summary.features, &model.price.features);
    let is_counted = |tool| reports_tool_uses(model.protocol(), tool);
    let uncounted =
        offered_tools(features).any(|tool| priced.tool_price(tool).is_none() || !is_counted(tool));
    // A tier that the vendor does not have is left out.
    let profile = &model.vendor.profile;
    let lacks_tier = |tier: &ServiceTier| profile.lacks_tier(&tier.to_string());
    let is_chat = model.protocol() == Protocol::Chat;
    let values = [
        features
            .service_tier
            .filter(|tier| !is_chat || !lacks_tier(tier)),
        features.inference_geo,
        features.speed,
    ];
    let mut unlisted =
        priced
            .factors()
            .into_iter()
            .zip(values)
            .filter_map(|((key, factors), value)| {
                let is_listed = value.is_none_or(|value| listed_tier(factors, value).is_some());
                (!is_listed).then_some(key)
            });
    let unlisted = unlisted.next();
    let tools = match (surface, model.protocol()) {
        (Protocol::Chat, Protocol::Chat) => features.server_tool_member.unwrap_or("tools"),
        // This is the only member of the surface that becomes a tool.
        (Protocol::Chat, _) => "web_search_options",
        _ => features.server_tool_member.unwrap_or("tools"),
    };
    let unpriced = [
        (features.server_tools || uncounted, tools),
        (unlisted.is_some(), unlisted.unwrap_or_default()),
        (features.fallback_models, "fallbacks"),
        (
            features.audio_input && priced.audio_input.is_none(),
            "messages",
        ),
        (
            features.audio_output && priced.audio_output.is_none(),
            "modalities",
        ),
    ];
    unpriced
        .into_iter()
        .find(|(unpriced, _)| *unpriced)
        .map(|(_, param)| param)
}

/// Returns the maximum usage that the vendor can count, apart from the output limit. `input` is the
/// number of input tokens for which credits are held.
fn usage_bounds(model: &CatalogModel, summary: &RequestSummary, input: u64) -> UsageBounds {
    let features = &summary.features;
    let mut tool_uses = PerTool::default();
    for tool in offered_tools(features) {
        *tool_uses.get_mut(tool) = max_tool_uses(model, features, tool);
    }
    UsageBounds {
        input,
        input_believed: match summary.completion {
            // A vendor puts no template around a prompt.
            Some(_) => input,
            None => input
                .saturating_add(MAX_TEMPLATE_TOKENS)
                .min(model.context_tokens.max(input)),
        },
        context: model.context_tokens,
        pass_output: model.max_output_tokens,
        compaction: features.compaction,
        tool_uses,
        ..UsageBounds::default()
    }
}

/// Returns the service terms that a request allows. Without a requested speed, the standard one
/// applies. Without a tier or region, the vendor chooses.
fn service_terms(features: &Features) -> ServiceTerms {
    let tier_request = |tier: Option<ServiceTier>, is_usual| match tier {
        Some(tier) => TierRequest::Named(tier),
        None if is_usual => TierRequest::Usual,
        None => TierRequest::Auto,
    };
    ServiceTerms {
        tier: tier_request(features.service_tier, features.usual_tier),
        geo: tier_request(features.inference_geo, features.usual_geo),
        speed: tier_request(features.speed, true),
    }
}

/// Returns whether a vendor with this protocol reports the number of uses of the tool. A chat
/// vendor does not.
fn reports_tool_uses(vendor: Protocol, tool: ServerTool) -> bool {
    match vendor {
        Protocol::Messages => true,
        Protocol::Chat => false,
        Protocol::Responses => matches!(
            tool,
            ServerTool::WebSearch | ServerTool::CodeExecution | ServerTool::Mcp
        ),
    }
}

fn offered_tools(features: &Features) -> impl Iterator<Item = ServerTool> + '_ {
    ServerTool::ALL
        .into_iter()
        .filter(|tool| features.tool_offers.get(*tool).is_some())
}

fn tool_holds(model: &CatalogModel, features: &Features) -> Vec<ToolHold> {
    let hold = |tool| {
        let uses = max_tool_uses(model, features, tool);
        ToolHold {
            tool,
            uses,
            price: model.price.features.tool_price(tool).unwrap_or_default(),
        }
    };
    offered_tools(features).map(hold).collect()
}

/// Returns the maximum number of uses of a tool by the request. A responses vendor applies one
/// limit to all tools together.
fn max_tool_uses(model: &CatalogModel, features: &Features, tool: ServerTool) -> u64 {
    let own = features
        .tool_offers
        .get(tool)
        .and_then(|offer| offer.max_uses)
        .unwrap_or(MAX_TOOL_USES);
    let shared = features
        .max_tool_calls
        .filter(|_| model.protocol() == Protocol::Responses);
    shared.map_or(own, |calls| calls.min(own))
}

/// Returns the maximum input and the highest price of its tokens for each price tier.
fn worst_cases(model: &CatalogModel, summary: &RequestSummary, text_bytes: u64) -> Vec<WorstCase> {
    let (features, priced) = (&summary.features, &model.price.features);
    let tokens = max_input_tokens(model, summary, text_bytes);
    let audio_input = priced.audio_input.filter(|_| features.audio_input);
    let audio_output = priced.audio_output.filter(|_| features.audio_output);
    let within = model
        .price
        .bands()
        .take_while(|span| span.min_tokens <= tokens);
    within
        .map(|span| WorstCase {
            input_tokens: tokens.min(span.max_tokens),
            input_price: max_input_price(model.protocol(), summary, &span.rates)
                .max(audio_input.unwrap_or_default()),
            output_price: span.rates.output.max(audio_output.unwrap_or_default()),
        })
        .collect()
}

fn max_input_tokens(model: &CatalogModel, summary: &RequestSummary, text_bytes: u64) -> u64 {
    let features = &summary.features;
    if let Some(completion) = summary.completion {
        return completion.max_input_tokens(text_bytes, model.context_tokens);
    }
    // Chat vendors multiply the tiles of an image by a factor that depends on the model.
    let images_unbounded = features.images > 0 && model.protocol() != Protocol::Messages;
    let unbounded = images_unbounded
        || features.documents_or_files
        || features.audio_input
        || offered_tools(features).next().is_some()
        || features.url_sources && features.images == 0
        || features.compaction;
    if unbounded {
        return model.context_tokens;
    }
    let images = u64::from(features.images).saturating_mul(MAX_IMAGE_TOKENS);
    text_bytes.saturating_add(images).min(model.context_tokens)
}

/// Returns the highest price class that the input can have. A chat vendor writes to its cache
/// automatically.
fn max_input_price(vendor: Protocol, summary: &RequestSummary, rates: &TokenPrices) -> Micro {
    let five_minutes = vendor != Protocol::Messages || summary.features.cache_markers;
    let mut highest = rates.input.max(rates.cache_read);
    if five_minutes {
        highest = highest.max(rates.cache_write_5m);
    }
    if summary.features.cache_markers_1h {
        highest = highest.max(rates.cache_write_1h);
    }
    highest
}

#[cfg(test)]
mod tests {
    use super::*;
    use credits::money::Factor;
    use credits::price_list::{FeaturePrices, InputTier, PriceList};
    use credits::pricing::cost;
    use llm_protocol::capabilities::CompletionsApi;
    use llm_protocol::request;
    use llm_protocol::usage::{ChatCounters, ServiceTier, Usage, VendorCounters, meter};
    use proptest::option::of as option;
    use proptest::prelude::*;
    use serde_json::json;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    fn credits(whole: i64) -> Micro {
        Micro::new(whole * 1_000_000)
    }

    fn rates(prices: [i64; 5]) -> TokenPrices {
        let [input, cache_read, cache_write_5m, cache_write_1h, output] = prices.map(credits);
        TokenPrices {
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            output,
        }
    }

    fn model(protocol: Protocol, tiers: Vec<InputTier>, features: FeaturePrices) -> CatalogModel {
        let price = PriceList::from_tiers(rates([100, 10, 125, 200, 500]), tiers, features);
        CatalogModel::in_test(protocol, price)
    }

    fn plain(protocol: Protocol) -> CatalogModel {
        model(protocol, Vec::new(), FeaturePrices::default())
    }

    fn priced(protocol: Protocol) -> CatalogModel {
        let factor = |text: &str| Factor::from_decimal(text.parse().unwrap()).unwrap();
        let service_tier = [("priority", "1.75"), ("flex", "0.5")]
            .map(|(tier, times)| (ServiceTier::from_wire(tier), factor(times)));
        let features = FeaturePrices {
            audio_input: Some(credits(3_000)),
            audio_output: Some(credits(6_000)),
            web_search: Some(credits(1_000)),
            tool_search: Some(Micro::ZERO),
            mcp: Some(credits(2_000)),
            service_tier: BTreeMap::from(service_tier),
            inference_geo: BTreeMap::from([(ServiceTier::from_wire("us"), factor("1.1"))]),
            speed: BTreeMap::from([(ServiceTier::from_wire("fast"), factor("6"))]),
            ..FeaturePrices::default()
        };
        model(protocol, Vec::new(), features)
    }

    fn ask(model: &CatalogModel, members: &str, bytes: u64) -> Result<Quote, Failure> {
        let protocol = model.protocol();
        let summary =
            request::read_summary(protocol, format!(r#"{{"model":"m",{members}}}"#).as_bytes())
                .unwrap();
        quote(model, protocol, &summary, bytes, 256)
    }

    fn uses(quote: &Quote, tool: ServerTool) -> u64 {
        quote
            .tools
            .iter()
            .filter(|hold| hold.tool == tool)
            .map(|hold| hold.uses)
            .sum()
    }

    fn only(quote: &Quote) -> WorstCase {
        assert_eq!(quote.reaches.len(), 1);
        quote.reaches[0]
    }

    fn messages_with(content: &str) -> String {
        format!(r#""messages":[{{"role":"user","content":[{content}]}}]"#)
    }

    const IMAGE: &str = r#"{"type":"image","source":{"type":"base64","data":"AA"}}"#;

    #[test]
    fn an_input_is_bounded_by_its_bytes_and_by_the_context() {
        let (messages, chat) = (plain(Protocol::Messages), plain(Protocol::Chat));
        let tokens = |model: &CatalogModel, members: &str| {
            only(&ask(model, members, 700).unwrap()).input_tokens
        };
        for model in [&messages, &chat] {
            assert_eq!(tokens(model, r#""messages":[]"#), 700);
            assert_eq!(
                only(&ask(model, r#""messages":[]"#, 100_001).unwrap()).input_tokens,
                100_000
            );
        }
        assert_eq!(
            tokens(&messages, &messages_with(&format!("{IMAGE},{IMAGE}"))),
            10_700
        );
        let far_image = r#"{"type":"image","source":{"type":"url","url":"https://x/y"}}"#;
        assert_eq!(
            tokens(&messages, &messages_with(far_image)),
            5_700,
            "an image is as large as it may be, wherever it is"
        );
        let image_url = r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}"#;
        assert_eq!(tokens(&chat, &messages_with(image_url)), 100_000);
        for unbounded in [
            messages_with(r#"{"type":"document","source":{"type":"base64","data":""}}"#),
            messages_with(r#"{"type":"text","source":{"type":"url","url":"https://x/y"}}"#),
            r#""context_management":{"edits":[{"type":"compact_20260112"}]}"#.into(),
        ] {
            assert_eq!(tokens(&messages, &unbounded), 100_000, "{unbounded}");
        }
        let audio =
            messages_with(r#"{"type":"input_audio","input_audio":{"data":"AA","format":"wav"}}"#);
        assert_eq!(tokens(&priced(Protocol::Chat), &audio), 100_000);
    }

    #[test]
    fn an_input_is_held_at_the_dearest_class_that_it_can_incur() {
        let (messages, chat) = (plain(Protocol::Messages), plain(Protocol::Chat));
        let price = |model: &CatalogModel, members: &str| {
            only(&ask(model, members, 700).unwrap()).input_price
        };
        assert_eq!(price(&messages, r#""messages":[]"#), credits(100));
        assert_eq!(
            price(&chat, r#""messages":[]"#),
            credits(125),
            "a chat vendor writes its cache unasked"
        );
        assert_eq!(
            price(&messages, r#""cache_control":{"type":"ephemeral"}"#),
            credits(125)
        );
        assert_eq!(
            price(
                &messages,
                r#""cache_control":{"type":"ephemeral","ttl":"1h"}"#
            ),
            credits(200)
        );
        let chat_options = |options: &str| {
            let options = format!(r#""prompt_cache_options":{{{options}}}"#);
            price(&chat, &options)
        };
        assert_eq!(chat_options(r#""ttl":"12h""#), credits(200));
        for usual in [r#""ttl":"30m""#, r#""mode":"explicit""#] {
            assert_eq!(chat_options(usual), credits(125), "{usual}");
        }
        let odd = CatalogModel {
            price: Arc::new(PriceList::new([1, 7, 2, 3, 4].map(credits))),
            ..plain(Protocol::Messages)
        };
        assert_eq!(price(&odd, r#""messages":[]"#), credits(7));
    }

    #[test]
    fn a_responses_vendor_is_held_for_as_a_chat_vendor_but_that_it_counts_its_searches() {
        let (plain, priced) = (plain(Protocol::Responses), priced(Protocol::Responses));
        let input = |part: &str| {
            format!(r#""max_output_tokens":20,"input":[{{"role":"user","content":[{part}]}}]"#)
        };
        let text = ask(&plain, &input(r#"{"type":"input_text","text":"hi"}"#), 700).unwrap();
        assert_eq!(
            (
                only(&text).input_tokens,
                only(&text).input_price,
                text.output_limit
            ),
            (700, credits(125), 20)
        );
        for part in [
            r#"{"type":"input_image","image_url":"data:image/png;base64,AA"}"#,
            r#"{"type":"input_file","filename":"a.pdf","file_data":"data:application/pdf;base64,AA"}"#,
        ] {
            assert_eq!(
                only(&ask(&plain, &input(part), 700).unwrap()).input_tokens,
                100_000,
                "{part}"
            );
        }
        for kind in ["web_search", "web_search_preview", "web_search_2025_08_26"] {
            let search = format!(r#""tools":[{{"type":"{kind}"}}]"#);
            assert_eq!(
                uses(&ask(&priced, &search, 700).unwrap(), ServerTool::WebSearch),
                20,
                "{kind}"
            );
            assert_eq!(
                ask(&plain, &search, 700).unwrap_err(),
                Failure::unpriced_feature(Protocol::Responses, "tools")
            );
        }
        for (calls, held) in [(2, 2), (0, 0), (500, 20)] {
            let limited = format!(r#""max_tool_calls":{calls},"tools":[{{"type":"web_search"}}]"#);
            let quote = ask(&priced, &limited, 700).unwrap();
            assert_eq!(
                (
                    uses(&quote, ServerTool::WebSearch),
                    quote.bounds.tool_uses.web_search
                ),
                (held, held),
                "{calls}"
            );
        }
        let own = r#""tools":[{"type":"function"},{"type":"custom"},{"type":"namespace","tools":[]},{"type":"local_shell"}]"#;
        assert_eq!(ask(&plain, own, 700).unwrap().tools, []);
    }

    #[test]
    fn every_tier_that_the_input_can_reach_is_a_case_of_its_own() {
        let tier = |above_input_tokens, prices| InputTier {
            above_input_tokens,
            rates: rates(prices),
        };
        let tiers = vec![
            tier(700, [200, 20, 250, 400, 1_000]),
            tier(900, [150, 15, 150, 150, 2_000]),
        ];
        let model = model(Protocol::Chat, tiers, FeaturePrices::default());
        let reached = |bytes| {
            let quote = ask(&model, r#""max_completion_tokens":10"#, bytes).unwrap();
            let amounts = |reach: &WorstCase| {
                (
                    reach.input_tokens,
                    reach.input_price.get(),
                    reach.output_price.get(),
                )
            };
            quote
                .reaches
                .iter()
                .map(amounts)
                .map(|(tokens, i, o)| (tokens, i / 1_000_000, o / 1_000_000))
                .collect::<Vec<_>>()
        };
        assert_eq!(reached(700), [(700, 125, 500)]);
        assert_eq!(reached(701), [(700, 125, 500), (701, 250, 1_000)]);
        assert_eq!(reached(900), [(700, 125, 500), (900, 250, 1_000)]);
        assert_eq!(
            reached(901),
            [(700, 125, 500), (900, 250, 1_000), (901, 150, 2_000)]
        );
        assert_eq!(reached(0), [(0, 125, 500)]);
    }

    #[test]
    fn limits_choices_and_budgets_make_the_output() {
        let model = plain(Protocol::Messages);
        let limits = |members: &str| {
            let quote = ask(&model, members, 1).unwrap();
            (quote.output_limit, quote.output_floor, quote.choices)
        };
        assert_eq!(limits(r#""messages":[]"#), (8_000, 256, 1));
        assert_eq!(limits(r#""max_tokens":500"#), (500, 256, 1));
        assert_eq!(limits(r#""max_tokens":50"#), (50, 50, 1));
        let thinking = r#""thinking":{"type":"enabled","budget_tokens":4000}"#;
        assert_eq!(
            limits(&format!(r#""max_tokens":5000,{thinking}"#)),
            (5_000, 1_280, 1)
        );
        assert_eq!(
            limits(&format!(r#""max_tokens":1200,{thinking}"#)),
            (1_200, 1_200, 1)
        );
        assert_eq!(
            ask(&plain(Protocol::Chat), r#""n":3"#, 1).unwrap().choices,
            3
        );
    }

    #[test]
    fn a_feature_is_admitted_where_its_use_has_a_price_and_is_told() {
        let search = r#""tools":[{"type":"web_search_20250305","name":"web_search","max_uses":4}]"#;
        let open_search = r#""tools":[{"type":"web_search_20250305","name":"web_search"}]"#;
        let audio =
            messages_with(r#"{"type":"input_audio","input_audio":{"data":"AA","format":"wav"}}"#);
        let audio_output = r#""modalities":["text","audio"]"#;
        let (messages, chat) = (priced(Protocol::Messages), priced(Protocol::Chat));
        let quote = ask(&messages, search, 700).unwrap();
        let hold = |tool, uses, price| ToolHold { tool, uses, price };
        assert_eq!(
            quote.tools,
            [hold(ServerTool::WebSearch, 4, credits(1_000))]
        );
        assert_eq!(
            only(&quote).input_tokens,
            100_000,
            "what is found is read too"
        );
        assert_eq!(
            uses(
                &ask(&messages, open_search, 700).unwrap(),
                ServerTool::WebSearch
            ),
            20
        );
        assert_eq!(ask(&messages, r#""messages":[]"#, 700).unwrap().tools, []);
        // Free of charge, but it has a price.
        let free = r#""tools":[{"type":"tool_search_tool_bm25_20251119","name":"t"}]"#;
        assert_eq!(
            ask(&messages, free, 700).unwrap().tools,
            [hold(ServerTool::ToolSearch, 20, Micro::ZERO)]
        );
        let remote = r#""mcp_servers":[{"type":"url","url":"https://x","name":"x"}]"#;
        assert_eq!(
            ask(&messages, remote, 700).unwrap().tools,
            [hold(ServerTool::Mcp, 20, credits(2_000))]
        );
        let responses = priced(Protocol::Responses);
        let remote = r#""tools":[{"type":"mcp","server_label":"x","server_url":"https://x"}]"#;
        assert_eq!(
            ask(&responses, remote, 700).unwrap().tools,
            [hold(ServerTool::Mcp, 20, credits(2_000))]
        );
        assert_eq!(
            only(&ask(&chat, &audio, 1).unwrap()).input_price,
            credits(3_000)
        );
        assert_eq!(
            only(&ask(&chat, audio_output, 1).unwrap()).output_price,
            credits(6_000)
        );
        assert_eq!(
            only(&ask(&chat, audio_output, 1).unwrap()).input_price,
            credits(125)
        );
        assert_eq!(
            only(&ask(&chat, &audio, 1).unwrap()).output_price,
            credits(500)
        );
        let flat_messages = plain(Protocol::Messages);
        let flat_chat = plain(Protocol::Chat);
        for (model, members, param) in [
            (&flat_messages, search, "tools"),
            (&chat, search, "tools"),
            (&chat, r#""web_search_options":{}"#, "web_search_options"),
            (
                &messages,
                r#""tools":[{"type":"code_execution_20250825"}]"#,
                "tools",
            ),
            (
                &messages,
                r#""tools":[{"type":"web_fetch_20250910","name":"web_fetch"}]"#,
                "tools",
            ),
            (
                &messages,
                r#""tools":[{"type":"advisor_20260301","name":"advisor"}]"#,
                "tools",
            ),
            (&messages, r#""container":{"skills":[]}"#, "tools"),
            (
                &flat_messages,
                r#""mcp_servers":[{"type":"url","url":"https://x"}]"#,
                "tools",
            ),
            (&flat_messages, free, "tools"),
            (
                &chat,
                r#""tools":[{"type":"mcp","server_url":"https://x"}]"#,
                "tools",
            ),
            (
                &chat,
                r#""search_parameters":{"mode":"on"}"#,
                "search_parameters",
            ),
            (
                &chat,
                r#""extra_body":{"google":{"tools":[{"google_search":{}}]}}"#,
                "tools",
            ),
            (&flat_messages, r#""inference_geo":"us""#, "inference_geo"),
            (&messages, r#""inference_geo":"eu""#, "inference_geo"),
            (&messages, r#""inference_geo":7"#, "inference_geo"),
            (&messages, r#""speed":"slow""#, "speed"),
            (&flat_chat, audio.as_str(), "messages"),
            (&flat_chat, audio_output, "modalities"),
            (&flat_chat, r#""service_tier":"flex""#, "service_tier"),
            (&chat, r#""service_tier":"scale""#, "service_tier"),
            (&flat_messages, r#""speed":"fast""#, "speed"),
            (&messages, r#""fallbacks":[{"model":"x"}]"#, "fallbacks"),
        ] {
            let failure = ask(model, members, 1).unwrap_err();
            assert_eq!(
                failure,
                Failure::unpriced_feature(model.protocol(), param),
                "{members}"
            );
        }
    }

    #[test]
    fn a_service_tier_is_held_at_what_it_can_come_to() {
        let (chat, messages) = (priced(Protocol::Chat), priced(Protocol::Messages));
        let tier_and_factor = |model: &CatalogModel, members: &str| {
            let quote = ask(model, members, 1).unwrap();
            (quote.service.tier, quote.factor.to_string())
        };
        let named = |tier| TierRequest::Named(ServiceTier::from_wire(tier));
        let in_global = |members: &str| format!(r#"{members},"inference_geo":"global""#);
        assert_eq!(
            tier_and_factor(&chat, &in_global(r#""n":1"#)),
            (TierRequest::Auto, "1.75".into())
        );
        assert_eq!(
            tier_and_factor(&chat, &in_global(r#""service_tier":"auto""#)),
            (TierRequest::Auto, "1.75".into())
        );
        assert_eq!(
            tier_and_factor(&chat, &in_global(r#""service_tier":"default""#)),
            (TierRequest::Usual, "1".into())
        );
        assert_eq!(
            tier_and_factor(&chat, &in_global(r#""service_tier":"flex""#)),
            (named("flex"), "0.5".into())
        );
        // The list names this tier `priority`, as the vendor reports it.
        assert_eq!(
            tier_and_factor(&chat, &in_global(r#""service_tier":"fast""#)),
            (named("fast"), "1.75".into())
        );
        let usual = r#""service_tier":"standard_only""#;
        assert_eq!(
            tier_and_factor(&messages, &in_global(usual)),
            (TierRequest::Usual, "1".into())
        );
        // If the request names no region, the vendor's own setting decides.
        assert_eq!(
            tier_and_factor(&messages, usual),
            (TierRequest::Usual, "1.1".into())
        );
        let us = format!(r#"{usual},"inference_geo":"us""#);
        assert_eq!(
            tier_and_factor(&messages, &us),
            (TierRequest::Usual, "1.1".into())
        );
        assert_eq!(
            tier_and_factor(&messages, &format!(r#"{us},"speed":"fast""#)).1,
            "6.6"
        );
        assert_eq!(
            tier_and_factor(&messages, &format!(r#"{us},"speed":"standard""#)).1,
            "1.1"
        );
        assert_eq!(
            tier_and_factor(&messages, r#""inference_geo":"us","speed":"fast""#).1,
            "11.55"
        );
        assert_eq!(
            tier_and_factor(&plain(Protocol::Chat), r#""n":1"#),
            (TierRequest::Auto, "1".into())
        );
    }

    proptest! {
        /// Whatever a completions request asks for and its vendor reports, the debit is at most the
        /// hold.
        #[test]
        fn completions_never_cost_more_than_is_held(
            prompts in 1..9_u64,
            ids in any::<bool>(),
            members in (option(1..5_u64), option(1..9_u64), option(0..9_000_u64), option("[a-z]{0,40}")),
            // A larger number is no count: see `usage/counters.rs`.
            counts in [option(0..=1_u64 << 53), option(0..=1_u64 << 53), option(0..=1_u64 << 53), option(0..=1_u64 << 53)],
            limit in 0..9_000_u64,
        ) {
            let (n, best_of, max_tokens, suffix) = members;
            let prompt = match ids {
                true => json!(vec![[1, 2]; usize::try_from(prompts).unwrap()]),
                false => json!(vec!["text"; usize::try_from(prompts).unwrap()]),
            };
            let body = json!({"model": "m", "prompt": prompt, "n": n, "best_of": best_of,
                "max_tokens": max_tokens, "suffix": suffix}).to_string();
            let summary = request::read_completion(CompletionsApi::Text, body.as_bytes()).unwrap();
            let model = plain(Protocol::Chat);
            let quote = quote(&model, Protocol::Chat, &summary, body.len() as u64, 256).unwrap();
            let drafts = prompts * n.unwrap_or(1).max(best_of.unwrap_or(1));
            prop_assert_eq!(quote.choices, drafts);
            let held = quote.output_limit.min(limit);
            let [prompt, completion, total, cached] = counts;
            let reported = VendorCounters::Chat(ChatCounters {
                prompt, completion, total, cached, ..ChatCounters::default()
            });
            let estimate = Usage { input: limit, output: u64::MAX, ..Usage::default() };
            let usage = meter(&reported, &quote.usage_bounds(held), &estimate).usage;
            prop_assert!(usage.output <= held * drafts);
            prop_assert!(cost(&usage, &model.price) <= quote.cost(held));
        }
    }
}
