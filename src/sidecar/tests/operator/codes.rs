//! Tests the operators' page of codes: they are shown once, and void for good.

use super::*;

#[tokio::test]
async fn an_operator_creates_codes_sees_them_once_and_voids_them() {
    let section = "payments: {codes: true}\nsignup:";
    let root = root_with(&[("signup:", section)]).await;
    let path = "/dashboard/operator/codes";
    let page = root.get(path).await.body;
    assert!(page.contains("No codes yet."), "{page}");
    assert!(page.contains("href=\"/dashboard/operator/codes\""));
    assert!(!page.contains("href=\"/dashboard/operator/payments\""));
    root.get("/dashboard/operator/payments").await.expect(404);
    for wrong in [
        "credits=0&count=1&days=1&per_account=1",
        "credits=1&count=10001&days=1&per_account=1",
        "credits=1&count=1&days=4000&per_account=1",
        "credits=1&count=1&days=1&per_account=0",
        "credits=x&count=1&days=1&per_account=1",
    ] {
        assert_eq!(root.post(path, wrong).await.status, 422, "{wrong}");
    }
    let form = "credits=50&count=3&days=30&per_account=1";
    let created = root.post(path, form).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let codes: Vec<_> = created.inside("new-codes").split_whitespace().collect();
    assert_eq!(codes.len(), 3);
    let list = root.get(path).await;
    assert!(!list.body.contains(codes[0]), "shown once");
    let payments = crate::payments::Payments::new(
        root.world.accounts.clone(),
        root.world.billing.clone(),
        Arc::clone(&root.world.state.settings),
    );
    payments.redeem(&root.account, codes[0], now_ms()).unwrap();
    let batch = root
        .world
        .accounts
        .codes()
        .batches("", 1)
        .unwrap()
        .remove(0);
    let void = format!("{path}/{}/void", batch.id);
    let question = root.post(&void, "").await;
    assert!(question.body.contains("The 2 codes"), "{}", question.body);
    root.post(&void, "confirmed=yes").await.expect(303);
    assert!(payments.redeem(&root.account, codes[1], now_ms()).is_err());
    assert_eq!(root.acts(), ["code.create", "code.redeem", "code.void"]);
    let log = root.get("/dashboard/operator/audit").await.body;
    assert!(log.contains("created 3 codes of 50 credits"), "{log}");
}
