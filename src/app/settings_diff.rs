//! Describes the changes of a reload for the log: names, and the values of limits. The description
//! never contains a key, a password, or an address with a password.

use config::Settings;
use config::catalog::{CatalogModel, CatalogVendor};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of names in one list of a line.
const MAX_NAMES: usize = 20;

/// Describes the differences between two settings. The text is empty if a reload applies none.
pub(super) fn describe(old: &Settings, new: &Settings) -> Vec<String> {
    let mut changes = Vec::new();
    let models = |settings: &Settings| -> BTreeMap<String, Arc<CatalogModel>> {
        let models = settings.catalog.models().iter();
        models
            .map(|model| (model.id.clone(), Arc::clone(model)))
            .collect()
    };
    let (old_models, new_models) = (models(old), models(new));
    add_list(
        &mut changes,
        "models added",
        only_in(&new_models, &old_models),
    );
    add_list(
        &mut changes,
        "models removed",
        only_in(&old_models, &new_models),
    );
    let both = |is_changed: fn(&CatalogModel, &CatalogModel) -> bool| {
        changed(&old_models, &new_models, is_changed)
    };
    add_list(
        &mut changes,
        "prices changed",
        both(|old, new| old.price != new.price),
    );
    add_list(&mut changes, "models changed", both(is_model_changed));
    let vendors =
        |models: &BTreeMap<String, Arc<CatalogModel>>| -> BTreeMap<String, Arc<CatalogVendor>> {
            let vendors = models.values().map(|model| &model.vendor);
            vendors
                .map(|vendor| (vendor.name.clone(), Arc::clone(vendor)))
                .collect()
        };
    let (old_vendors, new_vendors) = (vendors(&old_models), vendors(&new_models));
    add_list(
        &mut changes,
        "vendors added",
        only_in(&new_vendors, &old_vendors),
    );
    add_list(
        &mut changes,
        "vendors removed",
        only_in(&old_vendors, &new_vendors),
    );
    let both = |is_changed: fn(&CatalogVendor, &CatalogVendor) -> bool| {
        changed(&old_vendors, &new_vendors, is_changed)
    };
    add_list(
        &mut changes,
        "keys of vendors changed",
        both(|old, new| old.api_key.reveal() != new.api_key.reveal()),
    );
    add_list(&mut changes, "vendors changed", both(is_vendor_changed));
    let (old_limits, new_limits) = (old.limits.bounds(), new.limits.bounds());
    let limits = old_limits.iter().zip(&new_limits);
    let limits = limits.filter(|((_, old, ..), (_, new, ..))| old != new);
    let limits = limits.map(|((name, old, ..), (_, new, ..))| format!("{name} {old} → {new}"));
    add_list(&mut changes, "limits changed", limits.collect());
    add_list(&mut changes, "settings changed", changed_sections(old, new));
    changes
}

/// Returns the other keys of the config file whose value differs.
fn changed_sections(old: &Settings, new: &Settings) -> Vec<String> {
    // Every field is named, so that a new one does not compile before it is compared.
    let Settings {
        base_url,
        trust_proxy,
        admin_names,
        signup,
        sign_in,
        organisations,
        mail,
        payments,
        codes,
        notifications,
        brand,
        support,
        ledger,
        rate_limits,
        access_log,
        cors,
        auto_reload,
        // Described above. The headers are those of vendors and of a limit.
        catalog: _,
        limits: _,
        version_headers: _,
        // A reload keeps their values.
        edge: _,
        sidecar: _,
        admin: _,
        data_dir: _,
        store: _,
        allow_volatile: _,
        store_reply_timeout: _,
        traces: _,
        // The certificate has a line of its own.
        tls: _,
        // Logged at each reload.
        skipped_vendors: _,
        warnings: _,
        sources: _,
    } = old;
    let sections = [
        ("base_url", *base_url != new.base_url),
        ("listen.trust_proxy", *trust_proxy != new.trust_proxy),
        ("listen.admin_names", *admin_names != new.admin_names),
        ("signup", *signup != new.signup),
        ("sign_in", *sign_in != new.sign_in),
        ("organisations", *organisations != new.organisations),
        ("mail", *mail != new.mail),
        ("payments", (payments, codes) != (&new.payments, &new.codes)),
        ("notifications", *notifications != new.notifications),
        ("brand", *brand != new.brand),
        ("support", *support != new.support),
        ("ledger", *ledger != new.ledger),
        ("rate_limits", *rate_limits != new.rate_limits),
        ("access_log", *access_log != new.access_log),
        (
            "limits.version_header_aliases",
            old.limits.version_header_aliases != new.limits.version_header_aliases,
        ),
        ("cors", *cors != new.cors),
        ("auto_reload", *auto_reload != new.auto_reload),
    ];
    let changed = sections.into_iter().filter(|(_, is_changed)| *is_changed);
    changed.map(|(name, _)| name.to_owned()).collect()
}

fn is_model_changed(old: &CatalogModel, new: &CatalogModel) -> bool {
    let facts = |model: &CatalogModel| {
        let by_responses = model.by_responses.is_some();
        let limits = (model.kind, model.context_tokens, model.max_output_tokens);
        let names = (model.upstream_model.clone(), model.vendor.name.clone());
        let lists = (model.aliases.clone(), model.fallback.clone());
        (by_responses, limits, names, lists)
    };
    facts(old) != facts(new) || old.accepts != new.accepts || old.repairs != new.repairs
}

fn is_vendor_changed(old: &CatalogVendor, new: &CatalogVendor) -> bool {
    (old.protocol, old.sticky) != (new.protocol, new.sticky)
        || old.endpoints != new.endpoints
        || old.version_header != new.version_header
        || old.profile != new.profile
}

fn only_in<T>(these: &BTreeMap<String, T>, others: &BTreeMap<String, T>) -> Vec<String> {
    let names = these.keys().filter(|name| !others.contains_key(*name));
    names.cloned().collect()
}

fn changed<T>(
    old: &BTreeMap<String, Arc<T>>,
    new: &BTreeMap<String, Arc<T>>,
    is_changed: impl Fn(&T, &T) -> bool,
) -> Vec<String> {
    let both = old
        .iter()
        .filter_map(|(name, old)| Some((name, old, new.get(name)?)));
    both.filter(|(_, old, new)| is_changed(old, new))
        .map(|(name, ..)| name.clone())
        .collect()
}

fn add_list(changes: &mut Vec<String>, what: &str, mut names: Vec<String>) {
    if names.is_empty() {
        return;
    }
    let others = names.len().saturating_sub(MAX_NAMES);
    names.truncate(MAX_NAMES);
    let others = match others {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    changes.push(format!("{what}: {}{others}", names.join(", ")));
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = include_str!("../../conf/local.yaml");

    fn changes(from: &str, to: &str) -> Vec<String> {
        let parse = |text: &str| config::parse(text, &|_| None).unwrap();
        assert!(CONFIG.contains(from), "{from}");
        describe(&parse(CONFIG), &parse(&CONFIG.replacen(from, to, 1)))
    }

    #[test]
    fn a_reload_names_what_it_changed_and_no_secret() {
        for (from, to, expected) in [
            ("data_dir: \"data\"", "data_dir: \"data\"", &[][..]),
            (
                "id: beta-5.5",
                "id: beta-6",
                &["models added: beta-6", "models removed: beta-5.5"],
            ),
            (
                "output: \"3000\"",
                "output: \"3001\"",
                &["prices changed: beta-5.5"],
            ),
            (
                "upstream_model: gpt-5.5",
                "upstream_model: gpt-6",
                &["models changed: beta-5.5"],
            ),
            (
                "sim-beta-key",
                "sim-gamma-key",
                &["keys of vendors changed: beta"],
            ),
            (
                "127.0.0.1:9100",
                "127.0.0.1:9101",
                &["vendors changed: alpha"],
            ),
            (
                "store: {kind: embedded}",
                "limits: {attempts: 3}\nsupport: \"https://help.example\"",
                &[
                    "limits changed: attempts 2 → 3",
                    "settings changed: support",
                ],
            ),
            (
                "store: {kind: embedded}",
                "payments: {codes: true}",
                &["settings changed: payments"],
            ),
            (
                "store: {kind: embedded}",
                "sign_in: {password: true, providers: [{id: a, kind: oidc, issuer: \"https://id.example\", client_id: b, client_secret: c}]}\nbrand: {name: Shop}",
                &["settings changed: sign_in, brand"],
            ),
            (
                "api_key: \"sim-alpha-key\"",
                "api_key: \"\"",
                &[
                    "models removed: alpha-haiku-4-5-20251001, alpha-opus-4-7, alpha-sonnet-4-6",
                    "vendors removed: alpha",
                ],
            ),
        ] {
            assert_eq!(changes(from, to), expected, "{to}");
        }
    }
    #[test]
    fn a_long_list_ends_with_the_number_of_the_rest() {
        for (count, end) in [(MAX_NAMES, "m, m"), (MAX_NAMES + 1, "m, m and 1 more")] {
            let mut changes = Vec::new();
            add_list(&mut changes, "models added", vec!["m".to_owned(); count]);
            assert!(changes[0].ends_with(end), "{changes:?}");
            assert_eq!(changes[0].matches(", ").count(), MAX_NAMES - 1);
        }
    }
}
