//! Holds one connection that all callers share, and replaces it after a failure.
//!
//! A separate task connects, one attempt at a time. A caller that gives up does not cancel the
//! attempt, and all waiting callers share its result. Each command gets a reply or fails within the
//! link's time limit (`reply_timeout`), including the time to connect. If the connection is lost,
//! the link sends the command once more over a new one, which is safe because no command takes
//! effect twice. This file must not depend on the commands.

use super::errors;
use ::redis::aio::{ConnectionLike, MultiplexedConnection};
use ::redis::cluster::ClusterClient;
use ::redis::cluster_async::ClusterConnection;
use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue,
    IntoConnectionInfo, Pipeline, RedisConnectionInfo, RedisError, RedisFuture, Value,
};
use config::redis_address::{RedisAddress, SentinelAddress};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time to wait for the answer of each Sentinel.
const SENTINEL_TIMEOUT: Duration = Duration::from_millis(300);
/// Maximum number of requests that wait to be written to one connection. Further callers wait.
const MAX_QUEUED: usize = 1_024;
/// Maximum number of redirections that the client of a cluster follows.
const MAX_CLUSTER_RETRIES: u32 = 3;

/// A connection that reconnects. Cloning it is cheap.
#[derive(Clone)]
pub(crate) struct RedisLink(Arc<RedisLinkInner>);

struct RedisLinkInner {
    address: RedisAddress,
    reply_timeout: Duration,
    used: Mutex<Option<LiveConnection>>,
    /// Lock that the connecting task holds, with the time and the error of the last failed attempt.
    attempt: tokio::sync::Mutex<Option<(Instant, RedisError)>>,
}

#[derive(Clone)]
struct LiveConnection {
    /// Time of connecting, which identifies the connection.
    since: Instant,
    wire: RedisConnection,
}

#[derive(Clone)]
enum RedisConnection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl RedisLink {
    pub fn new(address: RedisAddress, reply_timeout: Duration) -> Self {
        Self(Arc::new(RedisLinkInner {
            address,
            reply_timeout,
            used: Mutex::default(),
            attempt: tokio::sync::Mutex::default(),
        }))
    }

    pub fn address(&self) -> &RedisAddress {
        &self.0.address
    }

    pub fn reply_timeout(&self) -> Duration {
        self.0.reply_timeout
    }

    /// Connects unless a connection exists.
    pub async fn connect(&self) -> Result<(), RedisError> {
        self.connection().await.map(drop)
    }

    /// Returns the client of the server, to open a connection of another kind.
    pub async fn primary_client(&self) -> Result<Client, RedisError> {
        match &self.0.address {
            RedisAddress::One(url) => Client::open(url.as_str()),
            // A message that is published at one node arrives at every node.
            RedisAddress::Cluster(nodes) => Client::open(nodes.first().map_or("", String::as_str)),
            RedisAddress::Sentinel(sentinel) => Client::open(find_primary(sentinel).await?),
        }
    }

    fn live_connection(&self) -> Option<LiveConnection> {
        self.0
            .used
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn drop_connection(&self, used: &LiveConnection) {
        let mut live = self.0.used.lock().unwrap_or_else(PoisonError::into_inner);
        if live.as_ref().is_some_and(|live| live.since == used.since) {
            *live = None;
        }
    }

    async fn connection(&self) -> Result<LiveConnection, RedisError> {
        if let Some(used) = self.live_connection() {
            return Ok(used);
        }
        let (link, since) = (self.clone(), Instant::now());
        let made = tokio::spawn(async move { link.reconnect(since).await }).await;
        made.unwrap_or_else(|_| Err((ErrorKind::Io, "the connecting task panicked").into()))
    }

    async fn reconnect(&self, since: Instant) -> Result<LiveConnection, RedisError> {
        let mut failed = self.0.attempt.lock().await;
        if let Some(used) = self.live_connection() {
            return Ok(used);
        }
        // A caller that waited for an attempt shares its result. Otherwise each caller would wait
        // for the attempts of the others.
        if let Some((at, error)) = failed.as_ref().filter(|(at, _)| *at >= since) {
            log::trace!("connecting failed {} ms ago", at.elapsed().as_millis());
            return Err(error.clone());
        }
        let made = timeout(
            CONNECT_TIMEOUT,
            open_connection(&self.0.address, self.0.reply_timeout),
        )
        .await
        .unwrap_or_else(|_| Err(timeout_error()));
        match made {
            Ok(wire) => {
                let used = LiveConnection {
                    since: Instant::now(),
                    wire,
                };
                *self.0.used.lock().unwrap_or_else(PoisonError::into_inner) = Some(used.clone());
                Ok(used)
            }
            Err(error) => {
                *failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// Returns the result of a command sent over `used`, or `None` if the command must be repeated.
    fn check_outcome<T>(
        &self,
        used: &LiveConnection,
        outcome: Result<T, RedisError>,
        is_first: bool,
    ) -> Option<Result<T, RedisError>> {
        if let Err(error) = &outcome
            && errors::ends_connection(error)
        {
            // A cluster's connection finds its nodes by itself, unless none is left.
            if matches!(used.wire, RedisConnection::One(_))
                || error.kind() == ErrorKind::ClusterConnectionNotFound
            {
                self.drop_connection(used);
            }
            if is_first && errors::is_retryable(error) {
                return None;
            }
        }
        Some(outcome)
    }

    async fn command(&self, command: &Cmd) -> Result<Value, RedisError> {
        let until = Instant::now() + self.0.reply_timeout;
        let mut is_first = true;
        loop {
            let used = timeout_at(until, self.connection())
                .await
                .map_err(|_| timeout_error())??;
            let mut wire = used.wire.clone();
            let reply = timeout_at(until, wire.req_packed_command(command))
                .await
                .unwrap_or_else(|_| Err(timeout_error()));
            if let Some(outcome) = self.check_outcome(&used, reply, is_first) {
                return outcome;
            }
            is_first = false;
        }
    }

    async fn commands(
        &self,
        pipeline: &Pipeline,
        offset: usize,
        count: usize,
    ) -> Result<Vec<Value>, RedisError> {
        let until = Instant::now() + self.0.reply_timeout;
        let mut is_first = true;
        loop {
            let used = timeout_at(until, self.connection())
                .await
                .map_err(|_| timeout_error())??;
            let mut wire = used.wire.clone();
            let call = wire.req_packed_commands(pipeline, offset, count);
            let replies = timeout_at(until, call)
                .await
                .unwrap_or_else(|_| Err(timeout_error()));
            if let Some(outcome) = self.check_outcome(&used, replies, is_first) {
                return outcome;
            }
            is_first = false;
        }
    }
}

impl ConnectionLike for RedisLink {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(self.command(command))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(self.commands(pipeline, offset, count))
    }

    fn get_db(&self) -> i64 {
        0
    }
}

impl ConnectionLike for RedisConnection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::One(connection) => connection.req_packed_command(command),
            Self::Cluster(connection) => connection.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::One(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        0
    }
}

fn config(reply_timeout: Duration) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(reply_timeout))
        .set_pipeline_buffer_size(MAX_QUEUED)
}

async fn open_connection(
    address: &RedisAddress,
    reply_timeout: Duration,
) -> Result<RedisConnection, RedisError> {
    Ok(match address {
        RedisAddress::One(url) => {
            let client = Client::open(url.as_str())?;
            RedisConnection::One(
                client
                    .get_multiplexed_async_connection_with_config(&config(reply_timeout))
                    .await?,
            )
        }
        RedisAddress::Cluster(nodes) => {
            let client = ClusterClient::builder(nodes.iter().map(String::as_str))
                .connection_timeout(CONNECT_TIMEOUT)
                .response_timeout(reply_timeout)
                .retries(MAX_CLUSTER_RETRIES)
                .build()?;
            RedisConnection::Cluster(client.get_async_connection().await?)
        }
        RedisAddress::Sentinel(sentinel) => {
            let client = Client::open(find_primary(sentinel).await?)?;
            let mut connection = client
                .get_multiplexed_async_connection_with_config(&config(reply_timeout))
                .await?;
            check_primary(&mut connection).await?;
            RedisConnection::One(connection)
        }
    })
}

struct SentinelReply {
    epoch: u64,
    host: String,
    port: u16,
}

/// Returns the primary's address from the Sentinels' reply with the highest epoch, because a
/// Sentinel that was cut off from the others can still name the previous primary. Waits for more
/// than half of the Sentinels, or for all that answer.
async fn find_primary(sentinel: &SentinelAddress) -> Result<ConnectionInfo, RedisError> {
    let mut queries = JoinSet::new();
    for node in &sentinel.nodes {
        queries.spawn(timeout(
            SENTINEL_TIMEOUT,
            ask_sentinel(node.clone(), sentinel.master.clone()),
        ));
    }
    let (mut replied, mut newest, mut failed) = (0, None::<SentinelReply>, timeout_error());
    while let Some(reply) = queries.join_next().await {
        match reply {
            Ok(Ok(Ok(sentinel_reply))) => {
                replied += 1;
                if newest
                    .as_ref()
                    .is_none_or(|newest| newest.epoch < sentinel_reply.epoch)
                {
                    newest = Some(sentinel_reply);
                }
            }
            Ok(Ok(Err(error))) => failed = error,
            Ok(Err(_)) | Err(_) => {}
        }
        if replied * 2 > sentinel.nodes.len() {
            break;
        }
    }
    let Some(SentinelReply { host, port, .. }) = newest else {
        return Err(failed);
    };
    let address = if sentinel.tls {
        ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        }
    } else {
        ConnectionAddr::Tcp(host, port)
    };
    let mut settings = RedisConnectionInfo::default().set_db(sentinel.database);
    if let Some(user) = &sentinel.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &sentinel.password {
        settings = settings.set_password(password);
    }
    Ok(address.into_connection_info()?.set_redis_settings(settings))
}

async fn ask_sentinel(node: String, master: String) -> Result<SentinelReply, RedisError> {
    let client = Client::open(node)?;
    let mut connection = client
        .get_multiplexed_async_connection_with_config(&config(SENTINEL_TIMEOUT))
        .await?;
    let mut query = Pipeline::new();
    // The first command knows a new primary sooner, and the second returns its epoch.
    query
        .cmd("SENTINEL")
        .arg("GET-MASTER-ADDR-BY-NAME")
        .arg(&master);
    query.cmd("SENTINEL").arg("MASTER").arg(&master);
    let (address, about): (Option<(String, u16)>, HashMap<String, String>) = query
        .query_async(&mut connection)
        .await
        .map_err(|error| primary_not_found(&master, &error))?;
    let (host, port) = address.ok_or_else(|| primary_not_found(&master, &timeout_error()))?;
    let epoch = about
        .get("config-epoch")
        .and_then(|epoch| epoch.parse().ok())
        .unwrap_or(0);
    Ok(SentinelReply { epoch, host, port })
}

fn primary_not_found(master: &str, error: &RedisError) -> RedisError {
    let detail = format!("{master}: {error}");
    RedisError::from((
        ErrorKind::MasterNameNotFoundBySentinel,
        "cannot learn the primary's address from Sentinel",
        detail,
    ))
}

/// Checks that the server is the primary, because a former primary may not have noticed its
/// demotion. A user without the right to run `ROLE` passes; a replica then fails at the first
/// write.
async fn check_primary(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    let mut role = Cmd::new();
    role.arg("ROLE");
    let reply: Vec<Value> = match role.query_async(connection).await {
        Err(error) if error.code() == Some("NOPERM") => return Ok(()),
        reply => reply?,
    };
    let role = reply
        .into_iter()
        .next()
        .map(String::from_redis_value)
        .transpose()?;
    if role.as_deref() == Some("master") {
        return Ok(());
    }
    let detail = format!("it is a {}", role.unwrap_or_default());
    Err((
        ErrorKind::MasterNameNotFoundBySentinel,
        "the server that Sentinel names is not a primary",
        detail,
    )
        .into())
}

fn timeout_error() -> RedisError {
    RedisError::from(io::Error::from(io::ErrorKind::TimedOut))
}
