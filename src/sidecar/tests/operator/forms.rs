//! Tests that a refused form loses nothing that was typed, and that its fault is beside its field.

use super::*;

#[tokio::test]
async fn a_refused_form_keeps_what_was_typed_and_marks_the_field_of_its_fault() {
    let section = "payments: {codes: true}\nsignup:";
    let root = root_with(&[("signup:", section)]).await;
    let (accounts, billing) = (&root.world.accounts, &root.world.billing);
    let trial = credits::trial::Trial {
        credits: credits::money::Micro::new(5_000_000),
        ends_at_ms: now_ms() + 60_000,
    };
    let new = NewAccount {
        trial: Some(trial),
        ..NewAccount::new("tried@example.com")
    };
    let tried = open_account(accounts, billing.ledger(), &new, now_ms()).unwrap();
    let by = Actor {
        actor: "uid 0".into(),
        address: String::new(),
    };
    let acting = accounts.with_actor(&by, now_ms());
    let acme = acting.create_organisation("Acme", &root.account).unwrap();
    accounts::complete_sign_ups(accounts, billing.ledger(), now_ms()).unwrap();
    acting.set_domain(&acme.id, "example.org", true).unwrap();
    let tried = format!("accounts/{}", tried.id);
    let acme = format!("accounts/{}", acme.id);
    let own = accounts.find("root@example.com").unwrap().unwrap().id;
    let own = format!("accounts/{own}");
    let long = "x".repeat(65);
    let code = "count=2&days=30&per_account=1";
    for (path, typed, status, field, value, says) in [
        (
            &*format!("{tried}/trial"),
            "days=400",
            422,
            "days",
            "400",
            "1 to 365",
        ),
        (
            &format!("{tried}/role"),
            "role=king",
            422,
            "role",
            "",
            "of the list",
        ),
        (
            &format!("{own}/role"),
            "role=viewer&confirmed=yes",
            409,
            "role",
            "",
            "only administrator",
        ),
        (
            &format!("{tried}/keys"),
            &format!("name={long}"),
            422,
            "key_name",
            &long,
            "1 to 64",
        ),
        (
            &format!("{tried}/keys"),
            "name=",
            422,
            "key_name",
            "",
            "1 to 64",
        ),
        (
            &format!("{tried}/delete"),
            "confirmation=ada",
            422,
            "confirmation",
            "ada",
            "the e-mail",
        ),
        (
            &format!("{acme}/delete"),
            "confirmation=Acm",
            422,
            "confirmation",
            "Acm",
            "the name",
        ),
        (
            &format!("{acme}/domains"),
            "domain=a@b",
            422,
            "domain",
            "a@b",
            "not a domain",
        ),
        (
            &format!("{acme}/domains"),
            "domain=example.org",
            409,
            "domain",
            "example.org",
            "claimed",
        ),
        (
            &format!("{tried}/post"),
            "kind=x&credits=1&ref=r",
            422,
            "kind",
            "",
            "of the list",
        ),
        (
            "new-account",
            "email=ada&role=member",
            422,
            "email",
            "ada",
            "not a valid e-mail",
        ),
        (
            "new-account",
            "email=a@example.com&role=king",
            422,
            "role",
            "",
            "the role",
        ),
        (
            "new-account",
            "email=a@example.com&role=member",
            409,
            "email",
            "a@example.com",
            "has an account",
        ),
        (
            "invites",
            "count=500&days=3",
            422,
            "count",
            "500",
            "1 to 100",
        ),
        ("invites", "count=5&days=x", 422, "days", "x", "1 to 365"),
        (
            "codes",
            &format!("credits=0&{code}"),
            422,
            "credits",
            "0",
            "above 0",
        ),
        (
            "codes",
            &format!("credits=2000000&{code}"),
            422,
            "credits",
            "2000000",
            "at most",
        ),
        (
            "codes",
            "credits=1&count=20000&days=1&per_account=1",
            422,
            "count",
            "20000",
            "1 to 10000",
        ),
        (
            "codes",
            "credits=1&count=1&days=0&per_account=1",
            422,
            "days",
            "0",
            "1 to 3660",
        ),
        (
            "codes",
            "credits=1&count=1&days=1&per_account=",
            422,
            "per_account",
            "",
            "1 to",
        ),
    ] {
        let path = format!("/dashboard/operator/{path}");
        let refused = root.post(&path, typed).await;
        assert_eq!(refused.status, status, "{path} {typed}: {}", refused.body);
        refused.has_fault_at(field);
        refused.shows(says);
        if !value.is_empty() {
            refused.keeps(field, value);
        }
    }
    let invites = root.post("/dashboard/operator/invites", "count=500&days=3");
    invites.await.keeps("days", "3");
    let delete = format!("/dashboard/operator/{acme}/delete");
    let asked = root.post(&delete, "confirmation=acme").await;
    asked.shows("All keys of Acme are refused from the next request on, and its members");
    let page = root.get(&format!("/dashboard/operator/{acme}")).await;
    page.shows("Type Acme to confirm");
    assert!(!page.body.contains("e-mail is forgotten"), "{}", page.body);
    assert!(!page.body.contains("organisation-acct_"), "{}", page.body);
}
