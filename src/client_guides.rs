//! Guides for setting up client programs. A guide has the files, variables and commands that
//! connect a client to this gateway, with the models of a key and their limits.
//!
//! A guide is a template, `guides/ID.txt`, which an address and models fill in: the dashboard, the
//! documentation and `model-gateway clients` show the same texts. Key, address and model ids are
//! configured text, so `format.rs` escapes each for the language of its file. Only the `export`
//! line contains a key, and the client's own file if the client reads no variable. This module must
//! not do I/O or depend on a page. Next: `guide.rs` (the clients), `guide_text.rs` (what templates
//! can name), `claude_code.rs`, `usual_turn.rs` (what a turn costs), `tried.rs` (versions that ran
//! with these files).

mod claude_code;
mod format;
mod guide;
mod guide_text;
mod native;
mod setup;
#[cfg(test)]
mod tests;
mod tried;
mod usual_turn;

pub use guide::{ClientGuide, ClientKind, ModelRole, find_guide, guides};
use guide_text::GuideText;
pub use setup::{ClientSetup, KEY_VARIABLE, SetupContext, SetupFile, SetupKey, VariableValue};
pub use usual_turn::UsualTurn;

impl ClientGuide {
    pub fn build(&self, context: &SetupContext<'_>) -> ClientSetup {
        GuideText::new(self, context).build()
    }
}
