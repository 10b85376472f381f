//! Tests the alerts page: rules, the webhook, its secret, its messages.

use super::*;
use crate::notify::alerts::AlertRules;
use crate::notify::webhooks::Webhooks;

const PAGE: &str = "/dashboard/alerts";

/// A person who is signed in, with the token of the forms.
struct Person<'w> {
    world: &'w World,
    cookie: String,
    csrf: String,
    account: String,
}

async fn person<'w>(world: &'w World, email: &str) -> Person<'w> {
    let cookie = world.sign_up(email).await;
    let csrf = world.get(PAGE, &cookie).await.csrf();
    let account = world.accounts.find(email).unwrap().unwrap().id;
    Person {
        world,
        cookie,
        csrf,
        account,
    }
}

impl Person<'_> {
    async fn page(&self) -> String {
        let page = self.world.get(PAGE, &self.cookie).await;
        assert_eq!(page.status, 200);
        page.body
    }

    async fn send(&self, path: &str, fields: &str) -> TestResponse {
        let body = format!("csrf={}&{fields}", self.csrf);
        let path = format!("{PAGE}/{path}");
        self.world.post(&path, &self.cookie, &body).await
    }

    /// Sends a form that is accepted, and returns the page that it leads to.
    async fn done(&self, path: &str, fields: &str) -> String {
        let answer = self.send(path, fields).await;
        assert_eq!(answer.status, 303, "{}", answer.body);
        let location = answer.headers["location"].clone();
        assert!(location.starts_with(PAGE), "{location}");
        self.world.get(&location, &self.cookie).await.body
    }

    fn webhooks(&self) -> Webhooks {
        Webhooks::new(&self.world.accounts)
    }
}

fn secret_on(page: &str) -> Option<&str> {
    let (_, rest) = page.split_once("data-testid=\"webhook-secret\">")?;
    rest.split_once('<').map(|(secret, _)| secret)
}

#[tokio::test]
async fn rules_are_saved_and_shown_and_removed() {
    let world = world(&[]).await;
    let person = person(&world, "a@example.com").await;
    let page = person
        .done("rules", "low_balance=10.5&spend=50&period=week")
        .await;
    assert!(page.contains("Your alerts were saved."));
    assert!(page.contains("value=\"10.5\"") && page.contains("value=\"50\""));
    assert!(page.contains("<option value=\"week\" selected>"));
    let rules = AlertRules::load(&world.accounts, &person.account).unwrap();
    assert_eq!(rules.low_balance.unwrap().to_string(), "10.5");
    for (fields, fault, field) in [
        (
            "low_balance=%3Cb%3E",
            "Low balance: not an amount",
            "low_balance",
        ),
        (
            "spend=0&period=day",
            "Spend: the amount must be more than 0.",
            "spend",
        ),
        (
            "spend=1&period=year",
            "Choose a day, a week or a month.",
            "period",
        ),
        ("url=ftp%3A%2F%2Fexample.com", "https", "url"),
        ("url=https%3A%2F%2F10.0.0.1%2F", "private", "url"),
    ] {
        let form = match field {
            "url" => "webhook",
            _ => "rules",
        };
        let refused = person.send(form, fields).await.expect(422);
        assert!(refused.body.contains(fault), "{fields}");
        refused.has_fault_at(field);
        assert!(!refused.body.contains("<b>"));
        let after = AlertRules::load(&world.accounts, &person.account).unwrap();
        assert_eq!(after, rules, "a form with a fault changes nothing");
    }
    let refused = person.send("webhook/test", "").await.expect(409);
    refused.shows("Set the URL of a webhook first.");
    refused.has_fault_at("");
    person.done("rules", "low_balance=&spend=").await;
    let rules = AlertRules::load(&world.accounts, &person.account).unwrap();
    assert_eq!(rules, AlertRules::default());
}

#[tokio::test]
async fn a_secret_is_shown_to_the_session_that_made_it_and_survives_a_reload() {
    let world = world(&[]).await;
    let person = person(&world, "a@example.com").await;
    let page = person
        .done("webhook", "url=https%3A%2F%2Fexample.com%2Fhook")
        .await;
    let secret = secret_on(&page).expect("the secret").to_owned();
    assert!(
        secret.starts_with("whsec_") && secret.len() == 50,
        "{secret}"
    );
    assert_eq!(secret_on(&person.page().await), Some(secret.as_str()));
    // Another session of the same person does not see it.
    let sign_in = format!("email=a@example.com&password={PASSWORD}");
    let other = world
        .post("/dashboard/sign-in", "", &sign_in)
        .await
        .cookie();
    assert_eq!(secret_on(&world.get(PAGE, &other).await.body), None);
    // Another URL keeps the secret.
    let page = person.done("webhook", "url=https://example.org").await;
    assert_eq!(secret_on(&page), Some(secret.as_str()));

    let question = person.send("webhook/rotate", "").await;
    assert_eq!(question.status, 200);
    assert!(question.body.contains("Replace the secret?"));
    let once = once_on(&question.body);
    let confirmed = format!("confirmed=yes&once={once}");
    let page = person.done("webhook/rotate", &confirmed).await;
    let new = secret_on(&page).expect("the new secret").to_owned();
    assert_ne!(new, secret);
    assert!(page.contains("signed with the old secret too"));
    let question = person.send("webhook/rotate", "").await;
    question.shows("the one before that stops working now");

    let question = person.send("webhook/remove", "").await;
    assert!(question.body.contains("Remove the webhook?"));
    let page = person.done("webhook/remove", "confirmed=yes").await;
    assert_eq!(secret_on(&page), None);
    assert_eq!(person.webhooks().find(&person.account).unwrap(), None);
}

/// The number of a question's form.
fn once_on(question: &str) -> &str {
    let (_, rest) = question.split_once("name=\"once\" value=\"").unwrap();
    rest.split_once('"').unwrap().0
}

#[tokio::test]
async fn a_form_that_replaces_the_secret_replaces_it_once_however_often_it_is_sent() {
    let world = world(&[]).await;
    let person = person(&world, "a@example.com").await;
    person.done("webhook", "url=https://example.com").await;
    let db = world.accounts.database();
    let stored = || db.webhooks().webhook(&person.account).unwrap().unwrap();
    let first = stored().secret;
    // Without a number, it cannot be known whether it was sent before.
    for fields in ["", "confirmed=yes", "confirmed=yes&once="] {
        let question = person.send("webhook/rotate", fields).await;
        assert_eq!(question.status, 200, "{fields}");
        assert!(question.body.contains("Replace the secret?"), "{fields}");
    }
    let question = person.send("webhook/rotate", "once=old").await.body;
    assert_eq!(question.matches("name=\"once\"").count(), 1);
    assert!(stored().secret == first && stored().old_secret.is_none());

    let confirmed = format!("confirmed=yes&once={}", once_on(&question));
    // A click too many.
    let send = || person.send("webhook/rotate", &confirmed);
    let (one, two) = tokio::join!(send(), send());
    assert_eq!([one.status, two.status], [303, 303]);
    assert_eq!(one.headers["location"], two.headers["location"]);
    let second = stored();
    assert_ne!(second.secret, first);
    let page = person.page().await;
    let shown = secret_on(&page).expect("the new secret").to_owned();
    // The form of a page from before.
    let page = person.done("webhook/rotate", &confirmed).await;
    assert_eq!(secret_on(&page), Some(shown.as_str()));
    assert!(stored() == second, "nothing is replaced");
    assert!(second.old_secret.is_some_and(|(old, _)| old == first));

    // A new question replaces it again.
    let question = person.send("webhook/rotate", "").await.body;
    let confirmed = format!("confirmed=yes&once={}", once_on(&question));
    let page = person.done("webhook/rotate", &confirmed).await;
    assert_ne!(secret_on(&page), Some(shown.as_str()));
    assert_ne!(stored().secret, second.secret);
}

#[tokio::test]
async fn a_url_that_cannot_be_called_is_refused_and_stays_in_the_form() {
    let world = world(&[]).await;
    let person = person(&world, "a@example.com").await;
    for (url, fault) in [
        ("http://example.com/", "must begin with https://"),
        (
            "https://169.254.169.254/",
            "does not call private addresses",
        ),
        ("https://ann:x@example.com/", "must not have a user"),
        ("%22%3E%3Cscript%3E", "not a URL"),
    ] {
        let refused = person.send("webhook", &format!("url={url}")).await;
        assert_eq!(refused.status, 422, "{url}");
        assert!(refused.body.contains(fault), "{url}: {}", refused.body);
        assert!(!refused.body.contains("\"><script>"));
    }
    assert_eq!(person.webhooks().find(&person.account).unwrap(), None);
}

#[tokio::test]
async fn test_messages_and_repetitions_are_in_the_log_and_limited() {
    let world = world(&[]).await;
    let person = person(&world, "a@example.com").await;
    let refused = person.send("webhook/test", "").await;
    assert_eq!(refused.status, 409);
    assert!(refused.body.contains("Set the URL of a webhook first."));
    person.done("webhook", "url=https://example.com").await;
    for _ in 0..6 {
        let page = person.done("webhook/test", "").await;
        assert!(page.contains("A test message is on its way."));
    }
    let refused = person.send("webhook/test", "").await;
    assert_eq!(refused.status, 429);
    assert!(refused.body.contains("6 test messages an hour"));
    let log = person.webhooks().log(&person.account).unwrap();
    assert_eq!(log.len(), 6);
    let page = person.page().await;
    assert_eq!(page.matches("Send again").count(), 6);
    assert!(page.contains("<td role=\"cell\" data-label=\"State\">waiting"));
    let resend = format!("deliveries/{}/resend", log[0].id);
    for _ in 0..60 {
        person.done(&resend, "").await;
    }
    assert_eq!(person.send(&resend, "").await.status, 429);

    let db = world.accounts.database();
    db.webhooks()
        .disable_webhook(&person.account, "the receiver <b>", now_ms(), None)
        .unwrap();
    let page = person.page().await;
    assert!(
        page.contains("the receiver &#60;b&#62;. Save the URL"),
        "{page}"
    );
    let refused = person.send("webhook/test", "").await;
    assert_eq!(refused.status, 409);
    assert!(refused.body.contains("Your webhook is disabled."));
}

#[tokio::test]
async fn a_gateway_that_offers_no_webhooks_shows_and_takes_none() {
    let shipped = "vendors:\n  alpha:";
    let without = "notifications: {webhooks: false}\nvendors:\n  alpha:";
    let world = world(&[(shipped, without)]).await;
    let person = person(&world, "a@example.com").await;
    assert!(!person.page().await.contains("Webhook"));
    for path in [
        "webhook",
        "webhook/rotate",
        "webhook/test",
        "deliveries/x/resend",
    ] {
        let answer = person.send(path, "url=https://example.com").await;
        assert_eq!(answer.status, 404, "{path}");
    }
}

#[tokio::test]
async fn the_page_says_why_alerts_are_not_sent_by_mail() {
    let shipped = "vendors:\n  alpha:";
    let mail = "mail: {smtp: smtps://mail.example, from: gateway@example.com}\nvendors:\n  alpha:";
    let without = world(&[]).await;
    let nobody = person(&without, "a@example.com").await;
    assert!(nobody.page().await.contains("This gateway sends no mail."));
    let with = world(&[(shipped, mail)]).await;
    let person = person(&with, "a@example.com").await;
    assert!(person.page().await.contains("is not verified"));
    let purpose = accounts::LinkPurpose::Verify;
    let link = with
        .accounts
        .one_time_links()
        .create_own_link(&person.account, purpose, now_ms());
    let token = link.unwrap().token;
    with.accounts
        .one_time_links()
        .verify_email_by_link(&token, now_ms())
        .unwrap();
    let page = person.done("rules", "low_balance=1&mail=yes").await;
    assert!(
        page.contains("name=\"mail\" value=\"yes\" checked"),
        "{page}"
    );
}

#[tokio::test]
async fn the_export_has_rules_webhook_and_messages_but_no_secret() {
    let world = world(&[]).await;
    let person = person(&world, "a@example.com").await;
    person.done("rules", "low_balance=10").await;
    let page = person.done("webhook", "url=https://example.com").await;
    let secret = secret_on(&page).unwrap().to_owned();
    person.done("webhook/test", "").await;
    let file = world
        .get("/dashboard/account/export", &person.cookie)
        .await
        .body;
    assert!(!file.contains(&secret) && !file.contains("whsec_"));
    for part in [
        "\"low_balance\":\"10\"",
        "https://example.com",
        "webhook.test",
    ] {
        assert!(file.contains(part), "{part}");
    }
}

#[tokio::test]
async fn alerts_without_a_destination_are_named_and_a_fired_one_is_a_banner_until_it_is_dismissed()
{
    let world = world(&[]).await;
    let person = person(&world, "a@example.com").await;
    let page = person
        .done("rules", "low_balance=1000&spend=&period=day")
        .await;
    assert!(page.contains("data-testid=\"no-destination\""));
    let context = crate::notify::NotifyContext {
        accounts: world.accounts.clone(),
        billing: world.billing.clone(),
        settings: Arc::clone(&world.state.settings),
    };
    let mut engine = crate::notify::alerts::AlertEngine::new(&context);
    assert_eq!(engine.tick(now_ms()).unwrap().fired, 1);
    let page = person.page().await;
    assert!(page.contains("on these pages only, because it had no destination"));
    assert!(!page.contains("Last sent"));
    let banner = "Alert: your balance, 300 credits, is below 1000.";
    for path in ["/dashboard", "/dashboard/keys", PAGE] {
        let page = world.get(path, &person.cookie).await.body;
        assert!(page.contains(banner), "{path}");
    }
    let page = person.done("webhook", "url=https://example.com").await;
    assert!(!page.contains("no-destination"));
    assert!(page.contains(banner), "until it is dismissed");
    assert_eq!(engine.tick(now_ms()).unwrap().fired, 1, "to the webhook");
    let page = person.done("seen", "rule=low_balance").await;
    assert!(!page.contains(banner));
    assert!(page.contains("by webhook: waits"));
    assert_eq!(person.send("seen", "rule=other").await.status, 404);
}
