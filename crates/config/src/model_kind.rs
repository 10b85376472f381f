//! Which keys a kind of model needs, and which it may have: one row for each kind.
//!
//! Must not know how a kind is served: `llm_protocol::metered` does.

use super::validator::ModelSection;
use super::vendors::VendorEntry;
use super::{raw, wrong_type};
use crate::catalog::VendorEndpoint;
use llm_protocol::Protocol;
use llm_protocol::metered::ModelKind;

/// A way in which a kind is billed, by the price keys that it needs and those that it may have.
struct PriceForm {
    needed: &'static [&'static str],
    optional: &'static [&'static str],
    /// Whether the model needs `max_output_tokens`.
    has_output: bool,
}

const fn by(needed: &'static [&'static str]) -> PriceForm {
    PriceForm {
        needed,
        optional: &[],
        has_output: false,
    }
}

const BY_INPUT: [PriceForm; 1] = [by(&["input"])];
const RERANK: [PriceForm; 2] = [by(&["input"]), by(&["search_unit"])];
const SPEECH: [PriceForm; 1] = [by(&["character"])];
const IMAGE: [PriceForm; 2] = [
    by(&["image"]),
    PriceForm {
        needed: &["input", "image_output"],
        optional: &["image_input", "output"],
        has_output: true,
    },
];
const TRANSCRIPTION: [PriceForm; 2] = [
    by(&["second"]),
    PriceForm {
        needed: &["input", "output"],
        optional: &["audio_input"],
        has_output: true,
    },
];

impl PriceForm {
    fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.needed.iter().chain(self.optional).copied()
    }
}

/// Returns the ways in which a kind can be billed; none for `chat`.
fn price_forms(kind: ModelKind) -> &'static [PriceForm] {
    match kind {
        ModelKind::Chat => &[],
        ModelKind::Embedding | ModelKind::Moderation => &BY_INPUT,
        ModelKind::Rerank => &RERANK,
        ModelKind::Image => &IMAGE,
        ModelKind::Speech => &SPEECH,
        ModelKind::Transcription => &TRANSCRIPTION,
    }
}

/// Returns what else to write, if the price at this path does not fit the kind.
fn advice(path: &str, kind: ModelKind) -> String {
    let Some((_, price_key)) = path.split_once(".price.") else {
        return String::new();
    };
    if kind == ModelKind::Chat {
        if price_key != "output" && !METERED_PRICE.contains(&price_key) {
            return String::new();
        }
        let others = ModelKind::ALL.map(ModelKind::as_str);
        let others = others.get(1..).unwrap_or_default().join(", ");
        return format!("; a model that generates no text has a `kind`: {others}");
    }
    let forms = price_forms(kind).iter().map(|form| {
        let keys: Vec<_> = form.needed.iter().map(|key| format!("`{key}`")).collect();
        keys.join(" and ")
    });
    let forms: Vec<_> = forms.collect();
    let only = if forms.len() == 1 { " only" } else { "" };
    format!("; such a model has the price {}{only}", forms.join(" or "))
}

/// Price keys that no chat model may have.
const METERED_PRICE: [&str; 6] = [
    "search_unit",
    "image",
    "image_input",
    "image_output",
    "character",
    "second",
];

/// Keys of a model that only `kind: chat` may have.
const CHAT_KEYS: [&str; 5] = [
    "capabilities",
    "repair",
    "cache_marks",
    "upstream_protocol",
    "fallback",
];

/// The price keys that every chat model needs.
const CHAT_PRICE: [&str; 2] = ["input", "output"];

impl ModelSection<'_> {
    /// Checks the keys of a model by its kind.
    pub(super) fn check_kind(&mut self, key: &str, model: &raw::Model) {
        let kind = ModelKind::from(model.kind);
        let price_key = |name: &str| format!("{key}.price.{name}");
        let max_output = format!("{key}.max_output_tokens");
        let max_seconds = format!("{key}.max_audio_seconds");
        let (mut needed, mut misplaced) = (Vec::new(), Vec::new());
        if kind != ModelKind::Transcription {
            misplaced.push(max_seconds);
        }
        let forms = price_forms(kind);
        let is_set = |name: &str| self.0.is_set(&price_key(name));
        let meant = forms.iter().find(|form| form.keys().any(is_set));
        if let Some(form) = meant.or(forms.first()) {
            let keys: Vec<_> = form.keys().collect();
            needed.extend(form.needed.iter().map(|name| price_key(name)));
            match form.has_output {
                true => needed.push(max_output),
                false => misplaced.push(max_output),
            }
            misplaced.extend(CHAT_KEYS.iter().map(|name| format!("{key}.{name}")));
            let of_kind: Vec<_> = forms.iter().flat_map(PriceForm::keys).collect();
            let other = raw::Price::KEYS
                .iter()
                .filter(|name| !of_kind.contains(name));
            misplaced.extend(other.map(|name| price_key(name)));
            for name in of_kind.iter().filter(|name| !keys.contains(name)) {
                if !self.0.is_set(&price_key(name)) {
                    continue;
                }
                let message = format!(
                    "cannot be used beside {:?}: a request is billed by one unit",
                    keys.first().copied().unwrap_or_default()
                );
                self.0.add_fault(price_key(name), message);
            }
        } else {
            needed.extend(CHAT_PRICE.map(price_key));
            needed.push(max_output);
            misplaced.extend(METERED_PRICE.map(price_key));
        }
        for path in needed {
            if !self.0.is_set(&path) {
                let message = format!("{}{}", wrong_type::missing(&path), advice(&path, kind));
                self.0.add_fault(path, message);
            }
        }
        for path in misplaced {
            if self.0.is_set(&path) {
                let advice = advice(&path, kind);
                let message = format!(
                    "has no effect for `kind: {}`: remove it{advice}",
                    kind.as_str()
                );
                self.0.add_fault(path, message);
            }
        }
    }

    /// Checks that the model's vendor can serve its kind.
    pub(super) fn check_kind_of_vendor(
        &mut self,
        key: &str,
        model: &raw::Model,
        vendor: &VendorEntry,
    ) {
        let kind = ModelKind::from(model.kind);
        let protocol = vendor.vendor.as_ref().map(|vendor| vendor.protocol);
        if kind != ModelKind::Chat && protocol.is_some_and(|protocol| protocol != Protocol::Chat) {
            let message = format!(
                "`{}` needs a vendor with `protocol: chat`: {:?} has another one",
                kind.as_str(),
                model.vendor
            );
            self.0.add_fault(format!("{key}.kind"), message);
        } else if kind != ModelKind::Chat
            && let Some(vendor) = &vendor.vendor
            && !vendor.endpoints.iter().all(VendorEndpoint::has_other_paths)
        {
            let message = format!(
                "cannot be used: the `path` of an endpoint of {:?} does not end in /chat/completions, so the path of \
                 its other APIs is unknown",
                model.vendor
            );
            self.0.add_fault(format!("{key}.kind"), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::parse;
    use crate::raw::Price;

    const SHIPPED: &str = include_str!("../../../conf/local.yaml");

    /// The shipped file with this model of the chat vendor.
    fn with_model(members: &str) -> String {
        let model = format!(
            "models:\n  - {{id: e, vendor: beta, upstream_model: e, context_tokens: 8192, {members}}}\n"
        );
        SHIPPED.replacen("models:\n", &model, 1)
    }

    #[track_caller]
    fn faults(text: &str) -> Vec<(String, String)> {
        let faults = parse(text, &|_| None).unwrap_err();
        let line = |fault: &crate::ConfigFault| text.lines().nth(fault.line as usize - 1).unwrap();
        let all = faults.iter().map(|fault| {
            assert!(
                line(fault).contains("id: e"),
                "the fault names its line: {fault:?}"
            );
            (fault.key.clone(), fault.message.clone())
        });
        all.collect()
    }

    #[test]
    fn each_kind_has_the_keys_that_it_needs_and_no_others() {
        let good = parse(
            &with_model("kind: embedding, price: {input: \"13\"}"),
            &|_| None,
        )
        .unwrap();
        let model = &good.catalog.models()[0];
        assert_eq!(
            (model.kind.as_str(), model.max_output_tokens),
            ("embedding", 0)
        );
        for (members, key, words) in [
            ("kind: embedding, price: {}", "price.input", "is required"),
            (
                "kind: embedding, price: {input: \"1\", output: \"1\"}",
                "price.output",
                "has no effect for `kind: embedding`",
            ),
            (
                "kind: embedding, price: {input: \"1\", mcp: \"1\"}",
                "price.mcp",
                "has no effect",
            ),
            (
                "kind: embedding, price: {input: \"1\"}, max_output_tokens: 5",
                "max_output_tokens",
                "has no effect",
            ),
            (
                "kind: embedding, price: {input: \"1\"}, fallback: [beta-5.2]",
                "fallback",
                "has no effect",
            ),
            (
                "kind: embedding, price: {input: \"1\"}, capabilities: {stop: false}",
                "capabilities",
                "has no effect",
            ),
            (
                "kind: embeddings, price: {input: \"1\"}",
                "kind",
                "embedding",
            ),
            (
                "price: {input: \"1\", output: \"1\"}",
                "max_output_tokens",
                "is required",
            ),
            (
                "kind: transcription, max_audio_seconds: 0, price: {second: \"1\"}",
                "max_audio_seconds",
                "1 to 86400, not 0",
            ),
            (
                "max_output_tokens: 9, price: {input: \"1\"}",
                "price.output",
                "is required",
            ),
        ] {
            let found = faults(&with_model(members));
            assert_eq!(found.len(), 1, "{members}: {found:?}");
            assert_eq!(found[0].0, format!("models[0].{key}"), "{members}");
            assert!(found[0].1.contains(words), "{members}: {found:?}");
        }
        let of_messages = with_model("kind: embedding, price: {input: \"1\"}").replacen(
            "vendor: beta",
            "vendor: alpha",
            1,
        );
        assert_eq!(faults(&of_messages)[0].0, "models[0].kind");
        let chat = "    fallback: [e]\n    upstream_model: gpt-5.2\n";
        let text = with_model("kind: embedding, price: {input: \"1\"}").replacen(
            "    upstream_model: gpt-5.2\n",
            chat,
            1,
        );
        let fault = &parse(&text, &|_| None).unwrap_err()[0];
        assert!(
            fault.key.ends_with("fallback[0]") && fault.message.contains("not `kind: chat`"),
            "{fault:?}"
        );
    }

    #[test]
    fn the_advice_about_a_price_is_that_of_the_kind() {
        for (members, words) in [
            (
                "kind: embedding",
                "or {input: \"13\"} for an embedding model",
            ),
            ("kind: embedding, price: {}", "the price `input` only"),
            (
                "kind: embedding, price: {input: \"1\", output: \"1\"}",
                "the price `input` only",
            ),
            ("kind: rerank, price: {}", "`input` or `search_unit`"),
            (
                "kind: rerank, price: {input: \"1\", mcp: \"1\"}",
                "`input` or `search_unit`",
            ),
            (
                "max_output_tokens: 9, price: {input: \"1\"}",
                "has a `kind`: embedding",
            ),
            (
                "max_output_tokens: 9, price: {input: \"1\", output: \"1\", search_unit: \"1\"}",
                "has a `kind`: embedding",
            ),
        ] {
            let found = faults(&with_model(members));
            assert_eq!(found.len(), 1, "{members}: {found:?}");
            assert!(found[0].1.contains(words), "{members}: {found:?}");
        }
        let found = faults(&with_model(
            "kind: embedding, max_output_tokens: 9, price: {input: \"1\"}",
        ));
        assert!(found[0].1.ends_with("remove it"), "{found:?}");
    }

    #[test]
    fn the_list_of_price_keys_is_that_of_the_schema() {
        let schema = schemars::schema_for!(Price);
        let mut keys: Vec<_> = schema
            .get("properties")
            .unwrap()
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect();
        let mut listed = Price::KEYS.map(str::to_owned).to_vec();
        keys.sort();
        listed.sort();
        assert_eq!(keys, listed);
    }
}
