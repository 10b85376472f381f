//! Starts the program by passing its arguments to `cli.rs`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    model_gateway::cli::main()
}
