//! Lists the scripts of the shared store. Each one runs as a single step, and begins with
//! `common.lua`.
//!
//! This file must not depend on the callers.

use ::redis::Script;

pub(crate) struct Scripts {
    pub reserve: Script,
    pub end: Script,
    pub post: Script,
    pub seed: Script,
    pub lapse: Script,
    pub visit: Script,
    pub expire: Script,
    pub server: Script,
    pub epoch: Script,
    pub restore: Script,
    pub spend: Script,
    pub status: Script,
    pub key: Script,
    pub ask: Script,
    pub keep: Script,
    pub free: Script,
    pub tidy: Script,
    pub probe: Script,
    pub clear: Script,
    pub poll: Script,
    pub publish: Script,
}

pub(crate) static SCRIPTS: std::sync::LazyLock<Scripts> = std::sync::LazyLock::new(|| {
    let (common, limits) = (include_str!("common.lua"), include_str!("limits.lua"));
    let script = |text: &str| Script::new(&format!("{common}{text}"));
    let limited = |text: &str| Script::new(&format!("{common}{limits}{text}"));
    let of_answers = |text: &str| script(&format!("{}{text}", include_str!("answers.lua")));
    Scripts {
        reserve: limited(include_str!("reserve.lua")),
        end: limited(include_str!("end.lua")),
        post: limited(include_str!("post.lua")),
        seed: script(include_str!("seed.lua")),
        lapse: limited(include_str!("lapse.lua")),
        visit: limited(include_str!("visit.lua")),
        expire: script(include_str!("expire.lua")),
        server: script(include_str!("server.lua")),
        epoch: script(include_str!("epoch.lua")),
        restore: limited(include_str!("restore.lua")),
        spend: limited(include_str!("spend.lua")),
        status: script(include_str!("status.lua")),
        key: script(include_str!("key.lua")),
        ask: script(include_str!("ask.lua")),
        keep: of_answers(include_str!("keep.lua")),
        free: script(include_str!("free.lua")),
        tidy: of_answers(include_str!("tidy.lua")),
        probe: script(include_str!("probe.lua")),
        clear: script(include_str!("clear.lua")),
        poll: script(include_str!("poll.lua")),
        publish: script(include_str!("publish.lua")),
    }
});
