//! Measures the ledger alone, without HTTP: what an ending of a request costs in CPU time and in
//! bytes, for many accounts, keys and conversations, and at several sizes of the ledger.
//! `scripts/bench-ledger` builds and runs this.
//!
//! A thread feeds the billing service as the gateway does: it reserves credits, journals the
//! request's opening and ending, and queues the ending for the thread that writes the ledger. So
//! the process has three parts: the feeder, the writer, and what works behind it. Each row of the
//! table is one service, from its start to its end. At the end `verify` must find nothing, and the
//! ledger must have as many debits as were fed, of the same amount. Must not reach past the public
//! interface of the library, and must not compare wall-clock times: the machine may be busy.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods
)]

#[allow(dead_code, reason = "shared with the other benchmarks")]
mod accounts;
#[path = "ledger/feed.rs"]
mod feed;
#[allow(dead_code, reason = "shared with the other benchmarks")]
mod meter;
#[allow(dead_code, reason = "shared with the other benchmarks")]
mod rig;

use accounts::{Holder, Shape, Turns};
use base::clock;
use clap::Parser;
use config::catalog::CatalogModel;
use config::{FileChecks, Limits};
use feed::{Fed, Feeder, Pace};
use meter::{Reading, Spent, per_second, thousandth};
use model_gateway::billing::{AuditScope, Billing, CpuShare, CreditService, verify_accounts};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Share of one core that an audit from the operators' page uses, in percent.
const AUDIT_PERCENT: u32 = 30;

/// As in `main.rs`.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Measures the ledger alone: CPU time and bytes per ending, at several sizes.
#[derive(Parser)]
#[command(name = "ledger")]
pub struct Options {
    /// Number of accounts
    #[arg(long, default_value_t = 1_000, value_parser = positive)]
    accounts: u64,
    /// Number of keys of each account
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    keys: u64,
    /// Number of conversations at one time, of all accounts together
    #[arg(long, default_value_t = 20_000)]
    conversations: u64,
    /// Turns of a conversation, on average
    #[arg(long, default_value_t = 20, value_parser = positive)]
    turns: u64,
    /// Number of models, each with a price of its own
    #[arg(long, default_value_t = 8, value_parser = positive)]
    models: u64,
    /// Requests that are open at one time
    #[arg(long, default_value_t = 200, value_parser = positive)]
    open: u64,
    /// Sizes of the ledger, in endings, at which to measure; it grows to each unmeasured
    /// [default: the size that it has]
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<u64>,
    /// Number of endings to measure at each size [default: 50000]
    #[arg(long, value_parser = positive)]
    entries: Option<u64>,
    /// Time to measure at each size, in place of a number
    #[arg(long, conflicts_with = "entries", value_parser = positive)]
    seconds: Option<u64>,
    /// Endings per second [default: as many as the writer takes]
    #[arg(long, value_parser = positive)]
    rate: Option<u64>,
    /// Endings that may wait for the writer, without --rate
    #[arg(long, default_value_t = 8_192, value_parser = positive)]
    queue: u64,
    /// Audit the ledger again and again meanwhile, as slowly as the operators' page does
    #[arg(long)]
    audit: bool,
    /// Folder for the ledger, which stays: a later run goes on with it
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Do not audit the ledger at the end
    #[arg(long)]
    no_verify: bool,
    /// Seal all entries at the end, and measure that
    #[arg(long)]
    seal: bool,
}

fn positive(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

/// What the ledger must have at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Books {
    pub debits: u64,
    /// Credits of all accounts together, in µc.
    pub balance: i128,
}

#[allow(dead_code, reason = "a test calls `run`")]
fn main() {
    // Cargo adds this one.
    let arguments = std::env::args().filter(|argument| argument != "--bench");
    let (dir, books) = run(&Options::parse_from(arguments));
    println!(
        "\n{} debits in {}, each of its amount",
        books.debits,
        dir.path().display()
    );
}

/// The folder of the ledger, which may be removed at the end.
pub enum Folder {
    Kept(PathBuf),
    Passing(tempfile::TempDir),
}

impl Folder {
    pub fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Passing(dir) => dir.path(),
        }
    }
}

/// Measures, and audits the ledger. Returns its folder and what it must have.
pub fn run(options: &Options) -> (Folder, Books) {
    let folder = match &options.dir {
        Some(dir) => Folder::Kept(dir.clone()),
        None => Folder::Passing(tempfile::tempdir().unwrap()),
    };
    let dir = folder.path().to_owned();
    let size = |number: u64| usize::try_from(number).unwrap();
    let shape = Shape {
        accounts: size(options.accounts),
        keys: size(options.keys),
        conversations: size(options.conversations),
        turns: options.turns,
    };
    let holders = accounts::open_accounts(&dir, &shape);
    let mut books = Books {
        debits: debits(&dir),
        balance: accounts::total_balance(&dir),
    };
    let mut world = World {
        models: models(size(options.models)),
        turns: Turns::new(shape, books.debits),
        open: size(options.open),
        queue: options.queue,
        is_audited: options.audit,
        dir,
        holders,
    };
    println!("load average before: {}\n", meter::load_average());
    print_head();
    let mut sizes = options.sizes.clone();
    if sizes.is_empty() {
        sizes.push(books.debits);
    }
    let mut first = None;
    for size in sizes {
        if let Some(missing) = size.checked_sub(books.debits).filter(|count| *count > 0) {
            world.grow(missing, &mut books);
        }
        let row = world.measure(&pace(options), &mut books);
        row.print(*first.get_or_insert(row.ledger_ns()));
    }
    println!("\nload average after: {}", meter::load_average());
    if !options.no_verify {
        audit(&world.dir, &books).unwrap();
    }
    if options.seal {
        seal(&world.dir);
    }
    (folder, books)
}

fn pace(options: &Options) -> Pace {
    Pace {
        entries: match (options.entries, options.seconds) {
            (Some(entries), _) => entries,
            (None, Some(_)) => u64::MAX,
            (None, None) => 50_000,
        },
        time: options.seconds.map_or(Duration::MAX, Duration::from_secs),
        rate: options.rate,
    }
}

/// Number of debits in the ledger in `dir`: every entry but the one grant of each account.
fn debits(dir: &Path) -> u64 {
    let ledger = rusqlite::Connection::open(dir.join("ledger.db")).unwrap();
    let sql = "SELECT ifnull(max(seq), 0) - (SELECT count(*) FROM account) FROM entry";
    let count: i64 = ledger.query_row(sql, [], |row| row.get(0)).unwrap();
    u64::try_from(count).unwrap()
}

/// Models of the shipped config, and as many more as are needed, each with a price of its own.
fn models(count: usize) -> Vec<Arc<CatalogModel>> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.yaml");
    let mut text = rig::config(&dir.path().join("data"), [8_080, 8_081, 9_090, 9_100]);
    for number in 0..count {
        text.push_str(&format!(
            "  - id: beta-made-{number}\n    vendor: beta\n    upstream_model: gpt-5.2\n    \
             context_tokens: 400000\n    max_output_tokens: 128000\n    \
             price: {{input: \"{}\", cache_read: \"17.5\", output: \"1400\"}}\n",
            176 + number
        ));
    }
    std::fs::write(&file, text).unwrap();
    let settings = config::load(&file, FileChecks::Edge).unwrap();
    settings.catalog.models()[..count].to_vec()
}

/// The ledger's folder, and what requests are made of.
struct World {
    dir: PathBuf,
    holders: Vec<Holder>,
    models: Vec<Arc<CatalogModel>>,
    turns: Turns,
    open: usize,
    queue: u64,
    is_audited: bool,
}

impl World {
    fn serve(&self) -> CreditService {
        let billing = CreditService::serve(&self.dir, &Limits::default(), None).unwrap();
        billing
            .billing()
            .store_prices(&self.models, clock::now_ms())
            .unwrap();
        billing
    }

    fn feed(&mut self, billing: &CreditService, pace: &Pace, books: &mut Books) -> Fed {
        let feeder = Feeder {
            billing,
            holders: &self.holders,
            models: &self.models,
            open: self.open,
            queue: self.queue,
        };
        let fed = feed::feed(&feeder, &mut self.turns, pace);
        books.debits += fed.entries;
        books.balance -= fed.charged;
        fed
    }

    /// Enters endings without a look at their cost, in a service of their own: its last checkpoint
    /// must not count for the next row.
    fn grow(&mut self, entries: u64, books: &mut Books) {
        let billing = self.serve();
        let pace = Pace {
            entries,
            time: Duration::MAX,
            rate: None,
        };
        self.feed(&billing, &pace, books);
        meter::wait_until_it_rests(std::process::id());
        billing.shut_down();
    }

    fn measure(&mut self, pace: &Pace, books: &mut Books) -> Row {
        let (me, size) = (std::process::id(), books.debits);
        let billing = self.serve();
        meter::wait_until_it_rests(me);
        let (before, written) = (Reading::of(me), meter::written_bytes(me));
        let is_over = AtomicBool::new(!self.is_audited);
        let fed = std::thread::scope(|scope| {
            let auditor = scope.spawn(|| audit_until(&is_over, billing.billing()));
            let fed = self.feed(&billing, pace, books);
            is_over.store(true, Ordering::Relaxed);
            auditor.join().unwrap();
            fed
        });
        meter::wait_until_it_rests(me);
        let spent = Reading::of(me).since(&before);
        billing.shut_down();
        let written = meter::written_bytes(me) - written;
        Row {
            size,
            fed,
            spent,
            written,
            files: file_sizes(&self.dir),
            total: books.debits,
        }
    }
}

/// Audits the ledger again and again, until everything was fed.
fn audit_until(is_over: &AtomicBool, billing: &Billing) {
    let share = CpuShare::from_percent(AUDIT_PERCENT);
    while !is_over.load(Ordering::Relaxed) {
        let report = billing
            .verify_with_progress(clock::now_ms(), AuditScope::Unsealed, share, &mut |_| ())
            .unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
    }
}

/// Sizes of the ledger's files and folders, by name.
fn file_sizes(dir: &Path) -> BTreeMap<String, u64> {
    let mut sizes = BTreeMap::new();
    for file in std::fs::read_dir(dir).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        let bytes = if file.file_type().unwrap().is_dir() {
            file_sizes(&file.path()).values().sum()
        } else {
            file.metadata().unwrap().len()
        };
        sizes.insert(name, bytes);
    }
    // Accounts and keys are not the ledger's; indexes of logs are memory.
    sizes.retain(|name, _| !name.starts_with("app.db") && !name.ends_with("-shm"));
    sizes
}

/// What one number of endings has cost.
struct Row {
    /// Debits in the ledger before.
    size: u64,
    fed: Fed,
    spent: Spent,
    written: u64,
    files: BTreeMap<String, u64>,
    /// Debits in the ledger afterwards.
    total: u64,
}

fn print_head() {
    println!(
        "| size | entered | settled/s | writer µs | indexer µs | feeder µs | process µs \
         | ledger ÷ first | written B | kept B | p50 ms | p99 ms | feeder waited |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|---:|---:|---:|");
}

impl Row {
    /// CPU time per ending, without the feeder's: holds and journal.
    fn ledger_ns(&self) -> u64 {
        (self.process_ns() - self.fed.cpu_ns.min(self.process_ns())) / self.fed.entries
    }

    /// CPU time of the process without that of the thread that only watches.
    fn process_ns(&self) -> u64 {
        self.spent.process_ns.saturating_sub(self.fed.watch_ns)
    }

    fn print(&self, first_ns: u64) {
        let Fed {
            entries,
            time,
            waited,
            settle_us,
            ..
        } = &self.fed;
        let per_entry = |ns: u64| thousandth(ns / entries);
        let ratio = self.ledger_ns() * 100 / first_ns.max(1);
        let kept: Vec<_> = self
            .files
            .iter()
            .map(|(name, bytes)| (name, bytes / self.total.max(1)))
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(name, bytes)| format!("{name} {bytes}"))
            .collect();
        let settled = |percent| thousandth(meter::percentile(&mut settle_us.clone(), percent));
        println!(
            "| {} | {entries} | {} | {} | {} | {} | {} | {}.{:02} | {} | {} | {} | {} | {} % |",
            self.size,
            per_second(*entries, *time),
            per_entry(self.spent.writer_ns),
            per_entry(self.spent.indexer_ns),
            per_entry(self.fed.cpu_ns),
            per_entry(self.process_ns()),
            ratio / 100,
            ratio % 100,
            self.written / entries,
            kept.join(", "),
            settled(50),
            settled(99),
            waited.as_millis() * 100 / time.as_millis().max(1),
        );
    }
}

/// Seals all entries into one segment, reads it, and prints what that costs.
fn seal(dir: &Path) {
    let billing = Billing::open(dir).unwrap();
    let (mut bytes, mut entries) = (0, 0);
    let before = meter::own_cpu_ns();
    for segment in billing.upkeep().seal(None, u64::MAX).unwrap() {
        bytes += u64::try_from(segment.bytes).unwrap();
        entries += u64::try_from(segment.last - segment.first + 1).unwrap();
    }
    let sealed = meter::own_cpu_ns();
    for status in billing.upkeep().segments(true).unwrap() {
        assert_eq!(status.fault, None, "{}", status.segment.file);
    }
    let read = meter::own_cpu_ns();
    let per_entry = |ns: u64| thousandth(ns / entries.max(1));
    println!(
        "\nsealed {entries} entries: {} B, {} µs to seal and {} µs to check each",
        bytes / entries.max(1),
        per_entry(sealed - before),
        per_entry(read - sealed),
    );
}

/// Audits the ledger in `dir`.
///
/// # Errors
/// Returns how the ledger differs from the entries that the benchmark posted.
pub fn audit(dir: &Path, books: &Books) -> Result<(), String> {
    let billing = Billing::open(dir).unwrap();
    let report = billing.verify(clock::now_ms()).unwrap();
    let strange = verify_accounts(dir).unwrap();
    if let Some(finding) = report.findings.iter().chain(&strange).next() {
        return Err(format!("`verify` found {finding:?}"));
    }
    let found = Books {
        debits: report.debits,
        balance: accounts::total_balance(dir),
    };
    if found != *books {
        return Err(format!("the ledger has {found:?}, but was fed {books:?}"));
    }
    Ok(())
}
