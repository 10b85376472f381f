//! The settings of Claude Code: limits by variables and by known models.

use super::*;
use llm_protocol::capabilities::{ChatModel, ModelCapabilities};

#[test]
fn the_settings_have_the_limits_of_the_chosen_model() {
    let settings = |chosen, models: &[_]| {
        let guide = find_guide("claude-code").unwrap();
        let key = SetupKey::in_environment();
        let setup = build_with(
            guide,
            "https://gw.example",
            key,
            models.to_vec(),
            Some(chosen),
        );
        parse(&setup.files[0])
    };
    let (all, without_small) = (models(), &models()[..2]);
    let context = "CLAUDE_CODE_MAX_CONTEXT_TOKENS";
    let output = "CLAUDE_CODE_MAX_OUTPUT_TOKENS";

    let alpha = settings("alpha-opus", without_small);
    assert_eq!(alpha["model"], "alpha-opus");
    assert_eq!(alpha["env"]["ANTHROPIC_BASE_URL"], "https://gw.example");
    assert_eq!(alpha["env"]["ANTHROPIC_DEFAULT_MODEL"], "alpha-opus");
    assert_eq!(alpha["env"][context], "210001");
    assert!(
        alpha["env"].get(output).is_none(),
        "64 003 is more than Claude Code requests"
    );
    let rows = alpha["modelPicker"]["options"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert!(rows[0].get("behavesAs").is_none(), "else it has 200 000");
    assert_eq!(rows[1]["behavesAs"], "claude-opus-4-8");
    assert_eq!(alpha["modelPicker"]["replaceBuiltInOptions"], true);

    let beta = settings("beta-mini", without_small);
    assert_eq!(beta["model"], "beta-mini[1m]", "more than a million");
    assert!(beta["env"].get(context).is_none());
    let rows = &beta["modelPicker"]["options"];
    assert_eq!(rows[0]["behavesAs"], "claude-haiku-4-5", "200 000 at most");

    for chosen in ["alpha-opus", "beta-mini", "gamma-o"] {
        let settings = settings(chosen, &all);
        assert_eq!(settings["env"][context], "70013", "{chosen}: the smallest");
        let rows = &settings["modelPicker"]["options"];
        assert!(rows[0].get("behavesAs").is_some() && rows[2].get("behavesAs").is_none());
    }
    let gamma = settings("gamma-o", &all);
    assert_eq!(gamma["env"][output], "8017");
}

#[test]
fn a_model_behaves_as_the_nearest_known_one() {
    let chat = |reasoning| {
        ModelCapabilities::Chat(ChatModel {
            reasoning,
            ..ChatModel::default()
        })
    };
    let cases = [
        ("claude-opus-4-6", 200_000, false, Some("claude-opus-4-6")),
        // For Claude Code, this one has a context of a million tokens.
        ("claude-opus-4-7", 200_000, false, Some("claude-sonnet-4-6")),
        ("claude-opus-4-7", 1_000_000, false, Some("claude-opus-4-7")),
        ("gpt-5.2", 200_000, true, Some("claude-sonnet-4-6")),
        ("qwen-2.5", 200_000, false, Some("claude-haiku-4-5")),
        ("qwen-2.5", 199_999, false, None),
        ("gpt-long", 1_000_000, false, Some("claude-opus-4-8")),
        // The chosen model has its own context, in a variable.
        ("gpt-long", 999_999, false, None),
    ];
    let guide = find_guide("claude-code").unwrap();
    for (upstream, context, reasoning, expected) in cases {
        let model = CatalogModel {
            upstream_model: upstream.to_owned(),
            context_tokens: context,
            accepts: chat(reasoning),
            ..CatalogModel::in_test(Protocol::Chat, price())
        };
        let key = SetupKey::in_environment();
        let setup = build_with(
            guide,
            "https://gw.example",
            key,
            vec![Arc::new(model)],
            None,
        );
        let settings = parse(&setup.files[0]);
        let row = &settings["modelPicker"]["options"][0];
        let known = row.get("behavesAs").and_then(Value::as_str);
        assert_eq!(known, expected, "{upstream} with {context}");
        let variable = settings["env"].get("CLAUDE_CODE_MAX_CONTEXT_TOKENS");
        let variable = variable.and_then(Value::as_str).map(str::to_owned);
        let expected = expected.is_none().then(|| context.to_string());
        assert_eq!(variable, expected, "{upstream} with {context}");
    }
}

/// The chosen model and the models of the tiers fable, opus, sonnet and haiku, in the file and in
/// the lines that replace it.
fn tiers(models: &[Arc<CatalogModel>], chosen: Option<&str>) -> [String; 5] {
    let guide = find_guide("claude-code").unwrap();
    let key = SetupKey::in_environment();
    let setup = build_with(guide, "https://gw.example", key, models.to_vec(), chosen);
    let settings = parse(&setup.files[0]);
    let lines = setup.instead_of_files.unwrap();
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(lines.lines().all(|line| line.starts_with("export ")));
    check_shell(std::slice::from_ref(&lines));
    let chosen = settings["model"].as_str().unwrap().to_owned();
    assert!(
        lines.contains(&format!("ANTHROPIC_MODEL=\"{chosen}\"")),
        "{lines}"
    );
    let tier = |tier: &str| {
        let name = format!("ANTHROPIC_DEFAULT_{tier}_MODEL");
        let model = settings["env"][&name].as_str().unwrap().to_owned();
        assert!(lines.contains(&format!("{name}=\"{model}\"")), "{lines}");
        model
    };
    [
        chosen,
        tier("FABLE"),
        tier("OPUS"),
        tier("SONNET"),
        tier("HAIKU"),
    ]
}

#[test]
fn each_tier_gets_the_model_of_its_name_and_a_missing_one_the_middle_price() {
    let settings = config::parse(include_str!("../../../conf/local.yaml"), &|_| None).unwrap();
    let all = settings.catalog.models();
    let [opus, sonnet, haiku, cheap, dear] = [0, 1, 2, 3, 4].map(|place| &*all[place].id);
    assert_eq!((cheap, dear), ("beta-5.2", "beta-5.5"));
    // No model is a Fable: the middle price of the five is that of the Sonnet.
    assert_eq!(tiers(all, None), [sonnet, sonnet, opus, sonnet, haiku]);
    assert_eq!(tiers(all, Some(dear)), [dear, sonnet, opus, sonnet, haiku]);
    // Of two, the cheaper one, also if the dearer one is chosen.
    assert_eq!(
        tiers(&all[3..], Some(dear)),
        [dear, cheap, cheap, cheap, cheap]
    );
    // Of two models of a tier, the guide names the chosen one, otherwise the first.
    let newer = Arc::new(CatalogModel {
        id: "opus-2".to_owned(),
        upstream_model: "vendor/Claude-Opus-5.1".to_owned(),
        ..CatalogModel::in_test(Protocol::Messages, price())
    });
    let both = [Arc::clone(&all[0]), newer];
    assert_eq!(tiers(&both, Some("opus-2"))[2], "opus-2");
    assert_eq!(tiers(&both, Some(opus))[2], opus);
    assert_eq!(tiers(&both, None)[2], opus);
}
