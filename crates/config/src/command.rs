//! Reads the part of the config file that the commands for accounts, keys, the ledger and the audit
//! log need: `data_dir` and `store`, and, for some commands, the sign-up grant, the price lists and
//! `base_url`.
//!
//! An operator's shell lacks the vendors' keys: the documented installations give them only to the
//! service. Therefore the commands do not read the keys, and faults elsewhere in the file do not
//! stop a command. The commands `run`, `edge`, `sidecar` and `check` must not use this file,
//! because they need the whole config file.

use super::environment::environment;
use super::fault::{ConfigError, ConfigFault};
use super::ledger::{LedgerSettings, PostgresLedger};
use super::sign_in::SignInSettings;
use super::signup::SignupSettings;
use super::source::{PIPE_READ_LIMIT, cannot_read, read_config};
use super::store::StoreSettings;
use super::validator::{ConfigValidator, PLACEHOLDER};
use super::{raw, reader, yaml};
use crate::catalog::Catalog;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Sections that every command needs.
const REQUIRED_SECTIONS: [&str; 2] = ["data_dir", "store"];

#[derive(Debug)]
pub struct CommandSettings {
    pub data_dir: PathBuf,
    pub store: StoreSettings,
    /// The settings for sealing and archiving entries.
    pub ledger: LedgerSettings,
    signup: Option<SignupSettings>,
    sign_in: Option<SignInSettings>,
    takes_codes: bool,
    catalog: Catalog,
    base_url: String,
    file: PathBuf,
    /// Faults in the rest of the file.
    faults: Vec<ConfigFault>,
}

impl CommandSettings {
    /// Returns the settings of PostgreSQL, if the ledger is stored there.
    ///
    /// # Errors
    /// Returns the faults of the section `ledger`, if it has any.
    pub fn postgres(&self) -> Result<Option<&PostgresLedger>, ConfigError> {
        self.check_sections(&["ledger"])?;
        Ok(self.ledger.postgres.as_ref())
    }

    /// Returns the section `signup`.
    ///
    /// # Errors
    /// Returns the faults of the section `signup`, if it has any.
    pub fn signup(&self) -> Result<&SignupSettings, ConfigError> {
        self.check_sections(&["signup"])?;
        self.signup
            .as_ref()
            .ok_or_else(|| self.faults_of(&["signup"]))
    }

    /// Returns the providers that people sign in with. Their secrets are placeholders.
    ///
    /// # Errors
    /// Returns the faults of the section `sign_in`, if it has any.
    pub fn sign_in(&self) -> Result<&SignInSettings, ConfigError> {
        self.sign_in
            .as_ref()
            .ok_or_else(|| self.faults_of(&["sign_in"]))
    }

    /// Returns whether account holders can redeem codes.
    ///
    /// # Errors
    /// Returns the faults of the section `payments`, if it has any.
    pub fn takes_codes(&self) -> Result<bool, ConfigError> {
        self.check_sections(&["payments"])?;
        Ok(self.takes_codes)
    }

    /// Returns the models and prices. The vendors' keys are placeholders.
    ///
    /// # Errors
    /// Returns the faults of the sections `models` and `vendors`, if they have any.
    pub fn catalog(&self) -> Result<&Catalog, ConfigError> {
        self.check_sections(&["models", "vendors"])?;
        Ok(&self.catalog)
    }

    /// Returns the address that clients use, without a slash at its end.
    ///
    /// # Errors
    /// Returns the faults of `base_url`, if it has any.
    pub fn base_url(&self) -> Result<&str, ConfigError> {
        self.check_sections(&["base_url"])?;
        Ok(&self.base_url)
    }

    fn check_sections(&self, sections: &[&str]) -> Result<(), ConfigError> {
        let faults = self.faults_of(sections);
        if faults.faults.is_empty() {
            Ok(())
        } else {
            Err(faults)
        }
    }

    fn faults_of(&self, sections: &[&str]) -> ConfigError {
        let faults = self
            .faults
            .iter()
            .filter(|fault| is_in(&fault.key, sections))
            .cloned()
            .collect();
        ConfigError {
            file: self.file.clone(),
            faults,
            sources: Vec::new(),
        }
    }
}

/// Returns whether the key is in one of these sections, or the fault concerns the file as a whole.
fn is_in(key: &str, sections: &[&str]) -> bool {
    let section = key.split(['.', '[']).next().unwrap_or_default();
    section.is_empty() || sections.contains(&section)
}

/// Reads the part of the file that commands need.
///
/// # Errors
/// Returns an error if the file cannot be read, or if `data_dir` or `store` has faults.
pub fn load_for_command(file: &Path) -> Result<CommandSettings, ConfigError> {
    let failed = |faults| ConfigError {
        file: file.to_owned(),
        faults,
        sources: Vec::new(),
    };
    let text = read_config(file, PIPE_READ_LIMIT).map_err(|error| {
        failed(vec![ConfigFault {
            line: 0,
            key: String::new(),
            message: cannot_read(file, &error),
        }])
    })?;
    parse(&text, &environment, file).map_err(failed)
}

fn parse(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    file: &Path,
) -> Result<CommandSettings, Vec<ConfigFault>> {
    let lenient = |path: &str, name: &str| {
        let placeholder = || {
            (!is_in(path, &["data_dir", "store", "ledger", "signup", "base_url"]))
                .then(|| PLACEHOLDER.to_owned())
        };
        env(name).or_else(placeholder)
    };
    let (tree, faults) = reader::read_tree(text, &lenient)?;
    let data_dir = section::<String>(&tree, "data_dir").filter(|dir| !dir.is_empty());
    let store = section::<raw::Store>(&tree, "store");
    let signup = section::<raw::Signup>(&tree, "signup");
    let sign_in = section::<raw::SignIn>(&tree, "sign_in");
    let payments = section::<raw::PaymentOptions>(&tree, "payments");
    let upkeep = section::<raw::LedgerUpkeep>(&tree, "ledger").unwrap_or_default();
    let (vendors, models) = (section(&tree, "vendors"), section(&tree, "models"));
    let base_url = section::<String>(&tree, "base_url").unwrap_or_default();
    let has_store = tree.section("store").is_some();
    let mut validator = ConfigValidator::new(tree);
    validator.faults = faults;
    validator.withholds_vendor_keys = true;
    if data_dir.is_none() && !validator.faults.iter().any(|fault| fault.key == "data_dir") {
        validator.add_fault("data_dir", "must name a directory");
    }
    if let Some(dir) = &data_dir {
        validator.check_data_dir_name(dir);
    }
    let absent_store = (!has_store).then(raw::Store::default);
    let store = store.or(absent_store);
    let store = store.and_then(|store| validator.store(store));
    let signup = validator.signup(&signup.unwrap_or_default());
    let sign_in = validator.sign_in(&sign_in.unwrap_or_default());
    let ledger = validator.ledger(&upkeep, signup.as_ref());
    let base_url = if validator.faults.iter().any(|fault| fault.key == "base_url") {
        base_url
    } else {
        validator.network().public_url(&base_url)
    };
    let catalog = match (vendors, models) {
        (Some(vendors), Some(models)) => check_catalog(&mut validator, vendors, models),
        _ => Catalog::default(),
    };
    let (needed, faults): (Vec<_>, _) = validator
        .faults
        .into_iter()
        .partition(|fault| is_in(&fault.key, &REQUIRED_SECTIONS));
    match (data_dir, store) {
        (Some(data_dir), Some(store)) if needed.is_empty() => Ok(CommandSettings {
            data_dir: data_dir.into(),
            store,
            ledger,
            signup,
            sign_in,
            takes_codes: payments.is_some_and(|it| it.codes),
            catalog,
            base_url,
            file: file.to_owned(),
            faults,
        }),
        _ if needed.is_empty() => {
            let message = "cannot be read: run `model-gateway check` to see its faults".to_owned();
            Err(vec![ConfigFault {
                line: 0,
                key: "store".to_owned(),
                message,
            }])
        }
        _ => Err(needed),
    }
}

fn check_catalog(
    validator: &mut ConfigValidator,
    vendors: BTreeMap<String, raw::Vendor>,
    models: Vec<raw::Model>,
) -> Catalog {
    let vendors = validator.vendors().vendors(vendors);
    validator.models().catalog(models, &vendors)
}

/// Deserializes a section. Returns `None` if it is missing, or if it has faults of form, which are
/// already in the list of faults.
fn section<T: DeserializeOwned>(tree: &yaml::YamlNode, name: &str) -> Option<T> {
    serde_json::from_value(tree.section(name)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIPPED: [&str; 4] = [
        include_str!("../../../conf/gateway.yaml"),
        include_str!("../../../conf/local.yaml"),
        include_str!("../../../deploy/one-machine.yaml"),
        include_str!("../../../deploy/gateway.yaml"),
    ];

    fn parsed(
        text: &str,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<CommandSettings, Vec<ConfigFault>> {
        parse(text, env, Path::new("gateway.yaml"))
    }

    #[test]
    fn shipped_files_serve_commands_without_the_keys_of_vendors() {
        let redis =
            |name: &str| (name == "GATEWAY_REDIS").then(|| "redis://127.0.0.1:6379".to_owned());
        for text in SHIPPED {
            let settings = parsed(text, &redis).unwrap();
            assert!(!settings.catalog().unwrap().models().is_empty());
            assert!(settings.signup().is_ok());
        }
    }

    #[test]
    fn a_key_without_a_default_and_an_address_in_the_environment_do_no_harm() {
        let text = SHIPPED[1].replace("\"sim-alpha-key\"", "\"${ALPHA_KEY}\"");
        let text = text
            .replace("\"sim-beta-key\"", "\"file:/nowhere/beta.key\"")
            .replace("http://127.0.0.1:9100", "${URL}");
        assert!(
            super::super::parse(&text, &|_| None).is_err(),
            "all of the file has faults"
        );
        let settings = parsed(&text, &|_| None).unwrap();
        assert_eq!(settings.catalog().unwrap().models().len(), 5);
    }

    #[test]
    fn the_address_for_clients_has_no_slash_at_its_end_and_stops_only_those_who_ask() {
        let with = |url: &str| {
            let shipped = "base_url: \"http://127.0.0.1:8080\"";
            assert!(SHIPPED[1].contains(shipped));
            parsed(&SHIPPED[1].replace(shipped, url), &|_| None).unwrap()
        };
        let plain = with("base_url: \"https://gw.example/\"");
        assert_eq!(plain.base_url().unwrap(), "https://gw.example");
        for fault in ["", "base_url: \"gw.example\"", "base_url: \"${UNSET}\""] {
            let settings = with(fault);
            let faults = settings.base_url().unwrap_err().faults;
            assert_eq!(faults.len(), 1, "{fault}: {faults:?}");
            assert!(settings.catalog().is_ok());
        }
    }

    #[test]
    fn a_fault_stops_the_commands_that_need_its_section_and_no_others() {
        let keys = |faults: Vec<ConfigFault>| {
            faults
                .into_iter()
                .map(|fault| fault.key)
                .collect::<Vec<_>>()
        };
        let with = |from: &str, to: &str| {
            assert!(SHIPPED[1].contains(from));
            parsed(&SHIPPED[1].replace(from, to), &|_| None)
        };
        let settings = with("trial_days: 7", "trial_days: many").unwrap();
        assert_eq!(
            keys(settings.signup().unwrap_err().faults),
            ["signup.trial_days"]
        );
        assert!(settings.catalog().is_ok());
        let settings = with("max_output_tokens: 64000", "max_output_tokens: 0").unwrap();
        assert!(settings.signup().is_ok() && settings.catalog().is_err());
        let settings = with(
            "base_url: \"http://127.0.0.1:8080\"",
            "base_url: \"${HERE}\"\ncolour: blue",
        )
        .unwrap();
        assert!(settings.signup().is_ok() && settings.catalog().is_ok());
        for (section, takes_codes) in [
            ("", false),
            ("payments: {codes: true}\n", true),
            (
                "payments: {provider: stripe, secret_key: \"${HERE}\"}\n",
                true,
            ),
            ("payments: {codes: false}\n", false),
        ] {
            let settings = with("signup:", &format!("{section}signup:")).unwrap();
            assert_eq!(settings.takes_codes().unwrap(), takes_codes, "{section}");
        }
        let settings = with("signup:", "payments: {codes: maybe}\nsignup:").unwrap();
        assert!(settings.takes_codes().is_err());
        assert_eq!(
            keys(with("data_dir: \"data\"", "data_dir: \"${HERE}\"").unwrap_err()),
            ["data_dir"]
        );
        assert_eq!(
            keys(with("data_dir: \"data\"", "data_dir: \"\"").unwrap_err()),
            ["data_dir"]
        );
        assert_eq!(
            keys(with("data_dir: \"data\"\n", "").unwrap_err()),
            ["data_dir"]
        );
        assert_eq!(
            keys(with("{kind: embedded}", "{kind: paper}").unwrap_err()),
            ["store.kind"]
        );
        assert!(
            with("listen:", "listen: [").is_err(),
            "what is not YAML has no sections"
        );
    }
}
