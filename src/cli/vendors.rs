//! Implements `model-gateway vendors`, and the list of upstream URLs that `check` prints.
//!
//! This file must not connect to a vendor, which `edge/probe.rs` and `edge/learn.rs` do, and must
//! not print a key.

use crate::edge::learn::{LearnSession, LearntProfile, MAX_REQUESTS};
use crate::edge::probe::{self, EndpointReport, TestRequest};
use anyhow::{Context, Error, bail};
use clap::Subcommand;
use config::catalog::{Catalog, CatalogModel, CatalogVendor, EndpointAuth, HttpVersion};
use config::{Settings, suggest};
use credits::money::Micro;
use llm_protocol::capabilities::CompletionsApi;
use llm_protocol::metered::{self, MeteredEndpoint, ModelKind};
use llm_protocol::{Protocol, translate};
use serde::Serialize;
use serde_json::json;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::task::JoinSet;

#[derive(Debug, Subcommand)]
pub enum VendorsCommand {
    /// Test each endpoint: DNS, TLS, HTTP version, key, list of models, and one small request, for
    /// which the vendor charges. Use it after a change to `vendors`. Exits with 1 if an
    /// endpoint has a fault.
    Test {
        /// Name of one vendor. Default: all vendors that have models.
        name: Option<String>,
        /// Also run a loop of tools in two steps, streamed and whole, as a coding agent does. Shows
        /// which members of the requests the vendor refused, and what was lost on the way.
        #[arg(long)]
        tools: bool,
    },
    /// Find out what a vendor's server takes, and print it as the vendor's `profile`. Sends at most
    /// 40 small requests, for which the vendor charges; shows first what they can cost. Use it for
    /// a vendor that no preset describes. Exits with 1 if the vendor answers no request.
    Learn {
        /// Name of the vendor in the config file.
        name: String,
        /// Id or upstream name of the model to ask. Default: the vendor's first model.
        #[arg(long)]
        model: Option<String>,
        /// Send no request that could bring the cost above this number of credits, by the model's
        /// configured price.
        #[arg(long, default_value = "100")]
        max_credits: Micro,
        /// Also write the output into `NAME.profile.yaml` beside the config file. Never overwrites
        /// a file.
        #[arg(long)]
        write: bool,
    },
}

/// One URL that the gateway will call.
#[derive(Debug, Serialize)]
pub struct UpstreamCall {
    vendor: String,
    protocol: Protocol,
    url: String,
    auth: String,
    http: &'static str,
}

/// A vendor and its models.
type VendorModels<'a> = (&'a Arc<CatalogVendor>, Vec<Arc<CatalogModel>>);

/// Returns the vendors that have models, in the order in which the models are configured.
fn vendors_in_use(catalog: &Catalog) -> Vec<VendorModels<'_>> {
    let mut vendors: Vec<VendorModels<'_>> = Vec::new();
    for model in catalog.models() {
        match vendors
            .iter_mut()
            .find(|(vendor, _)| vendor.name == model.vendor.name)
        {
            Some((_, models)) => models.push(Arc::clone(model)),
            None => vendors.push((&model.vendor, vec![Arc::clone(model)])),
        }
    }
    vendors
}

/// Returns the URLs of requests to models, by vendor, endpoint and protocol or path.
pub fn upstream_calls(catalog: &Catalog) -> Vec<UpstreamCall> {
    let mut calls = Vec::new();
    for (vendor, models) in vendors_in_use(catalog) {
        let also = models
            .iter()
            .find_map(|model| model.by_responses.as_ref())
            .map(|model| model.protocol());
        for endpoint in &vendor.endpoints {
            let has_chat = models.iter().any(|model| model.kind == ModelKind::Chat);
            let protocols = std::iter::once(vendor.protocol).chain(also);
            let generation = protocols
                .filter(|_| has_chat)
                .map(|protocol| (protocol, translate::vendor_path(protocol)));
            let is_used =
                |row: &&MeteredEndpoint| models.iter().any(|model| model.kind == row.kind);
            let metered = metered::ENDPOINTS.iter().filter(is_used);
            let metered = metered.map(|row| (vendor.protocol, row.path));
            let has =
                |api: &CompletionsApi| models.iter().any(|model| model.completions() == Some(*api));
            let completions = CompletionsApi::ALL.into_iter().filter(has);
            let completions = completions.map(|api| (vendor.protocol, api.path()));
            for (protocol, usual_path) in generation.chain(completions).chain(metered) {
                let http = match (endpoint.http_version, endpoint.tls) {
                    (HttpVersion::Auto, true) => "HTTP/2 or HTTP/1.1",
                    (HttpVersion::Auto, false) | (HttpVersion::Http1, _) => "HTTP/1.1",
                    (HttpVersion::Http2, _) => "HTTP/2",
                };
                let auth = match &endpoint.auth {
                    EndpointAuth::Bearer => "key in authorization".to_owned(),
                    EndpointAuth::Header(name) => format!("key in {name}"),
                    EndpointAuth::None => "no key".to_owned(),
                };
                let url = endpoint.display_url(usual_path).unwrap_or_default();
                calls.push(UpstreamCall {
                    vendor: vendor.name.clone(),
                    protocol,
                    url,
                    auth,
                    http,
                });
            }
        }
    }
    calls
}

/// # Errors
/// Returns an error if the output cannot be written.
pub fn print_calls(out: &mut impl Write, catalog: &Catalog) -> io::Result<()> {
    for UpstreamCall {
        vendor,
        protocol,
        url,
        auth,
        http,
    } in upstream_calls(catalog)
    {
        writeln!(out, "  {vendor}: POST {url} ({protocol}, {auth}, {http})")?;
    }
    Ok(())
}

/// # Errors
/// Returns an error if no vendor in use has this name, or if nothing can be learnt.
pub fn run(
    command: &VendorsCommand,
    file: &Path,
    settings: &Settings,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    match command {
        VendorsCommand::Test { name, tools } => {
            let chosen = select_vendors(settings, name.as_deref())?;
            let reports = runtime.block_on(probe_all(chosen, settings, *tools));
            let mut out = io::stdout().lock();
            if json {
                writeln!(out, "{}", json!({"endpoints": reports}))?;
            } else {
                print_table(&mut out, &reports)?;
            }
            let is_faulty = reports.iter().any(|report| !report.faults.is_empty());
            Ok(u8::from(is_faulty).into())
        }
        VendorsCommand::Learn {
            name,
            model,
            max_credits,
            write,
        } => {
            let path = write.then(|| file.with_file_name(format!("{name}.profile.yaml")));
            if let Some(path) = path.as_ref().filter(|path| path.exists()) {
                let path = path.display();
                bail!("{path} exists: move it away, or leave out --write");
            }
            let chosen = select_vendors(settings, Some(name))?;
            let (vendor, models) = chosen.first().context("no vendor is in use")?;
            let model = find_model(models, model.as_deref())?;
            let learnt = runtime.block_on(learn(vendor, model, settings, *max_credits))?;
            let yaml = learnt.to_yaml();
            let mut out = io::stdout().lock();
            if json {
                writeln!(out, "{}", json!(learnt))?;
            } else {
                write!(out, "{yaml}")?;
            }
            if let Some(path) = path {
                let written =
                    File::create_new(&path).and_then(|mut file| file.write_all(yaml.as_bytes()));
                written.with_context(|| format!("cannot write {}", path.display()))?;
                eprintln!("Written to {}.", path.display());
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Returns the vendors in use, or the one with this name.
fn select_vendors<'a>(
    settings: &'a Settings,
    name: Option<&str>,
) -> anyhow::Result<Vec<VendorModels<'a>>> {
    let mut all = vendors_in_use(&settings.catalog);
    let Some(name) = name else {
        return Ok(all);
    };
    let Some(at) = all.iter().position(|(vendor, _)| vendor.name == name) else {
        let known: Vec<_> = all.iter().map(|(vendor, _)| vendor.name.as_str()).collect();
        let suggestion = suggest::hint(name, known.iter().copied());
        let off = "A vendor is in use if a model names it and its api_key is not empty";
        bail!(
            "no vendor {name:?} is in use. {off}. In use: {}{suggestion}",
            known.join(", ")
        );
    };
    Ok(vec![all.swap_remove(at)])
}

fn find_model<'a>(
    models: &'a [Arc<CatalogModel>],
    name: Option<&str>,
) -> anyhow::Result<&'a CatalogModel> {
    let is_it = |model: &&Arc<CatalogModel>| {
        name.is_none_or(|name| model.id == name || model.upstream_model == name)
    };
    let is_chat = |model: &&Arc<CatalogModel>| model.kind == ModelKind::Chat;
    let found = models.iter().filter(is_chat).find(is_it);
    let found = found.map(|model| &**model);
    found.with_context(|| {
        let known = models.iter().filter(is_chat);
        let known: Vec<_> = known.map(|model| model.id.as_str()).collect();
        let known = known.join(", ");
        format!("the vendor has no such chat model. Its chat models: {known}")
    })
}

/// Prints the maximum cost of the requests, then sends them.
async fn learn(
    vendor: &CatalogVendor,
    model: &CatalogModel,
    settings: &Settings,
    max_credits: Micro,
) -> anyhow::Result<LearntProfile> {
    let endpoint = vendor.endpoints.first();
    let target = (vendor, endpoint.context("the vendor has no endpoint")?);
    let session = LearnSession::connect(target, model, &settings.limits, max_credits).await;
    let session = session.map_err(Error::msg)?;
    let [small, long] = session.max_costs();
    eprintln!(
        "At most {MAX_REQUESTS} requests to {} cost at most {small} credits by the configured price, and one that is longer \
         than the context {long} more if the vendor takes it. No request is sent that could bring the cost above \
         {max_credits} credits.",
        model.upstream_model
    );
    session.run().await.map_err(Error::msg)
}

/// Tests all endpoints concurrently. The reports are in the order of the config file.
async fn probe_all(
    vendors: Vec<VendorModels<'_>>,
    settings: &Settings,
    with_tools: bool,
) -> Vec<EndpointReport> {
    let mut probes = JoinSet::new();
    for (vendor, models) in vendors {
        for index in 0..vendor.endpoints.len() {
            let (position, limits) = (probes.len(), settings.limits.clone());
            let (vendor, models) = (Arc::clone(vendor), models.clone());
            probes.spawn(async move {
                let endpoint = vendor.endpoints.get(index)?;
                Some((
                    position,
                    probe::test_endpoint(&vendor, endpoint, &models, &limits, with_tools).await,
                ))
            });
        }
    }
    let mut reports: Vec<_> = probes.join_all().await.into_iter().flatten().collect();
    reports.sort_by_key(|(position, _)| *position);
    reports.into_iter().map(|(_, report)| report).collect()
}

fn print_table(out: &mut impl Write, reports: &[EndpointReport]) -> io::Result<()> {
    let head = [
        "VENDOR", "ENDPOINT", "ADDRESS", "TLS", "HTTP", "KEY", "MODELS", "REQUEST", "RESULT",
    ]
    .map(str::to_owned);
    let rows: Vec<_> = std::iter::once(head)
        .chain(reports.iter().map(row))
        .collect();
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
    };
    let widths: Vec<_> = (0..9)
        .map(|column| width(column).unwrap_or_default())
        .collect();
    for row in &rows {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

fn row(report: &EndpointReport) -> [String; 9] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let models = report
        .models
        .as_ref()
        .map(|listed| match listed.unlisted.as_slice() {
            [] => format!("{} listed, including yours", listed.count),
            unlisted => format!("{} listed, not {}", listed.count, unlisted.join(", ")),
        });
    let tokens =
        |count: Option<u64>| count.map_or_else(|| "?".to_owned(), |count| count.to_string());
    let request = |TestRequest {
                       model,
                       status,
                       input,
                       output,
                       milliseconds,
                       ..
                   }: &TestRequest| {
        format!(
            "{model}: {status}, {} in, {} out, {milliseconds} ms",
            tokens(*input),
            tokens(*output)
        )
    };
    let requests: Vec<_> = report.requests.iter().map(request).collect();
    let result: Vec<_> = report
        .faults
        .iter()
        .chain(&report.notes)
        .map(String::as_str)
        .collect();
    let verdict = if report.faults.is_empty() {
        "ok"
    } else {
        "FAULT"
    };
    [
        report.vendor.clone(),
        report.url.clone(),
        or_dash(report.addresses.first().map(ToString::to_string)),
        or_dash(report.tls.clone()),
        or_dash(report.http.map(str::to_owned)),
        report.key.as_str().to_owned(),
        or_dash(models),
        or_dash((!requests.is_empty()).then(|| requests.join("; "))),
        if result.is_empty() {
            verdict.to_owned()
        } else {
            format!("{verdict}: {}", result.join("; "))
        },
    ]
}
