//! Lists the parts of the gateway that exist only where the config has them, with what shows them:
//! their paths in the pages and in the admin API, and their actions in the audit log.
//!
//! A part that is off answers as if it had never been built, whatever the method. This file must
//! not depend on what serves a path.

use config::Settings;

struct OptionalPart {
    is_on: fn(&Settings) -> bool,
    /// Paths that are the part's, with all below them.
    paths: &'static [&'static str],
    /// Starts of the names of the part's actions in the audit log.
    acts: &'static [&'static str],
}

const PARTS: [OptionalPart; 5] = [
    OptionalPart {
        is_on: |settings| settings.payments.is_some(),
        paths: &[
            "/webhooks/stripe",
            "/dashboard/operator/payments",
            "/admin/v1/payments",
        ],
        acts: &["payment.", "auto-topup."],
    },
    OptionalPart {
        is_on: |settings| settings.codes,
        paths: &["/dashboard/operator/codes", "/admin/v1/codes"],
        acts: &["code."],
    },
    OptionalPart {
        is_on: |settings| settings.payments.is_some() || settings.codes,
        paths: &["/dashboard/credits"],
        acts: &[],
    },
    OptionalPart {
        is_on: |settings| settings.organisations,
        paths: &[
            "/dashboard/organisation",
            "/dashboard/switch",
            "/dashboard/join",
            "/admin/v1/organisations",
        ],
        acts: &["organisation."],
    },
    OptionalPart {
        is_on: |settings| settings.sign_in.device,
        paths: &[
            "/.well-known/oauth-authorization-server",
            "/oauth",
            "/device",
            "/managed/settings",
        ],
        acts: &["login."],
    },
];

/// Returns whether a path belongs to a part that is off.
pub fn hides_path(settings: &Settings, path: &str) -> bool {
    let is_of = |part: &&OptionalPart| part.paths.iter().any(|parent| is_below(path, parent));
    PARTS
        .iter()
        .filter(is_of)
        .any(|part| !(part.is_on)(settings))
}

/// Returns whether an action of the audit log belongs to a part that is off.
pub fn hides_act(settings: &Settings, act: &str) -> bool {
    let is_of = |part: &&OptionalPart| part.acts.iter().any(|start| act.starts_with(start));
    PARTS
        .iter()
        .filter(is_of)
        .any(|part| !(part.is_on)(settings))
}

/// Returns whether a path is `parent` or below it.
pub fn is_below(path: &str, parent: &str) -> bool {
    let rest = path.strip_prefix(parent);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(section: &str) -> Settings {
        let text = format!("{}{section}\n", include_str!("../conf/local.yaml"));
        config::parse(&text, &|_| None).unwrap()
    }

    #[test]
    fn a_part_that_is_off_hides_its_paths_and_its_actions() {
        let shop = "payments: {provider: stripe, secret_key: sk_test_abc, \
                    webhook_secret: whsec_abc, currency: usd, credit_price: \"0.01\", codes: false}";
        let cases = [
            ("", true, true, true, true),
            (shop, false, true, true, true),
            ("payments: {codes: true}", true, false, true, true),
            ("organisations: true", true, true, false, true),
            ("sign_in: {device: true}", true, true, true, false),
        ];
        for (section, payments, codes, organisations, device) in cases {
            let settings = settings(section);
            for (path, act, is_hidden) in [
                (
                    "/dashboard/operator/payments/pay_1",
                    "payment.refund",
                    payments,
                ),
                ("/webhooks/stripe", "auto-topup.set", payments),
                ("/admin/v1/codes", "code.create", codes),
                ("/dashboard/join/x", "organisation.join", organisations),
                (
                    "/dashboard/credits/redeem",
                    "account.topup",
                    payments && codes,
                ),
                ("/oauth/token", "login.approve", device),
                ("/dashboard/creditsx", "key.create", false),
                ("/dashboard", "account.grant", false),
            ] {
                assert_eq!(hides_path(&settings, path), is_hidden, "{section} {path}");
                let is_act_hidden = is_hidden && act != "account.topup";
                assert_eq!(hides_act(&settings, act), is_act_hidden, "{section} {act}");
            }
        }
    }
}
