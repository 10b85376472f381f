//! The command line: parses the command and its config file, and runs it.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage, 64 faults in the config file. Data goes to stdout,
//! everything else to stderr. This module must not do the commands' work itself.

mod account;
mod audit;
mod clients;
mod codes;
mod copies;
mod edge;
mod export;
mod failure;
mod home;
mod ledger;
mod login;
mod models;
mod organisation;
mod payments;
mod progress;
mod reindex;
mod segments;
mod settings;
mod shell;
mod vendors;

use crate::app;
use crate::billing::Billing;
use crate::shared_credit::shared_balances;
use ::ledger::sqlite::row_cache;
use account::{AccountCommand, KeyCommand};
use accounts::Accounts;
use audit::AuditCommand;
use base::{clock, failpoint, telemetry};
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory as _, Parser, Subcommand};
use clients::ClientsArgs;
use codes::CodesCommand;
use config::{CommandSettings, ConfigFault, FileChecks, Settings};
use edge::EdgeCommand;
use home::open_home;
use ledger::LedgerCommand;
use login::LoginArgs;
use models::ModelsCommand;
use organisation::OrganisationCommand;
use payments::PaymentsCommand;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use vendors::VendorsCommand;

/// A gateway for language models: every model through three APIs, metered and billed in credits.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    /// Path of the config file. Default: conf/gateway.yaml if it exists, else
    /// /etc/model-gateway/gateway.yaml.
    #[arg(short, long, global = true, env = "GATEWAY_CONFIG")]
    config: Option<PathBuf>,
    /// Print one JSON document on stdout instead of text; also if the command fails.
    #[arg(long, global = true)]
    json: bool,
    /// Kill this process at a named failpoint (for tests).
    #[arg(
        long,
        global = true,
        env = "GW_FAIL",
        hide = true,
        value_name = "NAME[:N]"
    )]
    fail: Option<failpoint::FailpointPlan>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the whole service on one machine: edge, dashboard and embedded store in one process.
    Run {
        /// Take over from the running gateway without refusing a connection or cutting a stream.
        /// Send SIGQUIT to the running gateway once this one has started.
        #[arg(long)]
        upgrade: bool,
        /// Accept the ledger as it is and start. Use it once, after you restored an older
        /// `ledger.db` on purpose.
        #[arg(long, conflicts_with = "upgrade")]
        accept_older_ledger: bool,
    },
    /// Run an edge: one of several processes that serve requests and share a store (`store.kind:
    /// redis`).
    #[command(args_conflicts_with_subcommands = true)]
    Edge {
        #[command(subcommand)]
        command: Option<EdgeCommand>,
        /// Take over from the running edge, as for `run --upgrade`.
        #[arg(long)]
        upgrade: bool,
    },
    /// Run the ledger, the dashboard and the API that edges call. Use it once per installation with
    /// a shared store (`store.kind: redis`).
    Sidecar {
        /// Accept an older ledger, as for `run --accept-older-ledger`.
        #[arg(long)]
        accept_older_ledger: bool,
    },
    /// Simulate the vendors' APIs on one port: chat completions, messages and responses. Use it for
    /// tests and load tests.
    Simulate(vendor_simulator::SimulateArgs),
    /// Validate the config file: print all faults, or the URLs that the gateway will call. Use it
    /// after each change, as the user that runs the gateway.
    Check {
        /// Do not look at the files and folders that the config names: the certificate, the files
        /// of `file:` values, the data directory and the access log. Use it for the config of
        /// another machine.
        #[arg(long)]
        no_files: bool,
    },
    /// Print the JSON Schema of the config file.
    Schema {
        /// Print the reference page in Markdown instead.
        #[arg(long)]
        reference: bool,
    },
    /// Manage accounts, their credits and invitations.
    #[command(subcommand)]
    Account(AccountCommand),
    /// Manage API keys.
    #[command(subcommand)]
    Key(KeyCommand),
    /// Manage organisations, whose account several people share.
    #[command(subcommand)]
    Org(OrganisationCommand),
    /// Audit, export and correct the ledger, and make backups.
    #[command(subcommand)]
    Ledger(LedgerCommand),
    /// List, refund and reconcile the payments by which account holders buy credits.
    #[command(subcommand)]
    Payments(PaymentsCommand),
    /// Create, list and void codes that account holders redeem for credits.
    #[command(subcommand)]
    Codes(CodesCommand),
    /// Read and verify the log of administrators' actions.
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Test the configured vendor endpoints.
    #[command(subcommand)]
    Vendors(VendorsCommand),
    /// Print known models and prices for the config file.
    #[command(subcommand)]
    Models(ModelsCommand),
    /// Print what a client program (an agent, an editor, an SDK) needs to use this gateway: files,
    /// variables, commands. Without a client, list the clients.
    Clients(ClientsArgs),
    /// Sign in to a gateway as a person, in the browser, and print a key that lasts an hour. Later
    /// calls print a new one without the browser: `apiKeyHelper` of Claude Code can call it.
    Login(LoginArgs),
    /// Print the script that completes commands and options in a shell. Use it once:
    /// `model-gateway completions bash > /etc/bash_completion.d/model-gateway`.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page; `model-gateway man | man -l -` shows it.
    Man {
        /// Write the page, and one for each command, into this directory instead. It is created
        /// if it does not exist.
        #[arg(long)]
        dir: Option<PathBuf>,
    },
}

/// Exit code for faults in the config file (`EX_USAGE`), which other proxies use too.
const EXIT_CONFIG_FAULTS: u8 = 64;

/// Config file of a clone or an unpacked release, relative to its folder.
const LOCAL_CONFIG: &str = "conf/gateway.yaml";
/// Config file of an installation.
const INSTALLED_CONFIG: &str = "/etc/model-gateway/gateway.yaml";

/// Runs the command in the process's arguments.
pub fn main() -> ExitCode {
    let arguments = Cli::try_parse().unwrap_or_else(|error| {
        let error = name_new_spelling(error);
        failure::print_usage(&error, std::env::args_os());
        error.exit()
    });
    let (json, is_named) = (arguments.json, arguments.config.is_some());
    if let Err(error) = telemetry::init_log() {
        let _ = writeln!(
            std::io::stderr(),
            "model-gateway: cannot start the log: {error}"
        );
        return ExitCode::FAILURE;
    }
    let code = match run(arguments).map_err(|error| explain_default(error, is_named)) {
        Ok(code) => code,
        Err(error) => {
            if json {
                failure::print_failure(&error);
            }
            telemetry::print_line(format_args!("model-gateway: {}", failure::describe(&error)));
            match error.downcast_ref::<config::ConfigError>() {
                Some(_) => ExitCode::from(EXIT_CONFIG_FAULTS),
                None => ExitCode::FAILURE,
            }
        }
    };
    telemetry::flush_log();
    code
}

/// Argument names of earlier versions, and their replacements.
const RENAMED_ARGUMENTS: [(&str, &str); 2] = [
    ("withdraw-invite", "revoke-invite"),
    ("--rebuild-sums", "--rebuild-aggregates"),
];

/// Adds the new name to the error for an argument that was renamed.
fn name_new_spelling(mut error: clap::Error) -> clap::Error {
    for (invalid, suggested) in [
        (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        (
            ContextKind::InvalidSubcommand,
            ContextKind::SuggestedSubcommand,
        ),
    ] {
        let Some(ContextValue::String(old)) = error.get(invalid) else {
            continue;
        };
        if let Some((_, new)) = RENAMED_ARGUMENTS.iter().find(|(name, _)| name == old) {
            error.insert(suggested, ContextValue::Strings(vec![(*new).to_owned()]));
        }
    }
    error
}

/// Returns the config file for a command that names none: the one in the current folder, or the
/// installed one. If both exist, commands on accounts print the chosen one, because the operator
/// may mean the other.
fn default_config(command: &Command) -> PathBuf {
    let (local, installed) = (Path::new(LOCAL_CONFIG), Path::new(INSTALLED_CONFIG));
    if !local.exists() {
        return installed.to_owned();
    }
    let has_data = matches!(
        command,
        Command::Account(_)
            | Command::Key(_)
            | Command::Org(_)
            | Command::Ledger(_)
            | Command::Payments(_)
            | Command::Codes(_)
            | Command::Audit(_)
    );
    if has_data && installed.exists() {
        telemetry::print_line(format_args!(
            "model-gateway: using {LOCAL_CONFIG} of this folder, not {INSTALLED_CONFIG} \
             (-c FILE or GATEWAY_CONFIG names the one to use)"
        ));
    }
    local.to_owned()
}

/// Adds the default locations of the config file to the error, if no file is named and none exists.
fn explain_default(error: anyhow::Error, is_named: bool) -> anyhow::Error {
    match error.downcast_ref::<config::ConfigError>() {
        Some(fault) if !is_named && !fault.file.exists() => error.context(format!(
            "neither -c nor GATEWAY_CONFIG names a config file, and {LOCAL_CONFIG} does not exist"
        )),
        _ => error,
    }
}

fn run(arguments: Cli) -> anyhow::Result<ExitCode> {
    let Cli {
        config,
        json,
        fail,
        command,
    } = arguments;
    let file = config.unwrap_or_else(|| default_config(&command));
    fail.iter().for_each(failpoint::arm);
    match command {
        Command::Run {
            upgrade,
            accept_older_ledger,
        } => {
            let settings = config::load(&file, FileChecks::Edge)?;
            accept_ledger(&settings, accept_older_ledger)?;
            app::run(&file, settings, app::StartMode::from_upgrade_flag(upgrade))?;
        }
        Command::Edge {
            command: Some(command),
            ..
        } => {
            return edge::run(&command, &config::load_for_command(&file)?, json);
        }
        Command::Edge {
            command: None,
            upgrade,
        } => {
            app::run_edge(
                &file,
                config::load(&file, FileChecks::Edge)?,
                app::StartMode::from_upgrade_flag(upgrade),
            )?;
        }
        Command::Sidecar {
            accept_older_ledger,
        } => {
            let settings = config::load(&file, FileChecks::Sidecar)?;
            accept_ledger(&settings, accept_older_ledger)?;
            app::sidecar(&file, settings)?;
        }
        Command::Simulate(arguments) => simulate(arguments)?,
        Command::Check { no_files } => {
            let checks = match no_files {
                true => FileChecks::None,
                false => FileChecks::Edge,
            };
            check(&file, checks, json)?;
        }
        Command::Schema { reference: true } => {
            write!(std::io::stdout(), "{}", config::reference())?
        }
        Command::Schema { reference: false } => {
            writeln!(std::io::stdout(), "{:#}", config::schema())?
        }
        Command::Account(command) => {
            with_store(&config::load_for_command(&file)?, json, |context| {
                account::run_account(command, context)
            })?
        }
        Command::Key(command) => with_store(&config::load_for_command(&file)?, json, |context| {
            account::run_key(command, context)
        })?,
        Command::Org(command) => with_store(&config::load_for_command(&file)?, json, |context| {
            organisation::run(command, context)
        })?,
        Command::Codes(command) => {
            with_store(&config::load_for_command(&file)?, json, |context| {
                codes::run(command, context)
            })?
        }
        Command::Payments(command) => {
            return with_store(&config::load_for_command(&file)?, json, |context| {
                payments::run(command, &file, context)
            });
        }
        Command::Audit(command) => {
            let settings = config::load_for_command(&file)?;
            copies::catch_up(&settings)?;
            return audit::run(command, &settings, json);
        }
        Command::Ledger(command) => {
            let settings = config::load_for_command(&file)?;
            return until_it_counts(|| ledger::run(command, &settings, json));
        }
        Command::Vendors(command) => {
            let settings = config::load(&file, FileChecks::Secrets)?;
            return vendors::run(&command, &file, &settings, json);
        }
        Command::Models(command) => models::run(&command, &file, json)?,
        Command::Clients(arguments) => {
            clients::run(&arguments, &config::load_for_command(&file)?, json)?;
        }
        Command::Login(arguments) => login::run(&arguments, json)?,
        Command::Completions { shell } => shell::print_completions(Cli::command(), shell)?,
        Command::Man { dir } => shell::write_manual(Cli::command(), dir.as_deref())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn accept_ledger(settings: &Settings, is_requested: bool) -> anyhow::Result<()> {
    if is_requested {
        Billing::accept_ledger(&settings.data_dir)?;
    }
    Ok(())
}

fn simulate(arguments: vendor_simulator::SimulateArgs) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(vendor_simulator::run(arguments))
}

fn check(file: &Path, checks: FileChecks, json: bool) -> anyhow::Result<()> {
    let settings = config::load(file, checks)?;
    let models: Vec<_> = settings
        .catalog
        .models()
        .iter()
        .map(|model| model.id.as_str())
        .collect();
    let mut out = std::io::stdout().lock();
    if json {
        let calls = vendors::upstream_calls(&settings.catalog);
        let warnings: Vec<_> = settings
            .warnings
            .iter()
            .map(|warning| failure::fault_json(file, warning))
            .collect();
        let report = serde_json::json!({
            "faults": [], "warnings": warnings, "models": models, "calls": calls,
            "skipped_vendors": settings.skipped_vendors,
        });
        writeln!(out, "{report}")?;
    } else {
        writeln!(
            out,
            "{}: no faults; {} models: {}",
            file.display(),
            models.len(),
            models.join(", ")
        )?;
        vendors::print_calls(&mut out, &settings.catalog)?;
        for skipped in &settings.skipped_vendors {
            writeln!(out, "{}: {skipped}", file.display())?;
        }
        for ConfigFault { line, key, message } in &settings.warnings {
            writeln!(out, "{}:{line}: {key}: warning: {message}", file.display())?;
        }
    }
    Ok(())
}

fn with_store<T>(
    settings: &CommandSettings,
    json: bool,
    run: impl FnOnce(&account::CommandContext<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    copies::catch_up(settings)?;
    let accounts = Accounts::open_with_home(&settings.data_dir, open_home(settings)?)?
        .with_shared_store(settings.store.address());
    let billing = Billing::open_with_store(
        &settings.data_dir,
        shared_balances(settings.store.address()),
        open_home(settings)?,
    )?;
    billing.upkeep().set_archive(settings.ledger.archive());
    let now_ms = clock::now_ms();
    until_it_counts(|| {
        run(&account::CommandContext {
            accounts: &accounts,
            billing: &billing,
            settings,
            json,
            now_ms,
        })
    })
}

/// Runs a command, and waits until the running gateway uses what it has written: the next request
/// finds a granted credit, and not a revoked key.
fn until_it_counts<T>(run: impl FnOnce() -> T) -> T {
    let outcome = run();
    row_cache::wait_until_others_see_writes();
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_argument_is_refused_and_the_error_has_its_new_spelling() {
        let commands = [
            &["account", "withdraw-invite", "inv_1"][..],
            &["ledger", "verify", "--rebuild-sums"],
        ];
        assert_eq!(commands.len(), RENAMED_ARGUMENTS.len());
        for (command, (old, new)) in commands.into_iter().zip(RENAMED_ARGUMENTS) {
            assert!(command.contains(&old), "{old}");
            let parse = |spelling: &str| {
                let words = command.iter().map(|word| word.replace(old, spelling));
                Cli::try_parse_from(["model-gateway".to_owned()].into_iter().chain(words))
            };
            let error = name_new_spelling(parse(old).unwrap_err()).to_string();
            assert!(error.contains(new), "{error}");
            assert!(parse(new).is_ok(), "{new}");
        }
    }

    fn arguments_without_help(command: &clap::Command) -> Vec<String> {
        let own = command
            .get_arguments()
            .filter(|argument| argument.get_help().is_none() && !argument.is_hide_set())
            .map(|argument| format!("{} {}", command.get_name(), argument.get_id()));
        own.chain(command.get_subcommands().flat_map(arguments_without_help))
            .collect()
    }

    #[test]
    fn every_argument_has_a_description() {
        let command = <Cli as clap::CommandFactory>::command();
        assert_eq!(arguments_without_help(&command), Vec::<String>::new());
    }
}
