//! Tests of the whole program from outside: the built binary, simulated vendors, raw sockets, the
//! command line.
//!
//! Every test owns its world (data, ports, processes) and ends with `World::close`. That checks the
//! money in the ledger, whatever the test was about. A test must not reach into the library: it
//! checks only things that a client, an operator or a vendor can see.
//!
//! Read next: `gateway/world.rs`, then `gateway/client.rs`. `GATEWAY_LONG=1` runs the long
//! variants.

#![allow(
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods
)]

#[path = "gateway/access.rs"]
mod access;
#[path = "gateway/account.rs"]
mod account;
#[path = "gateway/addresses.rs"]
mod addresses;
#[path = "gateway/admin.rs"]
mod admin;
#[path = "gateway/administrator.rs"]
mod administrator;
#[path = "gateway/admission.rs"]
mod admission;
#[path = "gateway/alerts.rs"]
mod alerts;
#[path = "gateway/aliases.rs"]
mod aliases;
#[path = "gateway/announced_bodies.rs"]
mod announced_bodies;
#[path = "gateway/asked_once.rs"]
mod asked_once;
#[path = "gateway/backlog.rs"]
mod backlog;
#[path = "gateway/base_address.rs"]
mod base_address;
#[path = "gateway/bodies.rs"]
mod bodies;
#[path = "gateway/books.rs"]
mod books;
#[path = "gateway/bystander.rs"]
mod bystander;
#[path = "gateway/chaos.rs"]
mod chaos;
#[path = "gateway/client.rs"]
mod client;
#[path = "gateway/clients.rs"]
mod clients;
#[path = "gateway/coding.rs"]
mod coding;
#[path = "gateway/command_line.rs"]
mod command_line;
#[path = "gateway/commands.rs"]
mod commands;
#[path = "gateway/company.rs"]
mod company;
#[path = "gateway/completions.rs"]
mod completions;
#[path = "gateway/config_file.rs"]
mod config_file;
#[path = "gateway/config_mistakes.rs"]
mod config_mistakes;
#[path = "gateway/cors.rs"]
mod cors;
#[path = "gateway/crash.rs"]
mod crash;
#[path = "gateway/crowd.rs"]
mod crowd;
#[path = "gateway/cut_vendor.rs"]
mod cut_vendor;
#[path = "gateway/damaged_files.rs"]
mod damaged_files;
#[path = "gateway/dead_edges.rs"]
mod dead_edges;
#[path = "gateway/disconnect.rs"]
mod disconnect;
#[path = "gateway/disk.rs"]
mod disk;
#[path = "gateway/edge_clocks.rs"]
mod edge_clocks;
#[path = "gateway/endings.rs"]
mod endings;
#[path = "gateway/estimates.rs"]
mod estimates;
#[path = "gateway/failover.rs"]
mod failover;
#[path = "gateway/failure.rs"]
mod failure;
#[path = "gateway/failure_table.rs"]
mod failure_table;
#[path = "gateway/fallback.rs"]
mod fallback;
#[path = "gateway/fallback_reasoning.rs"]
mod fallback_reasoning;
#[path = "gateway/fetches.rs"]
mod fetches;
#[path = "gateway/file_watch.rs"]
mod file_watch;
#[path = "gateway/flood.rs"]
mod flood;
#[path = "gateway/free_requests.rs"]
mod free_requests;
#[path = "gateway/frozen_disk.rs"]
mod frozen_disk;
#[path = "gateway/h2.rs"]
mod h2;
#[path = "gateway/h2_conformance.rs"]
mod h2_conformance;
#[path = "gateway/h2_faults.rs"]
mod h2_faults;
#[path = "gateway/h2_vendors.rs"]
mod h2_vendors;
#[path = "gateway/h2_windows.rs"]
mod h2_windows;
#[path = "gateway/header_checks.rs"]
mod header_checks;
#[path = "gateway/hostile.rs"]
mod hostile;
#[path = "gateway/idempotency.rs"]
mod idempotency;
#[path = "gateway/index.rs"]
mod index;
#[path = "gateway/installs.rs"]
mod installs;
#[path = "gateway/interleaved.rs"]
mod interleaved;
#[path = "gateway/keep_alive.rs"]
mod keep_alive;
#[path = "gateway/keys_of_edges.rs"]
mod keys_of_edges;
#[path = "gateway/kills.rs"]
mod kills;
#[path = "gateway/large_bodies.rs"]
mod large_bodies;
#[path = "gateway/learnt_profiles.rs"]
mod learnt_profiles;
#[path = "gateway/leaving.rs"]
mod leaving;
#[path = "gateway/life.rs"]
mod life;
#[path = "gateway/limits.rs"]
mod limits;
#[path = "gateway/logins.rs"]
mod logins;
#[path = "gateway/mail.rs"]
mod mail;
#[path = "gateway/malformed.rs"]
mod malformed;
#[path = "gateway/media.rs"]
mod media;
#[path = "gateway/metered.rs"]
mod metered;
#[path = "gateway/metrics.rs"]
mod metrics;
#[path = "gateway/migration.rs"]
mod migration;
#[path = "gateway/money.rs"]
mod money;
#[path = "gateway/old_ledger.rs"]
mod old_ledger;
#[path = "gateway/open_pages.rs"]
mod open_pages;
#[path = "gateway/operating.rs"]
mod operating;
#[path = "gateway/operators_guide.rs"]
mod operators_guide;
#[path = "gateway/organisations.rs"]
mod organisations;
#[path = "gateway/overload.rs"]
mod overload;
#[path = "gateway/overrun.rs"]
mod overrun;
#[path = "gateway/own.rs"]
mod own;
#[path = "gateway/pages.rs"]
mod pages;
#[path = "gateway/panics.rs"]
mod panics;
#[path = "gateway/partition.rs"]
mod partition;
#[path = "gateway/payments.rs"]
mod payments;
#[path = "gateway/people.rs"]
mod people;
#[path = "gateway/prices.rs"]
mod prices;
#[path = "gateway/proxies.rs"]
mod proxies;
#[path = "gateway/races.rs"]
mod races;
#[path = "gateway/refused.rs"]
mod refused;
#[path = "gateway/refused_members.rs"]
mod refused_members;
#[path = "gateway/refusing_files.rs"]
mod refusing_files;
#[path = "gateway/reload.rs"]
mod reload;
#[path = "gateway/repair.rs"]
mod repair;
#[path = "gateway/responses.rs"]
mod responses;
#[path = "gateway/responses_vendor.rs"]
mod responses_vendor;
#[path = "gateway/revocation.rs"]
mod revocation;
#[path = "gateway/scripted.rs"]
mod scripted;
#[path = "gateway/scripted_vendor.rs"]
mod scripted_vendor;
#[path = "gateway/secrets.rs"]
mod secrets;
#[path = "gateway/segments.rs"]
mod segments;
#[path = "gateway/sentinel.rs"]
mod sentinel;
#[path = "gateway/server_tools.rs"]
mod server_tools;
#[path = "gateway/shared.rs"]
mod shared;
#[path = "gateway/shared_kills.rs"]
mod shared_kills;
#[path = "gateway/shutdown.rs"]
mod shutdown;
#[path = "gateway/sidecar_away.rs"]
mod sidecar_away;
#[path = "gateway/smuggling.rs"]
mod smuggling;
#[path = "gateway/stale_replicas.rs"]
mod stale_replicas;
#[path = "gateway/standby.rs"]
mod standby;
#[path = "gateway/standby_disk.rs"]
mod standby_disk;
#[path = "gateway/standby_kills.rs"]
mod standby_kills;
#[path = "gateway/store_cluster.rs"]
mod store_cluster;
#[path = "gateway/store_faults.rs"]
mod store_faults;
#[path = "gateway/store_tls.rs"]
mod store_tls;
#[path = "gateway/strace.rs"]
mod strace;
#[path = "gateway/stuck_readers.rs"]
mod stuck_readers;
#[path = "gateway/supply_chain.rs"]
mod supply_chain;
#[path = "gateway/surface.rs"]
mod surface;
#[path = "gateway/tenancy.rs"]
mod tenancy;
#[path = "gateway/timing.rs"]
mod timing;
#[path = "gateway/tls.rs"]
mod tls;
#[path = "gateway/traces.rs"]
mod traces;
#[path = "gateway/translation.rs"]
mod translation;
#[path = "gateway/trusted_proxy.rs"]
mod trusted_proxy;
#[path = "gateway/upgrade.rs"]
mod upgrade;
#[path = "gateway/upstreams.rs"]
mod upstreams;
#[path = "gateway/usage.rs"]
mod usage;
#[path = "gateway/usage_report.rs"]
mod usage_report;
#[path = "gateway/vendor_matrix.rs"]
mod vendor_matrix;
#[path = "gateway/vendor_refusals.rs"]
mod vendor_refusals;
#[path = "gateway/vendor_tls.rs"]
mod vendor_tls;
#[path = "gateway/vendor_wire.rs"]
mod vendor_wire;
#[path = "gateway/vendors_test.rs"]
mod vendors_test;
#[path = "gateway/waiting.rs"]
mod waiting;
#[path = "gateway/world.rs"]
mod world;

/// Whether `GATEWAY_LONG=1` asks for the long variants.
fn is_long() -> bool {
    std::env::var("GATEWAY_LONG").is_ok_and(|value| value == "1")
}
