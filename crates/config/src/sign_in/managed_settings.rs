//! Reads the settings that programs take over after they signed in, and computes their checksum as
//! Claude Code does.
//!
//! Must not know what a setting means.

use crate::source::{FileChecks, SourceFile};
use crate::validator::ConfigValidator;
use base::regular_file::open_regular;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

/// Maximum size of the file in bytes. Each program reads it once an hour.
const MAX_BYTES: u64 = 262_144;

const KEY: &str = "sign_in.managed_settings";

/// The settings of a file, as they are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagedSettings {
    /// `{"uuid": …, "checksum": …, "settings": {…}}`.
    pub document: Arc<str>,
    /// `sha256:` and the hash of the settings, with sorted keys and without spaces.
    pub checksum: String,
}

impl ManagedSettings {
    fn parse(text: &str) -> Result<Self, String> {
        let settings: Value = serde_json::from_str(text)
            .map_err(|error| format!("is not JSON: {error}; write the settings as one object"))?;
        if !settings.is_object() {
            return Err("must be one JSON object with the settings".to_owned());
        }
        let hash = digest(&SHA256, sorted(&settings).as_bytes());
        let hex = hash.as_ref().iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        let checksum = format!("sha256:{hex}");
        let groups = [0..8, 8..12, 12..16, 16..20, 20..32];
        let uuid = groups.map(|range| hex.get(range).unwrap_or_default());
        let document =
            json!({"uuid": uuid.join("-"), "checksum": checksum, "settings": settings}).to_string();
        Ok(Self {
            document: document.into(),
            checksum,
        })
    }
}

/// Writes a value with the keys of each object sorted, whatever order the file has.
fn sorted(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| name.encode_utf16().collect::<Vec<_>>());
            let members = members.into_iter();
            let members = members.map(|(name, value)| format!("{}:{}", json!(name), sorted(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(sorted).collect();
            format!("[{}]", items.join(","))
        }
        other => other.to_string(),
    }
}

impl ConfigValidator {
    pub(super) fn managed_settings(
        &mut self,
        file: &str,
        has_programs: bool,
    ) -> Option<ManagedSettings> {
        if !has_programs {
            self.add_fault(
                KEY,
                "needs `sign_in.device: true`: programs get it after `/login`",
            );
        }
        // Commands serve no program, so they do not read the file.
        if !matches!(self.file_checks, FileChecks::Edge | FileChecks::Sidecar) {
            return None;
        }
        let path = Path::new(file);
        self.sources.push(SourceFile::from_path(path));
        match read(path).and_then(|text| ManagedSettings::parse(&text)) {
            Ok(settings) => Some(settings),
            Err(fault) => {
                self.add_fault(KEY, format!("the file {file} {fault}"));
                None
            }
        }
    }
}

fn read(file: &Path) -> Result<String, String> {
    let cannot_read = |error: std::io::Error| format!("cannot be read: {error}");
    let mut text = String::new();
    open_regular(file)
        .map_err(cannot_read)?
        .take(MAX_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(cannot_read)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("is larger than {MAX_BYTES} bytes"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_of_the_sorted_settings_without_spaces() {
        let file = r#"{ "permissions": {"deny": ["Bash", 1], "allow": []}, "env": {} }"#;
        let settings = ManagedSettings::parse(file).unwrap();
        // sha256sum of {"env":{},"permissions":{"allow":[],"deny":["Bash",1]}}
        let hash = "216a55326c39a0fc00fc5f761d3acbd542c5d9a8ee6c6d5b940e460c0d320621";
        assert_eq!(settings.checksum, format!("sha256:{hash}"));
        let document: Value = serde_json::from_str(&settings.document).unwrap();
        assert_eq!(document["settings"]["permissions"]["deny"][1], 1);
        assert_eq!(document["checksum"], settings.checksum);
        assert_eq!(document["uuid"].as_str().unwrap().len(), 36);
    }

    #[test]
    fn a_file_that_is_no_object_or_too_large_or_absent_is_a_fault_at_the_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("settings.json");
        let shown = file.display();
        let on = format!("sign_in: {{device: true, managed_settings: {shown}}}");
        let off = format!("sign_in: {{managed_settings: {shown}}}");
        let large = format!("{{\"a\": \"{}\"}}", "x".repeat(262_144));
        for (section, text, says) in [
            (&on, Some("[]"), "one JSON object"),
            (&on, Some("{"), "is not JSON"),
            (&on, Some(large.as_str()), "larger than 262144 bytes"),
            (&on, None, "cannot be read"),
            (&off, Some("{}"), "needs `sign_in.device: true`"),
        ] {
            let _ = std::fs::remove_file(&file);
            if let Some(text) = text {
                std::fs::write(&file, text).unwrap();
            }
            let found = load(folder.path(), section).unwrap_err();
            assert!(
                found.contains(KEY) && found.contains(says),
                "{says}: {found}"
            );
        }
        std::fs::write(&file, "{}").unwrap();
        let settings = load(folder.path(), &on).unwrap();
        assert!(settings.sign_in.managed_settings.is_some());
        assert_eq!(settings.sources.len(), 2, "it is watched too");
    }

    fn load(folder: &Path, section: &str) -> Result<crate::Settings, String> {
        let base = include_str!("../../../../conf/local.yaml");
        let base = base.replace("data_dir:", &format!("data_dir: {} #", folder.display()));
        let file = folder.join("gateway.yaml");
        std::fs::write(&file, format!("{base}{section}\n")).unwrap();
        crate::load(&file, FileChecks::Sidecar).map_err(|error| format!("{error:#}"))
    }
}
