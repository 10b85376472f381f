//! Every file of every guide parses, names the models of the key and no other, and has the limits
//! of the catalog.

mod claude_code;

use super::format::{quoted, shell_word};
use super::setup::{FileFormat, prompt_tokens};
use super::tried::ClientTrial;
use super::*;
use config::catalog::CatalogModel;
use credits::price_list::PriceList;
use llm_protocol::Protocol;
use serde_json::Value;
use std::process::Command;
use std::sync::Arc;

/// Model ids that a format could take for something else, all valid in the config.
const AWKWARD_IDS: [&str; 5] = ["no", "1.0", "vendor/model:free@v2", "0x1F", "a--b.c_d"];

/// An address that only quoting makes harmless.
const HOSTILE_URL: &str = "https://gw.example:8443/'\"\\$(id)`id`<b>\n{{x}} #";

fn price() -> PriceList {
    let settings = config::parse(include_str!("../../conf/local.yaml"), &|_| None).unwrap();
    PriceList::clone(&settings.catalog.models()[0].price)
}

fn model(id: &str, protocol: Protocol, context: u64, output: u64) -> Arc<CatalogModel> {
    Arc::new(CatalogModel {
        id: id.to_owned(),
        context_tokens: context,
        max_output_tokens: output,
        ..CatalogModel::in_test(protocol, price())
    })
}

/// One model per protocol, with limits that no client assumes.
fn models() -> Vec<Arc<CatalogModel>> {
    vec![
        model("alpha-opus", Protocol::Messages, 210_001, 64_003),
        model("beta-mini", Protocol::Chat, 1_500_007, 90_011),
        model("gamma-o", Protocol::Responses, 70_013, 8_017),
    ]
}

fn build_with(
    guide: &ClientGuide,
    base_url: &str,
    key: SetupKey,
    models: Vec<Arc<CatalogModel>>,
    chosen: Option<&str>,
) -> ClientSetup {
    let context = SetupContext::new(base_url, key, models, chosen, guide).unwrap();
    guide.build(&context)
}

fn build(id: &str, chosen: &str) -> ClientSetup {
    let guide = find_guide(id).unwrap();
    let key = SetupKey::in_environment();
    build_with(guide, "https://gw.example", key, models(), Some(chosen))
}

/// Fails if an interpreter finds a fault in the syntax of one of these texts. It runs nothing.
fn check_syntax(program: &str, arguments: &[&str], texts: &[String]) {
    let folder = tempfile::tempdir().unwrap();
    let files = texts.iter().enumerate().map(|(index, text)| {
        let file = folder.path().join(format!("{index}.txt"));
        std::fs::write(&file, text).unwrap();
        file
    });
    let files: Vec<_> = files.collect();
    let run = Command::new(program).args(arguments).args(&files).output();
    let run = run.unwrap_or_else(|error| panic!("{program}: {error}"));
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{program}: {errors}\n{texts:#?}");
}

fn check_shell(texts: &[String]) {
    let each = "for file; do sh -n \"$file\" || exit 1; done";
    check_syntax("sh", &["-c", each, "sh"], texts);
}

fn check_python(texts: &[String]) {
    let each = "import ast, sys\nfor file in sys.argv[1:]: ast.parse(open(file).read())";
    check_syntax("python3", &["-c", each], texts);
}

/// Parses a file in its own language. Null for programs, whose syntax `check_…` checks.
fn parse(file: &SetupFile) -> Value {
    let text = &file.text;
    match file.format {
        FileFormat::Json => serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}\n{text}")),
        FileFormat::Toml => basic_toml::from_str(text).unwrap_or_else(|e| panic!("{e}\n{text}")),
        FileFormat::Yaml => serde_saphyr::from_str(text).unwrap_or_else(|e| panic!("{e}\n{text}")),
        FileFormat::Shell | FileFormat::Python | FileFormat::JavaScript => Value::Null,
    }
}

#[test]
fn each_guide_has_an_id_of_its_own_that_fits_an_address() {
    let mut ids: Vec<_> = guides().map(|guide| guide.id).collect();
    let plain = |id: &&str| {
        id.bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    assert!(ids.iter().all(plain), "{ids:?}");
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
    for id in ids {
        assert_eq!(find_guide(id).unwrap().id, id);
    }
    assert!(find_guide("../etc/passwd").is_none());
    for kind in ClientKind::ALL {
        assert!(guides().any(|guide| guide.kind == kind), "{kind:?}");
    }
}

#[test]
fn every_file_parses_whatever_the_address_the_key_and_the_model_are_called() {
    let mut awkward = models();
    awkward.extend(AWKWARD_IDS.map(|id| model(id, Protocol::Chat, 70_001, 7_001)));
    let keys = [
        SetupKey::in_environment(),
        SetupKey::with_text("gw-sk-'\"$(id)"),
    ];
    let (mut shell, mut python) = (Vec::new(), Vec::new());
    for guide in guides() {
        for key in &keys {
            for chosen in &awkward {
                let (models, id) = (awkward.clone(), Some(&*chosen.id));
                let setup = build_with(guide, HOSTILE_URL, key.clone(), models, id);
                shell.push(setup.terminal(key));
                shell.extend(setup.instead_of_files);
                for file in setup.files {
                    parse(&file);
                    match file.format {
                        FileFormat::Shell => shell.push(file.text),
                        FileFormat::Python => python.push(file.text),
                        _ => {}
                    }
                }
            }
        }
    }
    for texts in [&mut shell, &mut python] {
        texts.sort();
        texts.dedup();
    }
    check_shell(&shell);
    check_python(&python);
}

/// All texts in a JSON value, names of members included.
fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(members) => {
            for (name, member) in members {
                found.push(name.clone());
                texts(member, found);
            }
        }
        _ => {}
    }
}

#[test]
fn a_hostile_address_arrives_unchanged_in_files_and_in_the_shell() {
    for guide in guides() {
        let key = SetupKey::in_environment();
        let setup = build_with(guide, HOSTILE_URL, key, models(), None);
        let mut found = Vec::new();
        for file in &setup.files {
            texts(&parse(file), &mut found);
        }
        let addresses = found.iter().filter(|text| text.contains("gw.example"));
        for address in addresses {
            assert!(address.starts_with(HOSTILE_URL), "{}: {address}", guide.id);
        }
    }
    let echo = format!("printf %s {}", shell_word(HOSTILE_URL));
    let run = Command::new("sh").args(["-c", &echo]).output().unwrap();
    assert_eq!(String::from_utf8(run.stdout).unwrap(), HOSTILE_URL);
}

/// Guides whose files list every model, not only the chosen one.
const LISTS_ALL_MODELS: [&str; 9] = [
    "claude-code",
    "opencode",
    "aider",
    "continue",
    "qwen-code",
    "pi",
    "vscode",
    "zed",
    "llm",
];

#[test]
fn files_list_each_model_of_a_restricted_key_and_no_other() {
    let all = models();
    for id in LISTS_ALL_MODELS {
        let guide = find_guide(id).unwrap();
        for left_out in 0..all.len() {
            let mut allowed = all.clone();
            let missing = allowed.remove(left_out);
            let key = SetupKey::in_environment();
            let setup = build_with(guide, "https://gw.example", key, allowed.clone(), None);
            let text: String = setup.files.iter().map(|file| file.text.as_str()).collect();
            for model in &allowed {
                assert!(text.contains(&model.id), "{id} leaves out {}", model.id);
            }
            assert!(!text.contains(&missing.id), "{id} lists {}", missing.id);
        }
    }
}

/// Numbers below a JSON value by the name of their member.
fn numbers(value: &Value, name: &str, found: &mut Vec<u64>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| numbers(item, name, found)),
        Value::Object(members) => {
            for (member, value) in members {
                let text = value.as_str().and_then(|text| text.parse().ok());
                if member == name {
                    found.extend(value.as_u64().or(text));
                }
                numbers(value, name, found);
            }
        }
        _ => {}
    }
}

#[test]
fn limits_in_the_files_equal_the_catalog() {
    // (client, member with the context, member with the output limit)
    let members = [
        ("opencode", "context", "output"),
        ("aider", "max_input_tokens", "max_output_tokens"),
        ("continue", "contextLength", "maxTokens"),
        ("qwen-code", "contextWindowSize", "max_tokens"),
        ("pi", "contextWindow", "maxTokens"),
        ("zed", "max_tokens", "max_output_tokens"),
    ];
    for (id, context, output) in members {
        let setup = build(id, "alpha-opus");
        let (mut contexts, mut outputs) = (Vec::new(), Vec::new());
        for file in &setup.files {
            let value = parse(file);
            numbers(&value, context, &mut contexts);
            numbers(&value, output, &mut outputs);
        }
        contexts.sort_unstable();
        outputs.sort_unstable();
        assert_eq!(contexts, [70_013, 210_001, 1_500_007], "{id}");
        assert_eq!(outputs, [8_017, 64_003, 90_011], "{id}");
    }
    let mut prompts = Vec::new();
    numbers(
        &parse(&build("vscode", "alpha-opus").files[0]),
        "maxInputTokens",
        &mut prompts,
    );
    prompts.sort_unstable();
    assert_eq!(prompts, [61_996, 145_998, 1_409_996], "context less output");
}

#[test]
fn codex_compacts_at_nine_tenths_of_the_context_of_its_model() {
    for model in models() {
        for id in ["codex", "codex-chat"] {
            let config = parse(&build(id, &model.id).files[0]);
            assert_eq!(config["model"], *model.id);
            assert_eq!(config["model_context_window"], model.context_tokens);
            let compact = config["model_auto_compact_token_limit"].as_u64().unwrap();
            assert!(compact * 10 <= model.context_tokens * 9);
            assert!(compact * 10 > model.context_tokens * 9 - 100);
            let provider = &config["model_providers"]["gateway"];
            assert_eq!(provider["base_url"], "https://gw.example/v1");
            assert_eq!(provider["env_key"], KEY_VARIABLE);
            assert!(config.get("profiles").is_none(), "newer versions refuse it");
        }
    }
}

#[test]
fn a_client_uses_the_surface_of_the_models_vendor_if_it_can() {
    let opencode = parse(&build("opencode", "alpha-opus").files[0]);
    assert_eq!(opencode["model"], "gateway-messages/alpha-opus");
    let provider = &opencode["provider"]["gateway-messages"];
    assert_eq!(provider["npm"], "@ai-sdk/anthropic");
    assert_eq!(provider["options"]["apiKey"], "{env:GATEWAY_KEY}");
    assert!(provider["models"].get("beta-mini").is_none());
    assert!(
        opencode["provider"]["gateway"]["models"]
            .get("beta-mini")
            .is_some()
    );

    let text = |setup: &ClientSetup| setup.terminal(&SetupKey::in_environment());
    let copilot = |chosen| text(&build("copilot-cli", chosen));
    assert!(copilot("alpha-opus").contains("COPILOT_PROVIDER_TYPE=\"anthropic\""));
    assert!(!copilot("beta-mini").contains("WIRE_API"));
    assert!(copilot("gamma-o").contains("COPILOT_PROVIDER_WIRE_API=\"responses\""));
    assert!(copilot("gamma-o").contains("MAX_PROMPT_TOKENS=\"61996\""));
}

#[test]
fn an_unknown_model_is_replaced_by_one_that_needs_no_translation() {
    let guide = find_guide("codex").unwrap();
    for chosen in [None, Some("revoked-model")] {
        let key = SetupKey::in_environment();
        let context =
            SetupContext::new("https://gw.example", key, models(), chosen, guide).unwrap();
        assert_eq!(
            context.model().id,
            "gamma-o",
            "its vendor has the responses API"
        );
    }
    let key = SetupKey::in_environment();
    assert!(SetupContext::new("https://gw.example", key, Vec::new(), None, guide).is_none());
}

#[test]
fn no_client_starts_with_a_model_that_costs_more_than_the_middle_one() {
    let settings = config::parse(include_str!("../../conf/local.yaml"), &|_| None).unwrap();
    for guide in guides() {
        let key = SetupKey::in_environment();
        let models = settings.catalog.models().to_vec();
        let context = SetupContext::new("https://gw.example", key, models, None, guide).unwrap();
        let expected = match guide.surfaces[0] {
            Protocol::Messages => "alpha-sonnet-4-6",
            Protocol::Chat => "beta-5.2",
            // No vendor of this catalog has the responses API.
            Protocol::Responses => "alpha-sonnet-4-6",
        };
        assert_eq!(context.model().id, expected, "{}", guide.id);
        let small = context.model_for(ModelRole::Small);
        assert_eq!(small.id, "alpha-haiku-4-5-20251001");
    }
}

#[test]
fn a_usual_turn_of_an_agent_costs_what_the_prices_say() {
    let settings = config::parse(include_str!("../../conf/local.yaml"), &|_| None).unwrap();
    let turns = ClientKind::TerminalAgent.usual_turns();
    let costs = |id: &str| {
        let model = settings.catalog.find(id).unwrap();
        let costs: Vec<_> = turns
            .iter()
            .map(|turn| turn.cost(model).to_string())
            .collect();
        costs
    };
    // (15 000 · 375 + 100 · 1500) ÷ 10^6; (1 500 · 375 + 18 000 · 30 + 500 · 1500) ÷ 10^6.
    assert_eq!(costs("alpha-sonnet-4-6"), ["5.775", "1.8525"]);
    // A chat vendor has no price for writes: 15 000 · 175 + 100 · 1400, and so on.
    assert_eq!(costs("beta-5.2"), ["2.765", "1.2775"]);
}

#[test]
fn a_key_is_only_in_its_export_line_and_in_the_file_of_a_client_that_reads_no_variable() {
    let key = SetupKey::with_text("gw-sk-0123");
    for guide in guides() {
        let setup = build_with(guide, "https://gw.example", key.clone(), models(), None);
        let terminal = setup.terminal(&key);
        assert_eq!(terminal.matches("gw-sk-0123").count(), 1, "{}", guide.id);
        assert!(terminal.starts_with("export GATEWAY_KEY=\"gw-sk-0123\""));
        for file in &setup.files {
            let may_hold = guide.id == "claude-code";
            assert_eq!(file.text.contains("gw-sk-0123"), may_hold, "{}", guide.id);
        }
        let setup = build_with(
            guide,
            "https://gw.example",
            SetupKey::in_environment(),
            models(),
            None,
        );
        let uses_key =
            |text: &str| text.contains("GATEWAY_KEY") || text.contains("GATEWAY_API_KEY");
        let terminal = setup.terminal(&SetupKey::in_environment());
        let instead = setup.instead_of_files.as_deref().unwrap_or_default();
        assert!(!instead.contains("gw-sk-"), "{}", guide.id);
        let anywhere = setup.files.iter().any(|file| uses_key(&file.text));
        let by_hand = guide.id == "vscode";
        assert!(by_hand || anywhere || uses_key(&terminal), "{}", guide.id);
    }
}

#[test]
fn another_variable_can_hold_the_key() {
    for guide in guides() {
        let key = SetupKey {
            variable: "OTHER".to_owned(),
            text: None,
        };
        let setup = build_with(guide, "https://gw.example", key.clone(), models(), None);
        let mut text = setup.terminal(&key);
        text.extend(setup.files.iter().map(|file| file.text.as_str()));
        text.extend(setup.instead_of_files.as_deref());
        assert!(!text.contains("GATEWAY_KEY"), "{}: {text}", guide.id);
    }
}

#[test]
fn prompts_leave_room_for_the_output_but_keep_half_of_the_context() {
    let tokens = |context, output| prompt_tokens(&model("m", Protocol::Chat, context, output));
    assert_eq!(tokens(100_000, 8_000), 92_000);
    assert_eq!(tokens(100_000, 50_000), 50_000);
    assert_eq!(tokens(100_000, 100_000), 50_000);
    assert_eq!(tokens(100_000, 200_000), 50_000);
}

#[test]
fn quoted_texts_survive_json_toml_and_yaml() {
    let text = "\" \\ \n \t \u{0} \u{7f} \u{85} \u{2028} \u{feff} é 🦀 ' $ `";
    let quoted = quoted(text);
    assert_eq!(serde_json::from_str::<String>(&quoted).unwrap(), text);
    let toml: Value = basic_toml::from_str(&format!("a = {quoted}")).unwrap();
    assert_eq!(toml["a"], text);
    let yaml: Value = serde_saphyr::from_str(&format!("a: {quoted}")).unwrap();
    assert_eq!(yaml["a"], text);
}

#[test]
fn a_trial_has_a_guide_a_version_and_a_day() {
    for guide in guides() {
        if let Some(ClientTrial::Hand { version, on }) = guide.trial() {
            assert!(on.parse::<jiff::civil::Date>().is_ok(), "{on}");
            assert!(version.starts_with(|c: char| c.is_ascii_digit()));
        }
    }
    assert!(tried::clients().all(|id| find_guide(id).is_some()));
}

#[test]
fn the_tests_install_the_versions_that_pages_call_tested() {
    let packages = [
        include_str!("../../tests/agents/package.json"),
        include_str!("../../tests/sdk/node/package.json"),
        include_str!("../../tests/sdk/python/requirements.txt"),
    ];
    let lines: Vec<_> = packages
        .iter()
        .flat_map(|text| text.lines())
        .map(|line| line.trim().trim_end_matches(','))
        .collect();
    for guide in guides() {
        if let Some(ClientTrial::Tests { version, package }) = guide.trial() {
            assert!(lines.contains(package), "{}: {package}", guide.id);
            assert!(package.contains(version), "{}", guide.id);
        }
    }
}

#[test]
fn a_catalog_of_two_hundred_models_fits_a_page() {
    let models: Vec<_> = (0..200)
        .map(|number| {
            let id = format!("vendor-{number}/model-with-a-long-name-{number}");
            model(&id, Protocol::Chat, 200_000, 8_000)
        })
        .collect();
    for guide in guides() {
        let key = SetupKey::in_environment();
        let setup = build_with(guide, "https://gw.example", key, models.clone(), None);
        let bytes: usize = setup.files.iter().map(|file| file.text.len()).sum();
        assert!(bytes < 100_000, "{}: {bytes} bytes", guide.id);
    }
}

#[test]
fn the_documentation_shows_what_the_guides_write() {
    let text = include_str!("../../docs/clients.md");
    let local = include_str!("../../conf/local.yaml");
    let settings = config::parse(local, &|_| None).unwrap();
    for (id, language) in [("claude-code", "json"), ("codex", "toml")] {
        let guide = find_guide(id).unwrap();
        let setup = build_with(
            guide,
            &settings.base_url,
            SetupKey::in_environment(),
            settings.catalog.models().to_vec(),
            Some("beta-5.2"),
        );
        let block = format!("```{language}\n{}\n```\n", setup.files[0].text);
        assert!(text.contains(&block), "docs/clients.md lacks:\n{block}");
    }
    for guide in guides().filter(|guide| guide.kind != ClientKind::Library) {
        let name = guide.name.split(',').next().unwrap();
        let is_listed = text.contains(name) || guide.id == "other";
        assert!(is_listed, "docs/clients.md lacks {name}");
    }
}
