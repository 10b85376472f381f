//! Tests of the whole program from outside: the built binary, simulated vendors, raw sockets, the
//! command line.
//!
//! Every test owns its world (data, ports, processes). The end of the world checks the money in the
//! ledger, whatever the test was about. A test must not reach into the library: it checks only
//! things that a client, an operator or a vendor can see.
//!
//! Read next: `world.rs`, then `client.rs`. `GATEWAY_LONG=1` runs the long
//! variants.

#![allow(
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods
)]

mod access;
mod account;
mod addresses;
mod admin;
mod administrator;
mod admission;
mod alerts;
mod aliases;
mod announced_bodies;
mod asked_once;
mod backlog;
mod base_address;
mod bodies;
mod books;
mod bystander;
mod chaos;
mod client;
mod clients;
mod coding;
mod command_line;
mod commands;
mod company;
mod completions;
mod config_file;
mod config_mistakes;
mod cors;
mod crash;
mod crowd;
mod cut_vendor;
mod damaged_files;
mod dead_edges;
mod disconnect;
mod disk;
mod edge_clocks;
mod endings;
mod estimates;
mod failover;
mod failure;
mod failure_table;
mod fallback;
mod fallback_reasoning;
mod fetches;
mod file_watch;
mod flood;
mod free_requests;
mod frozen_disk;
mod h2;
mod h2_conformance;
mod h2_faults;
mod h2_vendors;
mod h2_windows;
mod header_checks;
mod hostile;
mod idempotency;
mod index;
mod installs;
mod interleaved;
mod keep_alive;
mod keys_of_edges;
mod kills;
mod large_bodies;
mod learnt_profiles;
mod leaving;
mod life;
mod limits;
mod logins;
mod mail;
mod malformed;
mod media;
mod merges;
mod metered;
mod metrics;
mod migration;
mod money;
mod old_ledger;
mod open_pages;
mod operating;
mod operators_guide;
mod organisations;
mod overload;
mod overrun;
mod own;
mod pages;
mod panics;
mod partition;
mod payments;
mod people;
mod prices;
mod proxies;
mod races;
mod refused;
mod refused_members;
mod refusing_files;
mod reload;
mod repair;
mod responses;
mod responses_vendor;
mod revocation;
mod scripted;
mod scripted_vendor;
mod secrets;
mod segments;
mod sentinel;
mod server_tools;
mod shared;
mod shared_kills;
mod shutdown;
mod sidecar_away;
mod smuggling;
mod stale_replicas;
mod standby;
mod standby_disk;
mod standby_kills;
mod store_cluster;
mod store_faults;
mod store_tls;
mod strace;
mod stuck_readers;
mod supply_chain;
mod surface;
mod tenancy;
mod timing;
mod tls;
mod traces;
mod translation;
mod trusted_proxy;
mod upgrade;
mod upstreams;
mod usage;
mod usage_report;
mod vendor_matrix;
mod vendor_refusals;
mod vendor_tls;
mod vendor_wire;
mod vendors_test;
mod waiting;
mod world;

/// Whether `GATEWAY_LONG=1` asks for the long variants.
fn is_long() -> bool {
    std::env::var("GATEWAY_LONG").is_ok_and(|value| value == "1")
}
