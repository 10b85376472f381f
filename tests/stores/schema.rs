//! A schema in PostgreSQL that an older program made.

use super::copies::CopyWorld;
use ledger::postgres::SCHEMA;
use test_world::postgres::PostgresServer;

const NEW_KINDS: &str = "'topup', 'lapse',\n    'bonus', 'payment_refund', 'dispute', 'code'))";
const OLD_KINDS: &str = "'topup', 'lapse'))";
const CHECK: &str =
    "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'entry_kind_check'";

#[test]
fn an_older_schema_accepts_payments_once_its_owner_has_started() {
    let server = PostgresServer::start();
    let old = SCHEMA.replace(NEW_KINDS, OLD_KINDS);
    assert!(!old.contains("dispute"));
    let entry = |seq: i64, kind: &str| {
        format!(
            "INSERT INTO model_gateway.entry VALUES ({seq}, '{kind}', 'r{seq}', 'a', 0, 0, 0, 0, 0, 0, '', '', '')"
        )
    };
    // The gateway's role owns the table.
    let url = server.create_database("owned");
    server.psql("owned", &old);
    server.psql("owned", &entry(1, "topup"));
    assert!(
        !server
            .try_psql("owned", &entry(2, "payment_refund"))
            .status
            .success()
    );
    let home = || CopyWorld::beside(&url).home(false);
    home().prepare().unwrap();
    server.psql("owned", &entry(2, "payment_refund"));
    assert!(!server.try_psql("owned", &entry(3, "gift")).status.success());
    let changed = server.psql("owned", CHECK);
    home().prepare().unwrap();
    assert_eq!(server.psql("owned", CHECK), changed);
    // Another role owns it: the start says what it must run, and goes on.
    let url = server.create_database("guarded");
    server.psql("guarded", &old);
    server.psql(
        "guarded",
        "CREATE ROLE guarded LOGIN; GRANT USAGE ON SCHEMA model_gateway TO guarded;
         GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA model_gateway TO guarded",
    );
    let url = url.replace("gateway@", "guarded@");
    let report = CopyWorld::beside(&url).home(false).prepare().unwrap();
    let warning = report
        .warnings
        .iter()
        .find(|it| it.contains("ALTER TABLE"))
        .unwrap();
    let (_, statement) = warning.split_once("runs: ").unwrap();
    let documented = include_str!("../../docs/payments.md")
        .split_whitespace()
        .collect::<Vec<_>>();
    assert!(documented.join(" ").contains(statement), "{statement}");
    server.psql("guarded", statement);
    server.psql("guarded", &entry(1, "dispute"));
    let report = CopyWorld::beside(&url).home(false).prepare().unwrap();
    assert!(
        !report.warnings.iter().any(|it| it.contains("ALTER TABLE")),
        "{report:?}"
    );
}
