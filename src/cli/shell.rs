//! Implements `model-gateway completions` and `model-gateway man`, which describe the commands to
//! shells and `man`.
//!
//! Both outputs are generated from the definition of the command line. This file must not depend on
//! a command.

use anyhow::Context as _;
use clap::Command;
use clap_complete::Shell;
use std::io::Write;
use std::path::Path;

/// Prints the completion script of a shell.
///
/// # Errors
/// Returns an error if stdout cannot be written.
pub fn print_completions(mut command: Command, shell: Shell) -> anyhow::Result<()> {
    // The library panics if it cannot write, so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "model-gateway", &mut script);
    if shell == Shell::Bash {
        // The library (4.6.11) gives a program with a dash two names, and its script then completes
        // nothing.
        let text = String::from_utf8(script).context("the completion script is not text")?;
        script = text
            .replace("model__subcmd__gateway", "model__gateway")
            .into_bytes();
    }
    std::io::stdout()
        .lock()
        .write_all(&script)
        .context("cannot write to stdout")
}

/// Prints the manual page, or writes it and one page per command into `dir`.
///
/// # Errors
/// Returns an error if stdout or the directory cannot be written.
pub fn write_manual(command: Command, dir: Option<&Path>) -> anyhow::Result<()> {
    let Some(dir) = dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        return std::io::stdout()
            .lock()
            .write_all(&page)
            .context("cannot write to stdout");
    };
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(command, dir))
        .with_context(|| format!("cannot write manual pages to {}", dir.display()))
}
