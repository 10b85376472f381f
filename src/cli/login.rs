//! `login`: signs a person in to a gateway by its device flow (RFC 8628), and prints a key.
//!
//! The refresh token stays in a file of the user's config folder, so that the next call needs no
//! person. Stdout has the key alone. This file must not read the gateway's config: it runs on the
//! machines of people.

use crate::provider_client::{RequestBounds, encode_form, send};
use anyhow::{Context as _, anyhow, bail, ensure};
use base::{clock, telemetry};
use bytes::Bytes;
use config::ProviderAddress;
use http::{Request, StatusCode, header};
use http_body_util::Full;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

const BOUNDS: RequestBounds = RequestBounds {
    timeout: Duration::from_secs(30),
    max_answer_bytes: 65_536,
};

/// For the question whether a saved key is still valid, on whose answer a program waits each time.
const QUESTION_BOUNDS: RequestBounds = RequestBounds {
    timeout: Duration::from_secs(3),
    ..BOUNDS
};

const USER_AGENT: &str = concat!("model-gateway/", env!("CARGO_PKG_VERSION"));

/// Number of seconds before its end at which a key is replaced.
const MIN_LIFETIME_SECONDS: u64 = 300;

/// Maximum interval between polls, in seconds, whatever the gateway asks for.
const MAX_POLL_SECONDS: u64 = 60;

/// Where the system has the name of this machine.
const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";

#[derive(Debug, clap::Args)]
pub struct LoginArgs {
    /// Address of the gateway, such as https://llm.example.com. `http://` only for this machine.
    #[arg(long, value_name = "URL")]
    server: String,
    /// End the login instead: the gateway refuses its key, and the file is removed.
    #[arg(long)]
    logout: bool,
    #[arg(long, env = "XDG_CONFIG_HOME", hide = true)]
    config_home: Option<PathBuf>,
    #[arg(long, env = "HOME", hide = true)]
    home: Option<PathBuf>,
}

/// What the file keeps between two calls.
#[derive(Serialize, Deserialize)]
struct SavedLogin {
    server: String,
    access_token: String,
    /// Unix time in seconds.
    expires_at: u64,
    refresh_token: String,
}

#[derive(Deserialize)]
struct DeviceResponse {
    device_code: String,
    user_code: String,
    verification_uri: String,
    verification_uri_complete: Option<String>,
    expires_in: u64,
    #[serde(default)]
    interval: u64,
}

#[derive(Deserialize)]
struct TokenResponse {
    access_token: String,
    expires_in: u64,
    refresh_token: String,
}

pub fn run(arguments: &LoginArgs, json: bool) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let server = LoginServer::parse(&arguments.server)?;
    let path = file_of(arguments, &server.url)?;
    // A second call waits, and then finds what the first one saved.
    let _lock = lock(&path)?;
    if arguments.logout {
        return runtime.block_on(log_out(&server, &path));
    }
    let login = runtime.block_on(current_login(&server, &path))?;
    let mut out = std::io::stdout().lock();
    match json {
        true => writeln!(
            out,
            "{}",
            json!({"server": login.server, "key": login.access_token, "expires_at": login.expires_at})
        )?,
        false => writeln!(out, "{}", login.access_token)?,
    }
    Ok(())
}

/// Returns the saved login, refreshed if its key ends soon or the gateway refuses it; or a new one,
/// for which it asks a person.
async fn current_login(server: &LoginServer, path: &Path) -> anyhow::Result<SavedLogin> {
    if let Some(saved) = load(path)? {
        let left = saved.expires_at.saturating_sub(unix_seconds());
        if left > MIN_LIFETIME_SECONDS && !server.refuses(&saved.access_token).await {
            return Ok(saved);
        }
        let fields = [
            ("grant_type", "refresh_token"),
            ("refresh_token", &saved.refresh_token),
        ];
        let fault = match server.post("/oauth/token", &fields).await {
            Ok((StatusCode::OK, body)) => return save(server, path, &body),
            Ok((StatusCode::UNAUTHORIZED, _)) => None,
            Ok((status, body)) => Some(anyhow!(describe(status, &body))),
            Err(error) => Some(error),
        };
        match fault {
            None => say("The login has ended."),
            Some(fault) if left > 0 => {
                say(&format!(
                    "The login cannot be refreshed, and its key ends in {left} s: {fault:#}"
                ));
                return Ok(saved);
            }
            Some(fault) => return Err(fault.context("cannot refresh the login")),
        }
    }
    let body = sign_in(server).await?;
    save(server, path, &body)
}

/// Signs in with a person, and returns the gateway's answer with the tokens.
async fn sign_in(server: &LoginServer) -> anyhow::Result<Bytes> {
    // Without a name, the page shows the address alone.
    let host = fs::read_to_string(HOST_NAME_FILE).unwrap_or_default();
    let path = "/oauth/device_authorization";
    let (status, body) = server.post(path, &[("client_host", host.trim())]).await?;
    ensure!(
        status == StatusCode::OK,
        "cannot begin to sign in: {}",
        match status {
            StatusCode::NOT_FOUND =>
                "this gateway does not let programs sign in (`sign_in.device`)".to_owned(),
            _ => describe(status, &body),
        }
    );
    let device: DeviceResponse =
        serde_json::from_slice(&body).context("cannot read the gateway's answer")?;
    let page = device.verification_uri_complete.as_ref();
    let page = page.unwrap_or(&device.verification_uri);
    ensure!(
        page.starts_with("https://") || page.starts_with("http://"),
        "cannot sign in: the gateway names no page for it"
    );
    say(&format!("Open {page}"));
    say(&format!("and approve the code {}", device.user_code));
    let ends = unix_seconds().saturating_add(device.expires_in);
    let mut interval = device.interval.clamp(1, MAX_POLL_SECONDS);
    let fields = [
        ("grant_type", "urn:ietf:params:oauth:grant-type:device_code"),
        ("device_code", &device.device_code),
    ];
    while unix_seconds() < ends {
        tokio::time::sleep(Duration::from_secs(interval)).await;
        let (status, body) = server.post("/oauth/token", &fields).await?;
        if status == StatusCode::OK {
            return Ok(body);
        }
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        match answer["error"].as_str() {
            Some("authorization_pending" | "temporarily_unavailable") => {}
            Some("slow_down") => interval = (interval + 5).min(MAX_POLL_SECONDS),
            Some("access_denied") => bail!("the sign-in was refused in the browser"),
            Some("expired_token") => break,
            _ => bail!("cannot sign in: {}", describe(status, &body)),
        }
    }
    Err(anyhow!(
        "nobody approved the code in time: call the command again"
    ))
}

async fn log_out(server: &LoginServer, path: &Path) -> anyhow::Result<()> {
    let Some(saved) = load(path)? else {
        say("There is no login.");
        return Ok(());
    };
    let fields = [("token", saved.refresh_token.as_str())];
    let (status, body) = server.post("/oauth/revoke", &fields).await?;
    ensure!(
        status == StatusCode::OK,
        "cannot end the login: {}",
        describe(status, &body)
    );
    fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    say("The login has ended.");
    Ok(())
}

/// A gateway that one signs in to.
struct LoginServer {
    url: String,
    address: ProviderAddress,
}

impl LoginServer {
    fn parse(url: &str) -> anyhow::Result<Self> {
        let url = url.trim_end_matches('/').to_owned();
        let address = ProviderAddress::parse(&url).ok_or_else(|| {
            anyhow!(
                "--server must be an https:// URL, such as https://llm.example.com; http:// sends \
                 keys unencrypted, so it may only name this machine"
            )
        })?;
        Ok(Self { url, address })
    }

    async fn post(
        &self,
        path: &str,
        fields: &[(&str, &str)],
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let request = Request::post(format!("{}{path}", self.address.path))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, USER_AGENT)
            .body(Full::from(encode_form(fields)))?;
        let sent = send(&self.address, request, BOUNDS).await;
        sent.map_err(|error| anyhow!("cannot reach {}: {error}", self.url))
    }

    /// Returns whether the gateway says that this key is not valid: it was revoked, say. A gateway
    /// that cannot be asked says nothing.
    async fn refuses(&self, key: &str) -> bool {
        let request = Request::get(format!("{}/managed/settings", self.address.path))
            .header(header::AUTHORIZATION, format!("Bearer {key}"))
            .header(header::USER_AGENT, USER_AGENT)
            .body(Full::default());
        let Ok(request) = request else { return true };
        let answer = send(&self.address, request, QUESTION_BOUNDS).await;
        answer.is_ok_and(|(status, _)| status == StatusCode::UNAUTHORIZED)
    }
}

/// Returns the OAuth error of an answer in words.
fn describe(status: StatusCode, body: &[u8]) -> String {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    match answer["error_description"]
        .as_str()
        .or(answer["error"].as_str())
    {
        Some(text) => format!(
            "the gateway answers {}: {}",
            status.as_u16(),
            printable(text)
        ),
        None => format!("the gateway answers {}", status.as_u16()),
    }
}

/// Prints a line for a person.
fn say(text: &str) {
    telemetry::print_line(format_args!("{}", printable(text)));
}

/// Returns a text without what would move the cursor of a terminal: a server may have made it.
fn printable(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).collect()
}

fn unix_seconds() -> u64 {
    u64::try_from(clock::now_ms() / 1_000).unwrap_or(0)
}

/// Returns the path of the file with the login at `url`, in the user's configuration folder.
fn file_of(arguments: &LoginArgs, url: &str) -> anyhow::Result<PathBuf> {
    let is_set = |folder: &&PathBuf| folder.is_absolute();
    let own = arguments.config_home.as_ref().filter(is_set).cloned();
    let base = own
        .or_else(|| Some(arguments.home.as_ref().filter(is_set)?.join(".config")))
        .context("neither XDG_CONFIG_HOME nor HOME names the folder for the login")?;
    let folder = base.join("model-gateway");
    let mut builder = fs::DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || ".-".contains(*letter);
    let plain = |letter| if is_plain(&letter) { letter } else { '_' };
    let name: String = url.chars().map(plain).collect();
    Ok(folder.join(format!("login-{name}.json")))
}

/// Locks the login until the file is closed.
fn lock(path: &Path) -> anyhow::Result<File> {
    let path = path.with_extension("lock");
    let failed = || format!("cannot lock {}", path.display());
    let mut options = OpenOptions::new();
    let options = options.create(true).truncate(false).write(true).mode(0o600);
    let file = options.open(&path).with_context(failed)?;
    flock(&file, FlockOperation::LockExclusive).with_context(failed)?;
    Ok(file)
}

fn load(path: &Path) -> anyhow::Result<Option<SavedLogin>> {
    match fs::read(path) {
        // A file that cannot be understood is replaced by the next login.
        Ok(text) => Ok(serde_json::from_slice(&text).ok()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Saves the tokens of an answer, for the user alone.
fn save(server: &LoginServer, path: &Path, body: &[u8]) -> anyhow::Result<SavedLogin> {
    let tokens: TokenResponse =
        serde_json::from_slice(body).context("cannot read the gateway's answer")?;
    let is_key = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    ensure!(
        is_key(&tokens.access_token),
        "the gateway's answer has no key that can be printed"
    );
    let login = SavedLogin {
        server: server.url.clone(),
        access_token: tokens.access_token,
        expires_at: unix_seconds().saturating_add(tokens.expires_in),
        refresh_token: tokens.refresh_token,
    };
    let new = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(true).write(true).mode(0o600);
        let mut file = options.open(&new)?;
        file.write_all(&serde_json::to_vec(&login)?)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))?;
    Ok(login)
}
