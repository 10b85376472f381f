//! Mistakes in the config file with which the gateway would start and then fail, or serve the wrong
//! thing: `check` finds each of them, with its line and key.

use crate::config_file::{check, check_with, line_of, shipped};
use crate::world::{World, command_on};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use std::path::Path;

/// The first line at or after byte `at` that has the last part of this key.
fn line_of_key(text: &str, at: usize, key: &str) -> usize {
    let name = key.rsplit('.').next().unwrap();
    let name = format!("{}:", name.split('[').next().unwrap());
    let before = text[..at].matches('\n').count();
    let mut lines = text.lines().enumerate().skip(before);
    let found = lines.find(|(_, line)| line.contains(&name));
    found.map_or(0, |(index, _)| index + 1)
}

/// Checks that each of these edits of the shipped file is one fault, with its key, its line and
/// these words.
#[track_caller]
fn assert_faults(edits: &[(&str, &str, &str, &str)]) {
    for (from, to, key, words) in edits {
        assert!(shipped().contains(from), "{from}");
        let text = shipped().replacen(from, to, 1);
        let (code, output) = check(&text);
        let line = line_of_key(&text, text.find(to).unwrap(), key);
        let fault = output
            .lines()
            .find(|fault| fault.starts_with(&format!("FILE:{line}: {key}: ")));
        assert!(
            code == 64 && fault.is_some_and(|fault| fault.contains(words)),
            "{line}: {key}: {words} not in {output}"
        );
        assert!(output.contains(": 1 fault\n"), "{output}");
    }
}

#[test]
fn a_variable_written_as_other_programs_do_is_not_taken_literally() {
    let beta = "api_key: \"sim-beta-key\"";
    let url = "base_url: \"http://127.0.0.1:8080\"";
    assert_faults(&[
        (
            beta,
            "api_key: $BETA_API_KEY",
            "vendors.beta.api_key",
            "write ${NAME}",
        ),
        (
            beta,
            "api_key: \"{{BETA_API_KEY}}\"",
            "vendors.beta.api_key",
            "write ${NAME}",
        ),
        (
            beta,
            "api_key: \"%BETA_API_KEY%\"",
            "vendors.beta.api_key",
            "write ${NAME}",
        ),
        (
            beta,
            "api_key: os.environ/BETA_API_KEY",
            "vendors.beta.api_key",
            "write ${NAME}",
        ),
        (
            url,
            "base_url: \"https://$HOST\"",
            "base_url",
            "write ${NAME}",
        ),
        (
            "data_dir: \"data\"",
            "data_dir: $HOME/data",
            "data_dir",
            "write ${NAME}",
        ),
    ]);
    // The error never shows the value: it may be a password.
    let mail = "mail: {smtp: \"smtps://mail.example\", from: \"a $DAY <g@example.com>\", user: u, password: $ECRET_PASSWORD}\n";
    let (code, output) = check(&(shipped() + mail));
    assert!(
        code == 64 && output.contains("mail.password: names an") && output.contains(": 1 fault\n"),
        "{output}"
    );
    assert!(!output.contains("ECRET"), "{output}");
}

#[test]
fn the_public_url_and_the_address_of_a_vendor_are_base_addresses() {
    let url = "base_url: \"http://127.0.0.1:8080\"";
    let alpha = "endpoints: [{url: \"http://127.0.0.1:9100\"}]";
    assert_faults(&[
        (
            url,
            "base_url: \"https://gateway.example/v1\"",
            "base_url",
            "must not end in /v1, which clients add: use \"https://gateway.example\"",
        ),
        (
            url,
            "base_url: \"https://gateway.example/llm\"",
            "base_url",
            "must not have a path",
        ),
        (
            url,
            "base_url: \"https://\"",
            "base_url",
            "must have a host",
        ),
        (
            url,
            "base_url: \"https://gateway example\"",
            "base_url",
            "contains a space",
        ),
        (
            alpha,
            "endpoints: [{url: \"http://127.0.0.1:9100/v1/models\"}]",
            "vendors.alpha.endpoints[0].url",
            "is the address of another call (/v1/models): use \"http://127.0.0.1:9100/v1\"",
        ),
        (
            alpha,
            "endpoints: [{url: \"http://127.0.0.1:9100/v1/completions\"}]",
            "vendors.alpha.endpoints[0].url",
            "use \"http://127.0.0.1:9100/v1\"",
        ),
        (
            alpha,
            "endpoints: [{url: \"http://127.0.0.1:9100/v1/embeddings/\"}]",
            "vendors.alpha.endpoints[0].url",
            "is the address of another call",
        ),
        (
            alpha,
            "endpoints: [{url: \"http://:9100\"}]",
            "vendors.alpha.endpoints[0].url",
            "not an http:// or https:// base address",
        ),
    ]);
    let (code, output) = check(&shipped().replacen(
        alpha,
        "endpoints: [{url: \"http://127.0.0.1:9100/models\"}]",
        1,
    ));
    assert_eq!(code, 0, "the base address of some vendors: {output}");
}

#[test]
fn an_output_limit_fits_the_context_and_the_models() {
    assert_faults(&[(
        "max_output_tokens: 128000",
        "max_output_tokens: 400001",
        "models[3].max_output_tokens",
        "400001 is above context_tokens, which is 400000",
    )]);
    let with = |min: u64| check(&(shipped() + &format!("limits: {{min_output_tokens: {min}}}\n")));
    let small = shipped()
        .replace("max_output_tokens: 64000", "max_output_tokens: 100")
        .replace("max_output_tokens: 128000", "max_output_tokens: 100");
    for (text, code) in [("", 0), ("limits: {min_output_tokens: 101}\n", 64)] {
        let (found, output) = check(&format!("{small}{text}"));
        assert_eq!(found, code, "{output}");
        assert_eq!(
            output.contains("limits.min_output_tokens: 101 is above"),
            code == 64
        );
    }
    assert_eq!(with(100_000).0, 0, "two models have more");
}

#[test]
fn listeners_do_not_share_a_port() {
    assert_faults(&[
        (
            "sidecar: \"127.0.0.1:8081\"",
            "sidecar: \"127.0.0.1:8080\"",
            "listen.sidecar",
            "127.0.0.1:8080 is listed twice: it is listen.edge[0] too",
        ),
        (
            "sidecar: \"127.0.0.1:8081\"",
            "sidecar: \"0.0.0.0:8080\"",
            "listen.sidecar",
            "0.0.0.0:8080 is in use by listen.edge[0], which is 127.0.0.1:8080",
        ),
        (
            "edge: [\"127.0.0.1:8080\"]",
            "edge: [\"127.0.0.1:8080\", \"0.0.0.0:8080\"]",
            "listen.edge[1]",
            "0.0.0.0:8080 is in use by listen.edge[0]",
        ),
    ]);
    // With a shared store, the edge runs no sidecar: that address is of another machine.
    let shared = shipped()
        .replace("{kind: embedded}", "{kind: redis, url: \"redis://a\"}")
        .replace("edge: [\"127.0.0.1:8080\"]", "edge: [\"0.0.0.0:8080\"]")
        .replace("sidecar: \"127.0.0.1:8081\"", "sidecar: \"10.0.0.7:8080\"");
    let (code, output) = check(&shared);
    assert_eq!(code, 0, "{output}");
    let families = shipped().replace("edge: [", "edge: [\"[::]:8080\", ");
    assert_eq!(check(&families).0, 0, "IPv6 has ports of its own");
}

/// Writes a certificate and its key as `NAME.pem` and `NAME.key`.
fn certify(dir: &Path, name: &str, until: i32) {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    std::fs::write(dir.join(format!("{name}.pem")), certificate.pem()).unwrap();
    std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
}

#[test]
fn the_files_and_folders_that_the_config_names_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(path("file"), "x").unwrap();
    certify(dir.path(), "good", 2120);
    certify(dir.path(), "other", 2120);
    certify(dir.path(), "old", 2021);
    let tls = |cert: &str, key: &str| {
        let tls = format!(
            "listen:\n  tls: {{cert: {:?}, key: {:?}}}\n",
            path(cert),
            path(key)
        );
        shipped().replace("listen:\n", &tls)
    };
    let log = |log: &str| shipped() + &format!("access_log: {log:?}\n");
    let data = |data: &str| shipped().replace("data_dir: \"data\"", &format!("data_dir: {data:?}"));
    for (text, key, words) in [
        (tls("no.pem", "no.key"), "listen.tls.cert", "does not exist"),
        (
            tls("good.pem", "no.key"),
            "listen.tls.key",
            "does not exist",
        ),
        (
            tls("good.pem", "other.key"),
            "listen.tls.key",
            "does not belong to the certificate",
        ),
        (tls("good.key", "good.pem"), "listen.tls.cert", "swap"),
        (log(&path("no/a.log")), "access_log", "does not exist"),
        (log(&path("")), "access_log", "is a directory"),
        (data(&path("file")), "data_dir", "is a file"),
        (data(&path("file/data")), "data_dir", "is a file"),
        (data("/proc/data"), "data_dir", "belongs to the kernel"),
    ] {
        let (code, output) = check(&text);
        let line = line_of(&text, &format!("{}: ", key.split('.').next_back().unwrap()));
        assert!(
            code == 64 && output.contains(&format!("FILE:{line}: {key}: ")),
            "{key} {words}: {output}"
        );
        assert!(
            output.contains(words) && output.contains(": 1 fault\n"),
            "{output}"
        );
        // The config of another machine names files that this one does not have.
        let (code, output) = check_with(&text, &["--no-files"]);
        assert_eq!(code, 0, "{output}");
    }
    let secret = shipped().replace("\"sim-beta-key\"", "\"file:/nowhere/key\"");
    assert_eq!(check(&secret).0, 64);
    assert_eq!(check_with(&secret, &["--no-files"]).0, 0);
    for text in [
        tls("good.pem", "good.key"),
        log(&path("new.log")),
        log("stdout"),
        data(&path("a/b/data")),
    ] {
        let (code, output) = check(&text);
        assert!(code == 0 && !output.contains("warning"), "{output}");
    }
    assert!(!dir.path().join("a").exists() && !dir.path().join("new.log").exists());
    let expired = tls("old.pem", "old.key");
    let (code, output) = check(&expired);
    let line = line_of(&expired, "tls:");
    let warning = format!("FILE:{line}: listen.tls.cert: warning: the certificate expired at 2021");
    assert!(code == 0 && output.contains(&warning), "{output}");
    let (_, output) = check_with(&expired, &["--json"]);
    let report: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!(report["warnings"][0]["key"], "listen.tls.cert", "{report}");
}

#[test]
fn a_command_for_accounts_does_not_look_at_the_files_of_the_service() {
    let world = World::new();
    let text = std::fs::read_to_string(&world.config).unwrap();
    let elsewhere = world.config.with_file_name("elsewhere.yaml");
    let tls = "listen:\n  tls: {cert: /nowhere/cert.pem, key: /nowhere/key.pem}\n";
    let text = text.replace("listen:\n", tls) + "access_log: /nowhere/a.log\n";
    std::fs::write(&elsewhere, text).unwrap();
    for (command, code) in [
        (&["account", "list"][..], 0),
        (&["ledger", "verify"], 0),
        (&["check"], 64),
        (&["run"], 64),
    ] {
        let output = command_on(&elsewhere, command);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{command:?}: {text}");
        assert_eq!(text.contains("/nowhere/cert.pem"), code == 64, "{text}");
        assert_eq!(text.contains("/nowhere"), code == 64, "{text}");
    }
}

#[test]
fn slips_in_writing_are_named_in_plain_words() {
    let base = "base_url: \"http://127.0.0.1:8080\"";
    let edge = "  edge: [\"127.0.0.1:8080\"]";
    let limits = "store: {kind: embedded}";
    let with = |limit: &str| format!("{limits}\nlimits:\n  {limit}");
    let second = "base_url: \"http://b\"";
    let first_line = shipped().lines().position(|line| line == base).unwrap() + 1;
    let slips: [(&str, String, String); 15] = [
        (
            base,
            format!("{base}\n{second}"),
            format!("base_url: is set twice, first on line {first_line}: remove one"),
        ),
        (
            edge,
            "  edge: \"127.0.0.1:8080\"".into(),
            "listen.edge: must be a list, not a text; write it in brackets: [\"127.0.0.1:8080\"]"
                .into(),
        ),
        (
            base,
            format!("{base}\nauto_reload: \"yes\""),
            "auto_reload: must be true or false, not a text; write true or false, without quotes"
                .into(),
        ),
        (
            limits,
            with("body_bytes: 32MB"),
            "limits.body_bytes: must be a whole number, not a text; write the number of bytes: \
             33554432"
                .into(),
        ),
        (
            limits,
            with("idle_seconds: 10m"),
            "limits.idle_seconds: must be a whole number, not a text; write the number of \
             seconds: 600"
                .into(),
        ),
        (
            limits,
            with("attempts: 1.5"),
            "limits.attempts: must be a whole number, not a number; write it without a fraction"
                .into(),
        ),
        (
            "    upstream_model: gpt-5.2",
            "    upstream_model: 5.2".into(),
            "models[3].upstream_model: must be a text, not a number; write it in quotes".into(),
        ),
        (
            edge,
            "  edge: [\"localhost:8080\"]".into(),
            "listen.edge[0]: must be an IP address and a port, not \"localhost:8080\"; did you \
             mean \"127.0.0.1:8080\"?"
                .into(),
        ),
        (
            edge,
            "  edge: [\":8080\"]".into(),
            "listen.edge[0]: must be an IP address and a port, not \":8080\"; did you mean \
             \"0.0.0.0:8080\"?"
                .into(),
        ),
        (
            "  admin: \"127.0.0.1:9090\"",
            "  # no admin".into(),
            "listen.admin: is required, for example: \"127.0.0.1:9090\"".into(),
        ),
        (
            "api_key: \"sim-beta-key\"",
            "api_key: \"file:/nowhere/beta.key\"".into(),
            "vendors.beta.api_key: the file /nowhere/beta.key does not exist".into(),
        ),
        (
            "api_key: \"sim-beta-key\"",
            "api_key: \"sk-CANARY\\n\"".into(),
            "vendors.beta.api_key: contains a line break: remove it".into(),
        ),
        (
            "api_key: \"sim-beta-key\"",
            "api_key: {{BETA_API_KEY}}".into(),
            "{{ has no meaning here: write a variable as \"${NAME}\"".into(),
        ),
        (
            "output: \"2500\"}",
            "output: \"2500,5\"}".into(),
            "models[0].price.output: write 2500.5: a number with a point, without a sign".into(),
        ),
        (
            "output: \"2500\"}",
            "output: \"$1.5\"}".into(),
            "models[0].price.output: write 1.5: a number with a point, without a sign".into(),
        ),
    ];
    for (from, to, fault) in slips {
        // The key and the text.
        let (key, words) = fault.split_once(": ").unwrap();
        let (key, words) = match key.starts_with('{') {
            true => ("vendors.beta.api_key", fault.as_str()),
            false => (key, words),
        };
        assert!(shipped().contains(from), "{from}");
        let text = shipped().replacen(from, &to, 1);
        let at = text.find(&to).unwrap();
        // A key that is missing has the line of its section, and one that is set twice the second.
        let line = match key {
            "listen.admin" => line_of(&text, "listen:"),
            "base_url" => line_of_key(&text, at + to.len() - second.len(), key),
            _ => line_of_key(&text, at, key),
        };
        let (code, output) = check(&text);
        let expected = match fault.starts_with('{') {
            true => format!("FILE:{line}: {words}"),
            false => format!("FILE:{line}: {key}: {words}"),
        };
        assert!(
            code == 64 && output.contains(&expected) && output.contains(": 1 fault\n"),
            "{expected} not in {output}"
        );
    }
    let (_, output) = check(&shipped().replace("sim-beta-key", "sk-CANARY\\n"));
    assert!(!output.contains("CANARY"), "{output}");
    for empty in ["", "# nothing yet\n"] {
        let (code, output) = check(empty);
        let fault = "FILE:1: the file is empty: conf/gateway.yaml is an example";
        assert!(code == 64 && output.contains(fault), "{output}");
    }
    let tab = shipped().replace("  sidecar:", "\tsidecar:");
    let line = line_of(&tab, "\tsidecar:");
    let (code, output) = check(&tab);
    let fault = format!("FILE:{line}: uses a tab: indent with spaces");
    assert!(code == 64 && output.contains(&fault), "{output}");
    let nobody = command_on(Path::new("/nowhere/gateway.yaml"), &["check"]);
    assert_eq!(
        String::from_utf8_lossy(&nobody.stderr),
        "model-gateway: /nowhere/gateway.yaml: 1 fault\n/nowhere/gateway.yaml: the file \
         /nowhere/gateway.yaml does not exist\n"
    );
}

#[test]
fn a_number_that_no_key_can_hold_is_named_with_the_range_of_its_key() {
    let context = "context_tokens: 400000";
    assert_faults(&[
        (
            "max_output_tokens: 64000",
            "max_output_tokens: -1",
            "models[0].max_output_tokens",
            "must be 1 to 100000000, not -1",
        ),
        (
            context,
            "context_tokens: 99999999999999999999",
            "models[3].context_tokens",
            "must be 1 to 100000000, not 1e",
        ),
        (
            "store: {kind: embedded}",
            "limits:\n  attempts: -2",
            "limits.attempts",
            "must be 1 to 8, not -2",
        ),
        (
            "endpoints: [{url: \"http://127.0.0.1:9100\"}]",
            "endpoints: [{url: \"http://127.0.0.1:9100\", weight: 4294967296}]",
            "vendors.alpha.endpoints[0].weight",
            "must be 1 to 1000, not 4294967296",
        ),
        (
            "api_key: \"sim-beta-key\"",
            "api_key: \"${}\"",
            "vendors.beta.api_key",
            "lacks the name of an environment variable",
        ),
    ]);
    let (_, output) = check(&shipped().replace(context, "context_tokens: -1"));
    assert!(
        !output.contains("u64") && !output.contains("integer"),
        "{output}"
    );
}

#[test]
fn what_the_gateway_would_take_literally_or_drop_is_named() {
    let alpha = "endpoints: [{url: \"http://127.0.0.1:9100\"}]";
    let beta = "api_key: \"sim-beta-key\"";
    let url = "vendors.alpha.endpoints[0].url";
    assert_faults(&[
        (
            alpha,
            "endpoints: [{url: \"http://127.0.0.1:9100/v1/Chat/Completions\"}]",
            url,
            "use \"http://127.0.0.1:9100/v1\"",
        ),
        (
            alpha,
            "endpoints: [{url: \"http://127.0.0.1:9100/v1/Embeddings\"}]",
            url,
            "is the address of another call",
        ),
        (
            alpha,
            "endpoints: [{url: \"http://127.0.0.1:9100/v1#f\"}]",
            url,
            "use \"http://127.0.0.1:9100/v1\"",
        ),
        (
            "base_url: \"http://127.0.0.1:8080\"",
            "base_url: \"https://a$(id)\"",
            "base_url",
            "no DNS name or IP address",
        ),
        (
            "data_dir: \"data\"",
            "data_dir: \"~/data\"",
            "data_dir",
            "write the whole path",
        ),
        (
            beta,
            "api_key: \"Bearer sk-1\"",
            "vendors.beta.api_key",
            "write the key alone",
        ),
        (
            beta,
            "api_key: \"$(cat /k)\"",
            "vendors.beta.api_key",
            "which the gateway does not run",
        ),
        (
            beta,
            "api_key: \"FILE:/etc/key\"",
            "vendors.beta.api_key",
            "file: in lower case",
        ),
    ]);
    // A vendor that takes the whole header gets it.
    let whole = format!("{alpha}\n    auth: {{header: authorization}}");
    let text = shipped().replacen(alpha, &whole, 1);
    let text = text.replace("\"sim-alpha-key\"", "\"Basic YTpi\"");
    let (code, output) = check(&text);
    assert_eq!(code, 0, "{output}");
}

#[test]
fn a_misspelt_key_does_not_hide_other_faults() {
    let text = shipped()
        .replace(
            "listen:\n",
            "listen:\n  tls: {cert: /nowhere/cert.pem, key: /nowhere/key.pem}\n",
        )
        .replacen("max_output_tokens: 64000", "max_output_tokens: 640000", 1)
        .replacen("output: \"1500\"}", "output: \"-5\"}", 1)
        + "limits: {attempts: 99, body_byts: 3}\nsuport: x\n";
    let (code, output) = check(&text);
    assert_eq!(code, 64, "{output}");
    for key in [
        "listen.tls.cert",
        "models[0].max_output_tokens",
        "models[1].price.output",
        "limits.attempts",
        "limits.body_byts",
        "suport",
    ] {
        assert!(output.contains(&format!(" {key}: ")), "{key}: {output}");
    }
}
