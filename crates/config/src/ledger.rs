//! Reads the section `ledger`, with the settings for sealing entries and archiving segments.
//!
//! This file must not open a ledger.

use super::raw;
use super::signup::SignupSettings;
use super::source::FileChecks;
use super::store::StoreSettings;
use super::validator::ConfigValidator;
use crate::catalog::Secret;
use base::postgres_url;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const DAY_MS: i64 = 86_400_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerSettings {
    /// PostgreSQL, if the ledger is stored there. `None` if the ledger is in the data directory.
    pub postgres: Option<PostgresLedger>,
    pub segment_entries: u64,
    /// Number of whole days after which the entries of a day are sealed.
    pub seal_after_days: u32,
    /// Archiving of segments. `None` keeps all segments in the data directory.
    pub retention: Option<RetentionSettings>,
}

impl LedgerSettings {
    pub fn archive(&self) -> Option<&Path> {
        let retention = self.retention.as_ref();
        retention.map(|retention| retention.archive.as_path())
    }
}

/// The address of PostgreSQL, and the requirements on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresLedger {
    pub url: Secret,
    pub require_standby: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionSettings {
    pub keep_days: u32,
    pub archive: PathBuf,
}

impl ConfigValidator {
    /// Validates the section. `signup` has the length of a trial, if that section is valid.
    pub(super) fn ledger(
        &mut self,
        section: &raw::LedgerUpkeep,
        signup: Option<&SignupSettings>,
    ) -> LedgerSettings {
        let raw::SealRules {
            entries,
            after_days,
        } = section.seal;
        self.check_range("ledger.seal", ("SealRules", "entries"), entries);
        self.check_range(
            "ledger.seal",
            ("SealRules", "after_days"),
            after_days.into(),
        );
        let refund_days = section.refund_days;
        self.check_range(
            "ledger",
            ("LedgerUpkeep", "refund_days"),
            refund_days.into(),
        );
        let retention = section.retention.as_ref().map(|rules| {
            let trial_ms = signup.map_or(0, |signup| signup.trial_ms);
            self.check_retention(rules, section, trial_ms);
            RetentionSettings {
                keep_days: rules.keep_days,
                archive: PathBuf::from(&rules.archive),
            }
        });
        LedgerSettings {
            postgres: self.ledger_home(section),
            segment_entries: entries,
            seal_after_days: after_days,
            retention,
        }
    }

    fn ledger_home(&mut self, section: &raw::LedgerUpkeep) -> Option<PostgresLedger> {
        // The variable in the value is not set.
        let url = section.url.as_ref().filter(|url| !url.is_empty());
        match (section.kind, url) {
            (raw::LedgerKind::Sqlite, None) => None,
            (raw::LedgerKind::Sqlite, Some(_)) => {
                let says = "kind: sqlite has no address: remove it, or set kind: postgres";
                self.add_fault("ledger.url", says);
                None
            }
            (raw::LedgerKind::Postgres, None) => {
                self.add_fault("ledger.url", "is required for kind: postgres");
                None
            }
            (raw::LedgerKind::Postgres, Some(url)) => {
                let url = self.secret("ledger.url", url)?;
                if let Err(fault) = postgres_url::parse(url.reveal()) {
                    self.add_fault("ledger.url", fault);
                }
                Some(PostgresLedger {
                    url,
                    require_standby: section.require_standby,
                })
            }
        }
    }

    /// Checks that the rest of the config allows a ledger in PostgreSQL.
    pub(super) fn check_ledger_home(
        &mut self,
        ledger: &LedgerSettings,
        store: Option<&StoreSettings>,
        sidecar: Option<SocketAddr>,
    ) {
        if ledger.postgres.is_none() {
            return;
        }
        if store.is_some_and(|store| store.address().is_none()) {
            let says = "postgres needs store.kind: redis, `model-gateway edge` and `model-gateway sidecar`; `model-gateway run` keeps its ledger in data_dir";
            self.add_fault("ledger.kind", says);
        }
        if let Some(address) = sidecar.filter(|address| address.ip().is_unspecified()) {
            let says = format!(
                "is {address}: with ledger.kind: postgres it must be the address at which the edges and the other sidecars reach the sidecar"
            );
            self.add_fault("listen.sidecar", says);
        }
    }

    fn check_retention(
        &mut self,
        rules: &raw::RetentionRules,
        section: &raw::LedgerUpkeep,
        trial_ms: i64,
    ) {
        let keep_days = rules.keep_days;
        let key = "ledger.retention";
        self.check_range(key, ("RetentionRules", "keep_days"), keep_days.into());
        let trial_days = (trial_ms + DAY_MS - 1) / DAY_MS;
        let windows = [
            (i64::from(section.refund_days), "ledger.refund_days"),
            (trial_days, "signup.trial_days"),
            (i64::from(section.seal.after_days), "ledger.seal.after_days"),
        ];
        for (days, name) in windows {
            if i64::from(keep_days) < days {
                self.add_fault(
                    format!("{key}.keep_days"),
                    format!("is {keep_days}, but {name} is {days}: keep segments at least as long"),
                );
            }
        }
        let archive = PathBuf::from(&rules.archive);
        let key = format!("{key}.archive");
        if !archive.is_absolute() {
            self.add_fault(key, "must be a path that begins with /");
        } else if matches!(self.file_checks, FileChecks::Edge | FileChecks::Sidecar)
            && !archive.is_dir()
        {
            // A missing folder does not keep the gateway from serving.
            let says = "is no folder at the moment, so segments stay in data_dir: create it, or \
                        mount its disk";
            self.add_warning(key, says);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::parse;

    fn faults(ledger: &str) -> Vec<String> {
        let shipped = include_str!("../../../deploy/one-machine.yaml");
        let text = format!("{shipped}\nledger: {ledger}\n");
        let env = |name: &str| name.ends_with("_API_KEY").then(|| "sk-1".to_owned());
        match parse(&text, &env) {
            Ok(_) => Vec::new(),
            Err(faults) => faults
                .into_iter()
                .map(|fault| format!("{}: {}", fault.key, fault.message))
                .collect(),
        }
    }

    #[test]
    fn a_retention_shorter_than_a_window_is_refused_with_the_window() {
        let archive = "archive: /mnt/archive";
        assert_eq!(
            faults(&format!("{{retention: {{keep_days: 90, {archive}}}}}")),
            [""; 0]
        );
        let short = faults(&format!("{{retention: {{keep_days: 29, {archive}}}}}"));
        assert_eq!(
            short,
            [
                "ledger.retention.keep_days: is 29, but ledger.refund_days is 30: keep segments at least as long"
            ]
        );
        let trial = faults(&format!(
            "{{refund_days: 0, retention: {{keep_days: 6, {archive}}}}}"
        ));
        assert_eq!(trial.len(), 1, "{trial:?}");
        assert!(trial[0].contains("signup.trial_days is 7"), "{trial:?}");
        assert_eq!(
            faults(&format!(
                "{{refund_days: 7, retention: {{keep_days: 7, {archive}}}}}"
            )),
            [""; 0],
            "as long as the windows"
        );
    }

    #[test]
    fn numbers_outside_their_ranges_and_relative_folders_are_refused() {
        for (ledger, key) in [
            ("{seal: {entries: 999}}", "ledger.seal.entries"),
            ("{seal: {entries: 4000001}}", "ledger.seal.entries"),
            ("{seal: {after_days: 0}}", "ledger.seal.after_days"),
            ("{refund_days: 3651}", "ledger.refund_days"),
            (
                "{retention: {keep_days: 90, archive: old}}",
                "ledger.retention.archive",
            ),
            ("{retention: {keep_days: 90}}", "ledger.retention.archive"),
            ("{keep: 3}", "ledger.keep"),
            ("{kind: postgres}", "ledger.url"),
            ("{url: \"postgres://a@b/c\"}", "ledger.url"),
            ("{kind: postgres, url: \"mysql://a@b/c\"}", "ledger.url"),
            ("{kind: postgres, url: \"postgres://a@b/c\"}", "ledger.kind"),
        ] {
            let faults = faults(ledger);
            assert!(
                faults.iter().any(|fault| fault.starts_with(key)),
                "{ledger}: {faults:?}"
            );
        }
    }
}
