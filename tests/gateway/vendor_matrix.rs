//! The matrix: every surface, every vendor, whole and streamed, each kind of conversation. It
//! judges what the vendor gets, what the client gets and what is billed.
//!
//! The vendors are the simulator's profiles (`crates/vendor-simulator/dialects/`). They are written
//! from the vendors' SDKs and docs, never from the gateway's presets. A new vendor is a row there
//! and a preset; nothing here names one. `docs/vendors.md` has the outcome as a table, and must be
//! equal.
//!
//! `VENDOR_MATRIX=print` prints that table; `VENDOR_MATRIX=mistral` runs one vendor.

mod cells;
mod protocol;
mod table;

use crate::account::{Account, micro};
use crate::client::Connection;
use crate::world::{Plan, SOON, Simulator, World, vendor_url, wait_for};
use cells::{Cell, KINDS, Outcome};
use protocol::SURFACES;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const DIALECTS: &str = include_str!("../../crates/vendor-simulator/dialects/dialects.json");
const PRESETS: &str = include_str!("../../crates/config/src/presets.yaml");
/// Vendors that the simulator plays without a profile: those that defined the protocols.
const OFFICIAL: [(&str, &str); 2] = [("anthropic", "claude-sonnet-4-6"), ("openai", "gpt-5.5")];
const CLIENTS: usize = 6;
/// Variable that prints the table or selects a vendor.
const SWITCH: &str = "VENDOR_MATRIX";

/// A vendor of the matrix.
pub struct Vendor {
    pub preset: String,
    model: String,
    has_profile: bool,
    /// Whether the vendor says how many tokens came from its cache.
    pub reports_cached: bool,
    /// Whether it ever shows what the model thinks.
    pub shows_thinking: bool,
}

impl Vendor {
    /// The public name of its model.
    pub fn model(&self) -> String {
        self.model_for("m")
    }

    /// The public name of the same model at an endpoint for another purpose.
    pub fn model_for(&self, purpose: &str) -> String {
        format!("{purpose}-{}", self.preset)
    }
}

/// The vendors of the matrix.
pub fn vendors() -> Vec<Vendor> {
    let presets = |name: &str| PRESETS.contains(&format!("\n  {name}:\n"));
    let official = OFFICIAL.map(|(preset, model)| Vendor {
        preset: preset.to_owned(),
        model: model.to_owned(),
        has_profile: false,
        reports_cached: true,
        shows_thinking: true,
    });
    let dialects: BTreeMap<String, Value> = serde_json::from_str(DIALECTS).unwrap();
    let profiles = dialects.iter().filter(|(name, _)| presets(name));
    let profiles = profiles.map(|(name, dialect)| Vendor {
        preset: name.clone(),
        model: dialect["model"].as_str().unwrap().to_owned(),
        has_profile: true,
        reports_cached: dialect["answer"]["cached"] != "absent",
        shows_thinking: dialect["thinking"]["default"] == true
            || dialect["thinking"]["on"].is_object(),
    });
    let mut vendors: Vec<Vendor> = official.into_iter().chain(profiles).collect();
    vendors.sort_by(|one, other| one.preset.cmp(&other.preset));
    vendors
}

/// What an endpoint is for: a failure of one must not keep requests from another.
const PURPOSES: [&str; 5] = ["m", "f", "r0", "r1", "r2"];

/// Starts a gateway that knows each vendor by its preset only.
pub fn start(vendors: &[Vendor], simulator: &Simulator) -> World {
    let (mut entries, mut models) = (String::new(), String::new());
    let [fresh, cached, output] = cells::PRICES.map(|price| price.to_string());
    for vendor in vendors {
        let Vendor {
            preset,
            model,
            has_profile,
            ..
        } = vendor;
        let block = PRESETS.split(&format!("\n  {preset}:\n")).nth(1).unwrap();
        let block = block
            .split("\n  ")
            .take_while(|line| line.starts_with(' '))
            .collect::<String>();
        let key = if block.contains("auth: none") {
            ""
        } else {
            "api_key: sim-key, "
        };
        let path = if *has_profile {
            format!("/as/{preset}")
        } else {
            String::new()
        };
        let url = format!("{}{path}", vendor_url(simulator.port));
        for purpose in PURPOSES {
            let id = vendor.model_for(purpose);
            entries.push_str(&format!(
                "  {id}: {{preset: {preset}, {key}endpoints: [{{url: \"{url}\"}}]}}\n"
            ));
            models.push_str(&format!(
                "  - {{id: {id}, vendor: {id}, upstream_model: \"{model}\", context_tokens: 200000, max_output_tokens: 8192, \
                 price: {{input: \"{fresh}\", cache_read: \"{cached}\", output: \"{output}\"}}}}\n"
            ));
        }
    }
    Plan::default()
        .edit("models:\n", &format!("{entries}models:\n{models}"))
        .limit("breaker_failures", 0)
        .limit("retry_budget_min", 0)
        .limit("retry_budget_percent", 0)
        .start()
}

#[test]
fn every_surface_speaks_to_every_vendor_as_the_table_says() {
    let switch = std::env::var(SWITCH).unwrap_or_default();
    let vendors = vendors();
    let simulator = Simulator::start(None);
    let world = start(&vendors, &simulator);
    let account = world.funded(1_000_000_000_000);
    let mut cells = Vec::new();
    for (index, vendor) in vendors.iter().enumerate() {
        let before = &vendors[(index + vendors.len() - 1) % vendors.len()];
        let is_wanted = switch.is_empty() || switch == "print" || switch == vendor.preset;
        for surface in SURFACES.into_iter().filter(|_| is_wanted) {
            for kind in KINDS {
                for stream in [false, true] {
                    cells.push(Cell {
                        vendor,
                        before,
                        surface,
                        kind,
                        stream,
                    });
                }
            }
        }
    }
    assert!(!cells.is_empty(), "{SWITCH}: no vendor is called {switch}");
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut connection = Connection::open(world.edge);
                while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = cell.run(&mut connection, &account.key);
                    outcomes.lock().unwrap().push((cell, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap();
    let billed = billed(&world, &account, &outcomes);
    for (_, outcome) in &mut outcomes {
        outcome.check_bills(&billed);
    }
    let red: Vec<String> = outcomes
        .iter()
        .flat_map(|(cell, outcome)| {
            outcome
                .problems
                .iter()
                .map(move |problem| format!("{cell}: {problem}"))
        })
        .collect();
    world.close();
    assert!(
        red.is_empty(),
        "{} of {} cells:\n{}",
        red.len(),
        cells.len(),
        red.join("\n")
    );
    if switch == "print" {
        println!("{}", table::render(&vendors, &outcomes));
    } else if switch.is_empty() {
        table::check(&vendors, &outcomes);
    }
}

/// What the ledger has for each request, in µc.
fn billed(
    world: &World,
    account: &Account,
    outcomes: &[(&Cell<'_>, Outcome)],
) -> BTreeMap<String, i64> {
    let ids = outcomes.iter().flat_map(|(_, outcome)| &outcome.bills);
    let ids: Vec<&String> = ids.map(|(id, _)| id).collect();
    wait_for("every request to end", SOON, || {
        let endings = world.endings(account);
        let billed: BTreeMap<String, i64> = endings
            .iter()
            .map(|ending| {
                let id = ending["request_id"].as_str().unwrap().to_owned();
                (id, micro(&ending["credits"]))
            })
            .collect();
        ids.iter()
            .all(|id| billed.contains_key(*id))
            .then_some(billed)
    })
}
