//! The administrator of a world: a key for the admin API, so that a test that creates accounts or
//! reads the ledger starts no program for it.
//!
//! Only the command line can create an administrator. That is done once for each build of the
//! program; every world begins with a copy of the result: a data folder without any ledger entry.

use crate::client::{self, Answer, Connection, Request};
use crate::world::{binary, command_on};
use serde_json::Value;
use std::fs::DirBuilder;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub const EMAIL: &str = "administrator@example.test";

/// An administrator's key, and the admin listener that accepts it.
pub struct AdminApi<'a> {
    port: u16,
    key: &'a str,
}

impl<'a> AdminApi<'a> {
    pub fn new(port: u16, key: &'a str) -> Self {
        Self { port, key }
    }

    /// Sends a GET request to a path below `/admin/v1`. It must succeed.
    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        self.get_on(&mut Connection::open(self.port), path)
    }

    #[track_caller]
    fn get_on(&self, connection: &mut Connection, path: &str) -> Value {
        let request = Request::get(&format!("/admin/v1{path}")).bearer(self.key);
        document(path, &connection.ask(&request))
    }

    /// Sends a POST request to a path below `/admin/v1`. It must succeed.
    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Value {
        document(path, &self.ask(path, body))
    }

    /// Sends a POST request to a path below `/admin/v1`.
    #[track_caller]
    pub fn ask(&self, path: &str, body: &Value) -> Answer {
        let request = Request::post(&format!("/admin/v1{path}"), body.to_string());
        client::ask(self.port, &request.bearer(self.key))
    }

    /// All rows of a list that has pages. `member` is the name of the rows in the document.
    #[track_caller]
    pub fn all(&self, path: &str, member: &str, cursor: &str) -> Vec<Value> {
        let mut connection = Connection::open(self.port);
        let mut page = self.get_on(&mut connection, path);
        let mut rows = Vec::new();
        loop {
            rows.append(page[member].as_array_mut().unwrap());
            let next = match &page["next"] {
                Value::Null => return rows,
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            page = self.get_on(&mut connection, &format!("{path}?{cursor}={next}"));
        }
    }
}

/// The document of an answer that must be a success.
#[track_caller]
fn document(path: &str, answer: &Answer) -> Value {
    assert!(
        (200..300).contains(&answer.status),
        "{path}: {} {}",
        answer.status,
        answer.text()
    );
    answer.json()
}

/// Creates a data folder with an administrator. Returns the administrator's key.
pub fn create_data_dir(dir: &Path) -> String {
    let template = template();
    DirBuilder::new().mode(0o700).create(dir).unwrap();
    for file in std::fs::read_dir(template.join("data")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), dir.join(file.file_name())).unwrap();
    }
    std::fs::read_to_string(template.join("key")).unwrap()
}

/// The folder that worlds copy. The first test of a build of the program creates it.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let template = parent.join(format!("administrator-{:016x}", build_of_program()));
        if template.exists() {
            return template;
        }
        let new = tempfile::tempdir_in(parent).unwrap();
        let key = create_administrator(new.path());
        std::fs::write(new.path().join("key"), key).unwrap();
        // Another test process may have been faster: then its folder stays.
        if std::fs::rename(new.path(), &template).is_ok() {
            let _ = new.keep();
        }
        assert!(template.join("key").exists(), "no {}", template.display());
        template
    })
}

/// A hash of the program's path, size and time of change.
fn build_of_program() -> u64 {
    let program = std::fs::metadata(binary()).unwrap();
    let mut hasher = DefaultHasher::new();
    (binary(), program.len(), program.modified().unwrap()).hash(&mut hasher);
    hasher.finish()
}

fn create_administrator(dir: &Path) -> String {
    let config = dir.join("gateway.yaml");
    let data = dir.join("data").display().to_string();
    let text = include_str!("../../conf/local.yaml")
        .replace(r#"data_dir: "data""#, &format!("data_dir: {data:?}"));
    std::fs::write(&config, text).unwrap();
    let run = |args: &[&str]| -> Value {
        let output = command_on(&config, &[args, &["--json"]].concat());
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {err}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    run(&[
        "account",
        "create",
        "--email",
        EMAIL,
        "--no-trial",
        "--admin",
    ]);
    let made = run(&["key", "create", "--account", EMAIL, "--name", "test"]);
    made["key"].as_str().unwrap().to_owned()
}
