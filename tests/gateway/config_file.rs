//! The config file as an operator sees it: `check` reports every fault at once, each with its
//! place, and accepts the shipped files.

use crate::world::{SOON, World, binary, command_on, wait_until};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs `check` on a text; returns its exit code and its output.
pub fn check(text: &str) -> (i32, String) {
    check_with(text, &[])
}

/// Runs `check` with these options on a text; returns its exit code and its output.
pub fn check_with(text: &str, options: &[&str]) -> (i32, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.yaml");
    std::fs::write(&file, text).unwrap();
    let output = command_on(&file, &[&["check"], options].concat());
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    (
        output.status.code().unwrap(),
        said.replace(&file.display().to_string(), "FILE"),
    )
}

/// The shipped config, without the aliases of its models: tests choose their own.
pub fn shipped() -> String {
    let lines = include_str!("../../conf/local.yaml").lines();
    let lines = lines.filter(|line| !line.starts_with("    aliases:"));
    lines.map(|line| format!("{line}\n")).collect()
}

/// The number of the line that holds `text`.
pub fn line_of(file: &str, text: &str) -> usize {
    file.lines().position(|line| line.contains(text)).unwrap() + 1
}

#[test]
fn every_fault_is_named_at_once_with_file_line_and_key() {
    let text = shipped()
        .replace("trial_days: 7", "trial_days: soon")
        .replace(
            "    vendor: beta\n    upstream_model: gpt-5.2",
            "    vendor: gamma\n    upstream_model: gpt-5.2",
        )
        .replace("id: beta-5.5", "id: alpha-opus-4-7")
        .replace("admin: \"127.0.0.1:9090\"", "admin: \"nowhere\"")
        .replace("output: \"2500\"}", "output: \"-2500\"}")
        + "limits:\n  attempts: 99\n  idle_seconds: 0\n";
    let (code, said) = check(&text);
    assert_eq!(code, 64, "{said}");
    for (key, place) in [
        ("signup.trial_days", "trial_days: soon"),
        ("models[3].vendor", "vendor: gamma"),
        ("models[4].id", "id: beta-5.5"),
        ("listen.admin", "admin: \"nowhere\""),
        ("models[0].price.output", "output: \"-2500\""),
        ("limits.attempts", "attempts: 99"),
        ("limits.idle_seconds", "idle_seconds: 0"),
    ] {
        let line = match key {
            "models[4].id" => line_of(&shipped(), place),
            _ => line_of(&text, place),
        };
        assert!(
            said.contains(&format!("FILE:{line}: {key}: ")),
            "no {key} at line {line} in: {said}"
        );
    }
}

#[test]
fn every_fault_of_a_fallback_is_named_at_its_place() {
    let with = |ids: &str| {
        let model = "    upstream_model: gpt-5.2\n";
        check(&shipped().replace(model, &format!("{model}    fallback: [{ids}]\n")))
    };
    let most = [
        "beta-5.5",
        "alpha-opus-4-7",
        "alpha-sonnet-4-6",
        "alpha-haiku-4-5-20251001",
    ];
    assert_eq!(with(&most[..3].join(", ")).0, 0);
    for (ids, fault) in [
        (most.join(", "), "fallback: at most 3 models"),
        (
            "beta-5.5, nobody".into(),
            "fallback[1]: no model has the id \"nobody\"",
        ),
        (
            "beta-5.2".into(),
            "fallback[0]: \"beta-5.2\" would be tried twice",
        ),
        (
            "beta-5.5, beta-5.5".into(),
            "fallback[1]: \"beta-5.5\" would be tried twice",
        ),
    ] {
        let (code, said) = with(&ids);
        assert!(
            code == 64 && said.contains(&format!("models[3].{fault}")),
            "{said}"
        );
        assert!(said.contains("1 fault\n"), "{said}");
    }
}

#[test]
fn every_fault_of_an_endpoint_is_named_at_its_place() {
    let shipped = shipped();
    let one = "endpoints: [{url: \"http://127.0.0.1:9100\"}]";
    let check_path = "health_check: {path: no-slash, interval_seconds: 0, timeout_seconds: 61, fails_after: 101}";
    let two = format!(
        "endpoints:\n      - {{url: \"ftp://x\", weight: 0, max_concurrent: 65537}}\n      - {{url: \"http://x\", {check_path}}}"
    );
    let (code, said) = check(&shipped.replacen(one, &two, 1));
    assert_eq!(code, 64, "{said}");
    for key in [
        "[0].url",
        "[0].weight",
        "[0].max_concurrent",
        "[1].health_check.path",
        "[1].health_check.interval_seconds",
        "[1].health_check.timeout_seconds",
        "[1].health_check.fails_after",
    ] {
        assert!(
            said.contains(&format!("vendors.alpha.endpoints{key}: ")),
            "no {key} in: {said}"
        );
    }
    assert!(!said.contains("passes_after"), "{said}");
    let many = |count| {
        format!(
            "endpoints: [{}]",
            vec!["{url: \"http://127.0.0.1:9100\"}"; count].join(", ")
        )
    };
    assert_eq!(check(&shipped.replacen(one, &many(32), 1)).0, 0);
    let (code, said) = check(&shipped.replacen(one, &many(33), 1));
    assert!(
        code == 64 && said.contains("vendors.alpha.endpoints: "),
        "{said}"
    );
}

#[test]
fn what_is_wrong_with_a_vendor_or_a_name_is_said_with_what_is_allowed() {
    let beta = "endpoints: [{url: \"http://127.0.0.1:9100\"}]\n    api_key: \"sim-beta-key\"";
    let vendor = |keys: &str| shipped().replace(beta, &format!("{beta}\n    {keys}"));
    let instead = |keys: &str| {
        shipped().replace(
            &format!("protocol: chat\n    official: true\n    {beta}"),
            keys,
        )
    };
    let aliases = |opus: &str, haiku: &str| {
        let with = |text: String, id: &str, names: &str| {
            text.replace(
                &format!("  - id: {id}\n"),
                &format!("  - id: {id}\n    aliases: [{names}]\n"),
            )
        };
        with(
            with(shipped(), "alpha-opus-4-7", opus),
            "alpha-haiku-4-5-20251001",
            haiku,
        )
    };
    let misnamed = shipped().replace(
        "vendor: beta\n    upstream_model: gpt-5.5",
        "vendor: bata\n    upstream_model: gpt-5.5",
    );
    for (text, key, why) in [
        (
            vendor("preset: opnai"),
            "vendors.beta.preset",
            "Did you mean \"openai\"? Known: anthropic, azure-foundry",
        ),
        (vendor("preset: vertex"), "vendors.beta.preset", "OAuth"),
        (
            vendor("path: v1beta/chat"),
            "vendors.beta.path",
            "must begin with /",
        ),
        (
            vendor("path: /x?a=b"),
            "vendors.beta.path",
            "set it as `query:",
        ),
        (
            vendor("http_version: 3"),
            "vendors.beta.http_version",
            "expected one of: auto, 1, 2",
        ),
        (
            vendor("auth: bearr"),
            "vendors.beta.auth",
            "bearer, x-api-key, api-key, none; did you mean \"bearer\"?",
        ),
        (
            vendor("auth: {header: host}"),
            "vendors.beta.auth.header",
            "cannot carry the key",
        ),
        (
            vendor("auth: none"),
            "vendors.beta.api_key",
            "never sends it",
        ),
        (
            vendor("hedaers: {a: b}"),
            "vendors.beta.hedaers",
            "unknown key; did you mean \"headers\"? Known here:",
        ),
        (
            vendor("headers: {Authorization: b}"),
            "vendors.beta.headers.Authorization",
            "use `api_key` and `auth`",
        ),
        (
            vendor("headers: {Content-Length: \"1\"}"),
            "vendors.beta.headers.Content-Length",
            "is set by the gateway",
        ),
        (
            vendor("headers: {TE: trailers}"),
            "vendors.beta.headers.TE",
            "belongs to one connection",
        ),
        (
            vendor("headers: {x-a: \"\\n\"}"),
            "vendors.beta.headers.x-a",
            "contains a line break",
        ),
        (
            instead("api_key: a\n    endpoints: [{url: \"http://a\"}]"),
            "vendors.beta.protocol",
            "or name a `preset`",
        ),
        (
            instead("preset: openai"),
            "vendors.beta.api_key",
            "or `auth: none`",
        ),
        (
            instead("preset: azure-openai\n    api_key: a"),
            "vendors.beta.endpoints",
            "NAME.openai.azure.com",
        ),
        (
            instead(
                "preset: gemini\n    api_key: a\n    endpoints: [{url: \"http://a/b\", path: /c}]",
            ),
            "vendors.beta.endpoints[0].path",
            "`url` has a path too (/b)",
        ),
        (
            instead(
                "preset: openai\n    api_key: a\n    endpoints: [{url: \"https://a/v1/chat/completions\"}]",
            ),
            "vendors.beta.endpoints[0].url",
            "use \"https://a/v1\"",
        ),
        (
            instead("preset: openai\n    api_key: a\n    endpoints: [{url: \"https://a?b=c\"}]"),
            "vendors.beta.endpoints[0].url",
            "set it as `query:",
        ),
        (
            misnamed,
            "models[4].vendor",
            "no vendor is named \"bata\"; did you mean \"beta\"?",
        ),
        (
            aliases("best", "best"),
            "models[2].aliases[0]",
            "already an alias of \"alpha-opus-4-7\"",
        ),
        (
            aliases("\"alpha-*\"", ""),
            "models[0].aliases[0]",
            "also matches \"alpha-sonnet-4-6\"",
        ),
        (
            aliases("opus", "small").replacen(
                "vendor: beta\n",
                "vendor: beta\n    fallback: [opus]\n",
                1,
            ),
            "models[3].fallback[0]",
            "it is an alias of \"alpha-opus-4-7\"",
        ),
        (
            aliases("beta-5.2", ""),
            "models[0].aliases[0]",
            "is the id of models[3]",
        ),
        (
            aliases("\"a*b*\"", ""),
            "models[0].aliases[0]",
            "more than one *",
        ),
        (
            aliases("\"a b\"", ""),
            "models[0].aliases[0]",
            "must be 1 to 128 letters",
        ),
    ] {
        assert_ne!(text, shipped(), "{key}");
        let (code, said) = check(&text);
        let fault = said
            .lines()
            .find(|line| line.contains(&format!(": {key}: ")));
        assert!(
            code == 64 && fault.is_some_and(|fault| fault.contains(why)),
            "{key}: {why} in {said}"
        );
        assert!(said.contains(": 1 fault\n"), "{key}: {said}");
    }
    let odd = vendor("path: /answer").replace(
        "upstream_model: gpt-5.5",
        "upstream_model: gpt-5.5\n    upstream_protocol: responses",
    );
    let (code, said) = check(&odd);
    assert!(
        code == 64 && said.contains("models[4].upstream_protocol: cannot be used"),
        "{said}"
    );
    let (code, said) = check(&aliases(
        "best, \"claude-opus-*\"",
        "\"claude-*\", alpha-small",
    ));
    assert_eq!(
        code, 0,
        "patterns may overlap: the longer one counts: {said}"
    );
}

#[test]
fn a_days_budget_of_trials_suffices_for_one() {
    let with = |budget: &str| {
        shipped().replace(
            "trial_days: 7",
            &format!("trial_days: 7, trial_budget_per_day: \"{budget}\""),
        )
    };
    for enough in ["0", "300", "100000"] {
        let (code, said) = check(&with(enough));
        assert_eq!(code, 0, "{enough}: {said}");
    }
    for bad in ["299.999999", "-1", "many"] {
        let (code, said) = check(&with(bad));
        assert_eq!(code, 64, "{bad}: {said}");
        assert!(
            said.contains("signup.trial_budget_per_day"),
            "{bad}: {said}"
        );
    }
}

#[test]
fn unknown_and_missing_keys_and_unset_variables_are_named_at_once() {
    let text = shipped()
        .replace("data_dir: \"data\"\n", "")
        .replace(
            "api_key: \"sim-beta-key\"",
            "api_key: \"${GATEWAY_TEST_UNSET}\"",
        )
        .replace("output: \"3000\"}", "outputs: \"3000\"}")
        .replace(
            "max_output_tokens: 128000\n    price: {input: \"175\"",
            "max_output_tokens: many\n    price: {input: \"175\"",
        )
        + "colour: blue\n";
    let (code, said) = check(&text);
    assert_eq!(code, 64, "{said}");
    for word in [
        "data_dir",
        "GATEWAY_TEST_UNSET",
        "vendors.beta.api_key",
        "outputs",
        "output",
        "models[3].max_output_tokens",
        "colour",
    ] {
        assert!(said.contains(word), "no {word} in: {said}");
    }
    let line = line_of(&text, "colour");
    assert!(said.contains(&format!("FILE:{line}: ")), "{said}");
}

#[test]
fn an_unpriced_model_and_a_file_that_is_no_yaml_are_refused() {
    let unpriced = shipped().replace(
        "    price: {input: \"500\", cache_read: \"50\", output: \"3000\"}\n",
        "",
    );
    assert_ne!(unpriced, shipped());
    let (code, said) = check(&unpriced);
    assert!(
        code == 64 && said.contains("models[4]") && said.contains("price"),
        "{said}"
    );
    for broken in ["", "listen: [", "[]", "\t", "a: b: c"] {
        let (code, said) = check(broken);
        assert!(
            code == 64 && said.contains("FILE:"),
            "{broken:?}: {code} {said}"
        );
    }
    let output = command_on(Path::new("/nonexistent/gateway.yaml"), &["check"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent/gateway.yaml"));
}

#[test]
fn a_fault_stops_whoever_needs_its_section_with_64_and_never_prints_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.yaml");
    let text = shipped()
        .replace("sim-alpha-key", "sk-CANARY")
        .replace("sim-beta-key", "sk-CANARY\\u0007");
    std::fs::write(&file, text + "colour: blue\n").unwrap();
    for command in [&["run"][..], &["check"], &["vendors", "test"]] {
        let output = command_on(&file, command);
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(output.status.code(), Some(64), "{command:?}: {said}");
        assert!(
            said.contains("colour") && !said.contains("CANARY"),
            "{said}"
        );
    }
    assert!(!dir.path().join("data").exists());
    // Commands that read the ledger need the data directory and the store.
    let text = shipped().replace("store: {kind: embedded}", "store: {kind: paper}");
    std::fs::write(&file, text).unwrap();
    for command in [["account", "list"], ["ledger", "verify"], ["audit", "show"]] {
        let output = command_on(&file, &command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{command:?}: {said}");
        assert!(
            said.contains("store.kind") && !said.contains("CANARY"),
            "{said}"
        );
    }
}

#[test]
fn every_fault_of_a_price_list_is_named_at_its_place() {
    let list = r#"output: "500"
      audio_input: "1"
      web_search: "much"
      service_tier: {priority: "0", default: "1", Flex: "0.5", slow: "0.5"}
      tiers:
        - {above_input_tokens: 0, output: "1"}
        - {above_input_tokens: 9000, output: "-1"}
        - {above_input_tokens: 9000, output: "1"}
        - {above_input_tokens: 8000, outputs: "1"}
        - {above_input_tokens: 10000}
        - {above_input_tokens: 200000, input: "1"}
"#;
    let haiku = r#"price: {input: "100", cache_read: "10", cache_write_5m: "125", cache_write_1h: "200", output: "500"}"#;
    let in_block = |list: &str| {
        shipped().replace(
            haiku,
            &format!("price:\n      input: \"100\"\n      {}", list.trim_end()),
        )
    };
    let (code, said) = check(&in_block(list));
    assert_eq!(code, 64, "{said}");
    // `check` reports unknown keys first.
    let line = line_of(&in_block(list), "above_input_tokens: 8000");
    assert!(
        said.contains(&format!("FILE:{line}: models[2].price.tiers[3].outputs: ")),
        "{said}"
    );
    let text = in_block(&list.replace("outputs", "output"));
    let (code, said) = check(&text);
    assert_eq!(code, 64, "{said}");
    for (key, place) in [
        ("audio_input", "audio_input"),
        ("web_search", "web_search"),
        ("service_tier.priority", "priority: \"0\""),
        ("service_tier.default", "default: \"1\""),
        ("service_tier.Flex", "Flex:"),
        ("tiers[0].above_input_tokens", "above_input_tokens: 0,"),
        ("tiers[1].output", "output: \"-1\""),
        ("tiers[2].above_input_tokens", "9000, output: \"1\""),
        ("tiers[3].above_input_tokens", "above_input_tokens: 8000"),
        ("tiers[4]", "above_input_tokens: 10000"),
        ("tiers[5].above_input_tokens", "above_input_tokens: 200000"),
    ] {
        let line = line_of(&text, place);
        assert!(
            said.contains(&format!("FILE:{line}: models[2].price.{key}: ")),
            "no {key} at {line} in: {said}"
        );
    }
    assert!(!said.contains("slow"), "{said}");
    let empty = in_block("output: \"500\"\n      tiers: []");
    let (code, said) = check(&empty);
    assert!(
        code == 64 && said.contains("models[2].price.tiers: "),
        "{said}"
    );
    let whole = in_block(
        "output: \"500\"\n      tiers: [{above_input_tokens: 199999, output: \"700\"}]\n      web_search: \"1000\"",
    );
    let (code, said) = check(&whole);
    assert_eq!(code, 0, "{said}");
}

#[test]
fn a_store_is_named_in_exactly_one_way_and_its_faults_where_they_are() {
    let with = |store: &str| {
        check(&shipped().replace("store: {kind: embedded}", &format!("store: {store}")))
    };
    let seventeen = "\"redis://a:1\", ".repeat(17);
    let many = format!("{{kind: redis, sentinel: {{master: m, nodes: [{seventeen}]}}}}");
    for (store, key, why) in [
        (
            "{kind: embedded, url: \"redis://a\"}",
            "store",
            "no address",
        ),
        (
            "{kind: embedded, sentinel: {master: m, nodes: [\"redis://a\"]}}",
            "store",
            "no address",
        ),
        ("{kind: redis}", "store", "one of"),
        (
            "{kind: redis, url: \"redis://a\", cluster: [\"redis://b\"]}",
            "store",
            "one of",
        ),
        (
            "{kind: redis, url: \"redis://a\", sentinel: {master: m, nodes: [\"redis://b\"]}}",
            "store",
            "one of",
        ),
        ("{kind: redis, url: \"http://a\"}", "store.url", "redis://"),
        (
            "{kind: redis, url: \"redis://a\", reply_timeout_ms: 19}",
            "store.reply_timeout_ms",
            "20 to 1000, not 19",
        ),
        (
            "{kind: redis, url: \"redis://a\", reply_timeout_ms: 1001}",
            "store.reply_timeout_ms",
            "20 to 1000, not 1001",
        ),
        (
            "{kind: redis, sentinel: {master: m, nodes: []}}",
            "store.sentinel.nodes",
            "not 0",
        ),
        (&many, "store.sentinel.nodes", "not 17"),
        (
            "{kind: redis, sentinel: {master: m, nodes: [\"a:1\"]}}",
            "store.sentinel.nodes",
            "redis://",
        ),
        (
            "{kind: redis, sentinel: {master: m, nodes: [\"redis://a\", \"rediss://b\"]}}",
            "store.sentinel.nodes",
            "all or none",
        ),
        (
            "{kind: redis, sentinel: {master: \"\", nodes: [\"redis://a\"]}}",
            "store.sentinel.master",
            "name",
        ),
        (
            "{kind: redis, sentinel: {nodes: [\"redis://a\"]}}",
            "store.sentinel",
            "master",
        ),
        (
            "{kind: redis, sentinel: {master: m, nodes: [\"redis://a\"], colour: blue}}",
            "store.sentinel",
            "colour",
        ),
    ] {
        let (code, said) = with(store);
        assert!(
            code == 64 && said.contains(key) && said.contains(why),
            "{store}: {code} {said}"
        );
    }
    for store in [
        "{kind: redis, url: \"rediss://user:secret@a:6380/2\"}",
        "{kind: redis, cluster: [\"redis://a\", \"redis://b\"]}",
        "{kind: redis, sentinel: {master: m, nodes: [\"redis://a\", \"redis://b\"]}}",
        "{kind: redis, sentinel: {master: m, nodes: [\"rediss://a\"], user: u, password: CANARY, database: 3}}",
    ] {
        let (code, said) = with(store);
        assert!(
            code == 0 && !said.contains("CANARY"),
            "{store}: {code} {said}"
        );
    }
}

#[test]
fn a_proxy_is_an_address_or_a_network_and_never_everybody() {
    let with = |list: &str| {
        check(&shipped().replace("listen:\n", &format!("listen:\n  trust_proxy: [{list}]\n")))
    };
    for (list, place) in [
        ("\"10.0.0.0/8\", \"proxy.example\"", "[1]"),
        ("\"10.0.0.0/33\"", "[0]"),
        ("\"0.0.0.0/0\"", "[0]"),
        ("\"::/0\"", "[0]"),
        (&*"\"10.0.0.1\", ".repeat(257), ""),
    ] {
        let (code, said) = with(list);
        assert!(
            code == 64 && said.contains(&format!("listen.trust_proxy{place}: ")),
            "{list}: {code} {said}"
        );
    }
    for list in [
        "",
        "\"10.0.0.0/8\", \"2001:db8::7\", \"192.0.2.1\"",
        &*"\"10.0.0.1\", ".repeat(256),
    ] {
        let (code, said) = with(list);
        assert_eq!(code, 0, "{list}: {said}");
    }
}

#[test]
fn traces_have_a_plain_collector_and_a_share() {
    let with = |traces: &str| {
        check(&shipped().replace(
            "store:",
            &format!("telemetry: {{traces: {traces}}}\nstore:"),
        ))
    };
    for (traces, key) in [
        (
            "{endpoint: \"https://collector:4318/v1/traces\"}",
            "telemetry.traces.endpoint",
        ),
        (
            "{endpoint: \"collector:4318\"}",
            "telemetry.traces.endpoint",
        ),
        (
            "{endpoint: \"http://c:4318\", sample_ratio: \"1.000001\"}",
            "telemetry.traces.sample_ratio",
        ),
        (
            "{endpoint: \"http://c:4318\", sample_ratio: \"-0.1\"}",
            "telemetry.traces.sample_ratio",
        ),
        (
            "{endpoint: \"http://c:4318\", colour: blue}",
            "telemetry.traces.colour",
        ),
        ("{sample_ratio: \"1\"}", "telemetry.traces.endpoint"),
    ] {
        let (code, said) = with(traces);
        assert!(
            code == 64 && said.contains(&format!("{key}: ")),
            "{traces}: {code} {said}"
        );
    }
    for sample in ["0", "0.000001", "1"] {
        let (code, said) = with(&format!(
            "{{endpoint: \"http://[::1]:4318/v1/traces\", sample_ratio: \"{sample}\"}}"
        ));
        assert_eq!(code, 0, "{sample}: {said}");
    }
}

#[test]
fn mail_notifications_and_support_are_checked_and_a_password_is_never_printed() {
    let with = |section: &str| check(&format!("{}\n{section}\n", shipped()));
    let mail = |members: &str| {
        with(&format!(
            "mail: {{smtp: \"smtps://mail.example\", from: \"g@example.com\", {members}}}"
        ))
    };
    let (code, said) = mail("user: ann, password: hunter-two");
    assert!(code == 0 && !said.contains("hunter-two"), "{code} {said}");
    for (members, key) in [
        ("user: ann", "mail"),
        ("password: hunter-two", "mail"),
        ("user: \"\", password: hunter-two", "mail"),
        (
            "user: ann, password: \"file:/nowhere/password\"",
            "mail.password",
        ),
        ("per_hour: 0", "mail.per_hour"),
        ("per_hour: 100001", "mail.per_hour"),
        ("colour: blue", "mail.colour"),
    ] {
        let (code, said) = mail(members);
        assert!(
            code == 64 && said.contains(&format!("{key}: ")) && !said.contains("hunter-two"),
            "{members}: {code} {said}"
        );
    }
    let long = format!("support: \"{}\"", "x".repeat(201));
    for (section, key) in [
        ("mail: {from: \"g@example.com\"}", "mail.smtp"),
        ("mail: {smtp: \"smtps://mail.example\"}", "mail.from"),
        (
            "mail: {smtp: \"smtp+plain://mail.example\", from: \"g@example.com\"}",
            "mail.smtp",
        ),
        (
            "mail: {smtp: \"smtps://ann:hunter-two@mail.example\", from: \"g@example.com\"}",
            "mail.smtp",
        ),
        (
            "mail: {smtp: \"smtps://mail.example\", from: gateway}",
            "mail.from",
        ),
        (
            "notifications: {private_networks: [\"0.0.0.0/0\"]}",
            "notifications.private_networks[0]",
        ),
        (
            "notifications: {private_networks: [\"10.0.0.0/8\", \"here\"]}",
            "notifications.private_networks[1]",
        ),
        ("notifications: {webhook: true}", "notifications.webhook"),
        (long.as_str(), "support"),
        ("support: \"two\\nlines\"", "support"),
        ("support: \"https://example.com/a b\"", "support"),
    ] {
        let (code, said) = with(section);
        assert!(
            code == 64 && said.contains(&format!("{key}: ")) && !said.contains("hunter-two"),
            "{section}: {code} {said}"
        );
    }
    for section in [
        "mail: {smtp: \"smtp+plain://[::1]:2525\", from: \"Gateway <g@example.com>\", per_hour: 100000, verify_sign_ups: true}",
        "notifications: {webhooks: false, private_networks: [\"10.0.0.0/8\", \"fd00::/8\"]}",
        "support: \"Ask Ann, room 4\"",
        "support: \"mailto:ann@example.com\"",
    ] {
        let (code, said) = with(section);
        assert_eq!(code, 0, "{section}: {said}");
    }
}

#[test]
fn every_shipped_file_loads() {
    let conf = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("conf");
    let mut count = 0;
    for entry in std::fs::read_dir(conf).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let check = |keys: bool| {
            let mut command = Command::new(binary());
            command
                .args(["check", "-c"])
                .arg(&file)
                .env_remove("ALPHA_API_KEY")
                .env_remove("BETA_API_KEY");
            if keys {
                command
                    .env("ALPHA_API_KEY", "sk-one")
                    .env("BETA_API_KEY", "sk-two");
            }
            command.arg("--json").output().unwrap()
        };
        let output = check(true);
        assert!(
            output.status.success(),
            "{}: {}",
            file.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(said["models"].as_array().unwrap().len(), 5, "{said}");
        if file.ends_with("gateway.yaml") {
            assert_eq!(
                check(false).status.code(),
                Some(64),
                "without any vendor there is no model to serve"
            );
        }
        count += 1;
    }
    assert!(count >= 2);
}

#[test]
fn a_vendor_with_an_empty_key_is_switched_off() {
    let (code, said) = check(&shipped().replace("\"sim-beta-key\"", "\"${GATEWAY_TEST_UNSET:-}\""));
    assert_eq!(code, 0, "{said}");
    let (served, skipped) = said.split_once("vendor beta is skipped").unwrap();
    assert!(
        served.contains("alpha-opus-4-7") && !served.contains("beta-5"),
        "{said}"
    );
    assert!(skipped.contains("not served: beta-5.2, beta-5.5"), "{said}");
}

#[test]
fn the_schema_is_json_and_names_every_key_of_the_shipped_file() {
    let output = Command::new(binary()).arg("schema").output().unwrap();
    assert!(output.status.success());
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(schema["$schema"].is_string());
    let text = schema.to_string();
    for line in include_str!("../../conf/gateway.yaml").lines() {
        let key = line
            .trim_start()
            .trim_start_matches("- ")
            .split(':')
            .next()
            .unwrap();
        let names_nothing =
            key.is_empty() || key.starts_with(['#', '{']) || matches!(key, "alpha" | "beta");
        assert!(
            names_nothing || text.contains(&format!("\"{key}\"")),
            "the schema has no {key:?}"
        );
    }
}

#[test]
fn commands_work_before_the_gateway_first_ran_and_beside_it() {
    let (mut world, account) = World::with_account();
    world.kill();
    let fresh = world.account_with("before@example.test", &[]);
    assert_eq!(world.shown(&fresh).balance, 300_000_000);
    world.start_gateway();
    wait_until("both keys to work", SOON, || {
        [&account, &fresh]
            .iter()
            .all(|account| world.standing(account).balance == 300_000_000)
    });
    let twice = world.command(&["account", "create", "--email", "before@example.test"]);
    assert_eq!(twice.status.code(), Some(1));
    let shown = world.json(&["account", "show", "before@example.test"]);
    assert_eq!(shown["account_id"], fresh.id.as_str());
    assert_eq!(shown["trial"]["active"], true);
    assert_eq!(shown["status"], "active");
    let keys = world.json(&["key", "list", "--account", &fresh.id]);
    assert_eq!(keys.as_array().unwrap().len(), 1);
    assert!(
        !keys.to_string().contains(&fresh.key),
        "a key is shown once"
    );
}
