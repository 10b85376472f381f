use super::*;
use crate::{ConfigFault, Settings};

const SECTION: &str = "sign_in:
  password: true
  providers:
    - {id: company, kind: oidc, issuer: \"https://id.example.com\", client_id: gateway, client_secret: s3cret, scopes: [groups], roles: {llm-admins: operator, llm-readers: viewer}}
    - {id: google, kind: google, client_id: gateway, client_secret: s3cret}
    - {id: ours, kind: github, issuer: \"https://git.example.com\", name: Our Git, client_id: gateway, client_secret: s3cret}
    - {id: github, kind: github, client_id: gateway, client_secret: s3cret, timeout_seconds: 60}
";

fn parse_section(section: &str) -> Result<Settings, Vec<ConfigFault>> {
    let text = format!("{}{section}", include_str!("../../../../conf/local.yaml"));
    crate::parse(&text, &|_| None)
}

#[test]
fn without_the_section_a_password_is_the_only_way_in() {
    let settings = parse_section("").unwrap().sign_in;
    assert!(settings.password && settings.providers.is_empty());
}

#[test]
fn a_kind_has_its_defaults_and_the_file_wins() {
    let settings = parse_section(SECTION).unwrap().sign_in;
    let provider = |id: &str| settings.provider(id).unwrap();
    let company = provider("company");
    assert_eq!(company.name, "Company");
    assert_eq!(company.scopes, ["openid", "email", "groups"]);
    assert_eq!(company.timeout, Duration::from_secs(10));
    assert_eq!(company.role(["x"]), None);
    assert_eq!(company.role(["llm-readers"]), Some(SignInRole::Viewer));
    let both = ["llm-admins", "llm-readers"];
    assert_eq!(company.role(both), Some(SignInRole::Operator));
    assert_eq!(provider("google").issuer, "https://accounts.google.com");
    let person = |id: &str| provider(id).api.as_ref().unwrap().person.as_str();
    assert_eq!(person("github"), "https://api.github.com/user");
    assert_eq!(person("ours"), "https://git.example.com/api/v3/user");
    assert_eq!(provider("ours").name, "Our Git");
}

#[test]
fn each_fault_of_a_provider_is_found_at_its_key_and_shows_no_secret() {
    for (from, to, key, says) in [
        ("id: google", "id: company", "[1].id", "another provider"),
        ("id: google", "id: \"a b\"", "[1].id", "1 to 32"),
        (
            "kind: google",
            "kind: goggle",
            "[1].kind",
            "did you mean \"google\"?",
        ),
        ("kind: google", "kind: microsoft", "[1].issuer", "TENANT-ID"),
        (
            "https://id.",
            "http://id.",
            "[0].issuer",
            "only name this machine",
        ),
        (
            "https://id.example.com",
            "https://id.example.com?x=1",
            "[0].issuer",
            "without a query",
        ),
        ("name: Our Git", "name: \"\"", "[2].name", "1 to 32"),
        ("[groups]", "[\"a b\"]", "[0].scopes", "one an entry"),
        (
            "client_id: gateway",
            "client_id: \"\"",
            "[0].client_id",
            "is empty",
        ),
        (
            "client_secret: s3cret",
            "client_secret: \"\"",
            "[0].client_secret",
            "is empty",
        ),
        (
            "client_secret: s3cret",
            "client_secret: \"s3cret\\n\"",
            "[0].client_secret",
            "line break",
        ),
        (
            "timeout_seconds: 60",
            "timeout_seconds: 61",
            "[3].timeout_seconds",
            "1 to 60",
        ),
        (
            "timeout_seconds: 60",
            "timeout_seconds: 0",
            "[3].timeout_seconds",
            "1 to 60",
        ),
        ("llm-admins: operator", "llm-admins: king", "[0].roles", ""),
        ("roles: {", "join: org_1, roles: {", "[0].join", "unknown"),
    ] {
        assert!(SECTION.contains(from), "{from}");
        let faults = parse_section(&SECTION.replacen(from, to, 1)).unwrap_err();
        let key = format!("sign_in.providers{key}");
        let fault = faults.iter().find(|fault| fault.key.starts_with(&key));
        let fault = fault.unwrap_or_else(|| panic!("{key}: {faults:?}"));
        assert!(fault.message.contains(says) && fault.line > 0, "{fault:?}");
        assert!(!format!("{faults:?}").contains("s3cret"), "{faults:?}");
    }
    let faults = parse_section("sign_in: {password: false}\n").unwrap_err();
    assert_eq!(faults[0].key, "sign_in.password");
    let local = SECTION.replace("https://id.example.com", "http://127.0.0.1:1");
    assert!(parse_section(&local).is_ok());
}

#[test]
fn at_most_eight_providers_have_a_button() {
    let section = |count: usize| {
        let one = |index| format!("{{id: p{index}, kind: google, client_id: a, client_secret: b}}");
        let all: Vec<_> = (0..count).map(one).collect();
        format!("sign_in: {{providers: [{}]}}\n", all.join(", "))
    };
    assert!(parse_section(&section(8)).is_ok());
    let faults = parse_section(&section(9)).unwrap_err();
    assert!(faults[0].message.contains("at most 8"), "{faults:?}");
}

#[test]
fn a_secret_comes_from_a_file_and_is_never_printed() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "from-a-file\n").unwrap();
    let from_file = format!("client_secret: \"file:{}\"", file.path().display());
    let section = SECTION.replacen("client_secret: s3cret", &from_file, 1);
    let settings = parse_section(&section).unwrap().sign_in;
    assert_eq!(settings.providers[0].client_secret.reveal(), "from-a-file");
    let shown = format!("{settings:?}");
    assert!(!shown.contains("from-a-file") && !shown.contains("s3cret"));
}
