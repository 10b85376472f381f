//! Writes accounts, keys and entries as JSON documents, which are identical in the admin API, on
//! the command line and in an account's export.
//!
//! This file must not read a store.

use crate::billing::Balance;
use crate::payments::{OrderRow, PaymentRefund, Reconciliation};
use accounts::db::codes::{CodeBatch, CodeRow};
use accounts::db::payment_book::RefundRow;
use accounts::{
    Account, AccountStatus, ApiKey, ApiKeyStatus, Identity, KeySettings, RateSettings, Role,
};
use base::clock::rfc3339;
use config::payments::write_money_number;
use credits::money::Micro;
use ledger::StoreError;
use ledger::{EndingDetail, KeySpend, LedgerEntry, PostingDetail, PostingResult};
use serde_json::{Value, json};

pub fn account(account: &Account) -> Value {
    let mut value = json!({
        "account_id": account.id,
        "email": account.email,
        "status": account.status.name(),
        "admin": account.role == Role::Admin,
        "role": account.role.name(),
        "created_at": rfc3339(account.created_at_ms),
    });
    if let Some(name) = &account.organisation {
        value["organisation"] = json!(name);
    }
    value
}

/// An organisation without its members.
pub fn organisation(organisation: &Account) -> Value {
    json!({
        "account_id": organisation.id,
        "name": organisation.organisation,
        "status": organisation.status.name(),
        "created_at": rfc3339(organisation.created_at_ms),
    })
}

/// An identity by which the holder of an account signs in.
pub fn identity(identity: &Identity) -> Value {
    json!({
        "provider": identity.provider,
        "issuer": identity.issuer,
        "subject": identity.subject,
        "email": identity.email,
        "linked_at": rfc3339(identity.linked_at_ms),
        "used_at": identity.used_at_ms.map(rfc3339),
    })
}

pub fn account_with_balance(holder: &Account, balance: &Balance) -> Value {
    let mut value = account(holder);
    value["balance"] = json!(balance.balance);
    value["held"] = json!(balance.held);
    value["available"] = json!(balance.available);
    value["trial"] = json!(balance.trial.as_ref().map(|trial| {
        json!({
            "ends_at": rfc3339(trial.ends_at_ms), "credits_left": trial.credits_left, "active": trial.active,
        })
    }));
    value
}

/// Returns an account after a change of its status.
pub fn status(account: &Account, status: AccountStatus) -> Value {
    json!({"account_id": account.id, "email": account.email, "status": status.name()})
}

/// A key with its settings and what it has spent, without its text.
/// `usable`: whether requests with it are admitted at `now_ms`, as far as it and its account
/// decide.
pub fn api_key(key: &ApiKey, account: AccountStatus, spend: &KeySpend, now_ms: i64) -> Value {
    let mut value = key_settings(&key.settings);
    value["key_id"] = json!(key.id);
    value["name"] = json!(key.name);
    value["shown"] = json!(key.shown);
    value["status"] = json!(key.status.name());
    value["usable"] = json!(
        key.status == ApiKeyStatus::Active
            && account == AccountStatus::Active
            && !key.settings.has_expired(now_ms)
    );
    if let Some(member) = &key.member {
        value["member"] = json!(member);
    }
    if key.is_login {
        value["login"] = json!(true);
    }
    value["created_at"] = json!(rfc3339(key.created_at_ms));
    value["revoked_at"] = json!(key.revoked_at_ms.map(rfc3339));
    value["spent"] = json!(spend.spent);
    value["spent_total"] = json!(spend.total);
    value["last_used_at"] = json!(spend.used_at_ms.map(rfc3339));
    value
}

/// Returns the settings of a key. `null` means that a setting is not set.
pub fn key_settings(settings: &KeySettings) -> Value {
    let KeySettings {
        expires_at_ms,
        spend_limit,
        allowed_models,
        rates: own_rates,
        scope,
        playground_session: _,
    } = settings;
    json!({
        "expires_at": expires_at_ms.map(rfc3339),
        "spend_limit": spend_limit.map(|limit| {
            json!({"credits": limit.credits, "period": limit.period.name()})
        }),
        "models": allowed_models,
        "scope": scope,
        "rates": rates(own_rates),
    })
}

/// Returns the rate limits of a key or an account. `null` means the value of the config file.
pub fn rates(rates: &RateSettings) -> Value {
    RateSettings::NAMES.into_iter().zip(rates.rates()).collect()
}

/// Returns a key after it was moved to another account.
pub fn moved_key(from: &str, key: &str, to: &Account, in_store: bool) -> Value {
    json!({"key_id": key, "account_id": to.id, "moved_from": from, "in_store": in_store})
}

/// Returns a key after it was disabled or enabled.
pub fn key_status(id: &str, enabled: bool) -> Value {
    let status = if enabled {
        ApiKeyStatus::Active
    } else {
        ApiKeyStatus::Disabled
    };
    json!({"key_id": id, "status": status.name()})
}

/// Returns the result of a posting for the API.
pub fn posting(kind: &str, reference: &str, posted: &PostingResult) -> Value {
    json!({
        "account": posted.account, "kind": kind, "ref": reference, "credits": posted.change, "balance": posted.balance,
        "new": posted.is_new,
    })
}

/// Returns an entry, with the terms of a receipt and its links in the hash chain.
///
/// # Errors
/// Returns an error if the entry's detail cannot be parsed.
pub fn entry(entry: &LedgerEntry) -> Result<Value, StoreError> {
    let mut row = json!({
        "seq": entry.seq, "at": rfc3339(entry.at_ms), "kind": entry.kind, "ref": entry.reference, "change": entry.change(),
        "balance_after": entry.bal_paid.plus(entry.bal_trial), "prev": hex(&entry.prev), "hash": hex(&entry.hash),
    });
    let unread = |error| {
        StoreError::Unusable(format!(
            "cannot read the detail of ledger entry {}: {error}",
            entry.seq
        ))
    };
    if entry.is_ending() {
        let detail: EndingDetail = serde_json::from_str(&entry.detail).map_err(unread)?;
        row["request_id"] = json!(entry.reference);
        row["model"] = json!(detail.model);
        row["outcome"] = json!(detail.outcome);
        row["usage"] = json!(detail.usage);
        row["credits"] = json!(Micro::ZERO.minus(entry.change()));
        row["writeoff"] = json!(entry.writeoff);
        return Ok(row);
    }
    let PostingDetail {
        request_id,
        reason,
        actor,
        ..
    } = PostingDetail::decode(&entry.detail).map_err(unread)?;
    for (name, value) in [
        ("request_id", request_id),
        ("reason", reason),
        ("actor", actor),
    ] {
        if let Some(value) = value {
            row[name] = json!(value);
        }
    }
    Ok(row)
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(64), |text, byte| {
        text + &format!("{byte:02x}")
    })
}

/// A payment by which an account holder buys credits. Money is a decimal string in `currency`.
pub fn payment(order: &OrderRow) -> Value {
    let money = |minor| write_money_number(&order.currency, minor);
    json!({
        "payment_id": order.id,
        "account_id": order.account,
        "state": order.state.name(),
        "currency": order.currency,
        "amount": money(order.amount),
        "tax": order.tax.map(money),
        "refunded": money(order.refunded),
        "credits": order.credits,
        "bonus": order.bonus,
        "written_off": order.written_off,
        "clawback": order.clawback.name(),
        "checkout": order.checkout,
        "ref": order.payment,
        "created_at": rfc3339(order.created_at_ms),
        "paid_at": order.paid_at_ms.map(rfc3339),
        "note": order.note,
    })
}

/// A payment with the refunds that operators ordered.
pub fn payment_with_refunds(order: &OrderRow, refunds: &[RefundRow]) -> Value {
    let refund = |refund: &RefundRow| {
        json!({
            "ref": refund.reference,
            "amount": write_money_number(&order.currency, refund.amount),
            "created_at": rfc3339(refund.created_at_ms),
            "done_at": refund.done_at_ms.map(rfc3339),
        })
    };
    let mut value = payment(order);
    value["refunds"] = refunds.iter().map(refund).collect();
    value
}

/// A refund that is done.
pub fn payment_refund(done: &PaymentRefund) -> Value {
    let PaymentRefund {
        order,
        refund,
        is_new,
    } = done;
    json!({
        "payment_id": order.id,
        "account_id": order.account,
        "currency": order.currency,
        "ref": refund.reference,
        "amount": write_money_number(&order.currency, refund.amount),
        "refunded": write_money_number(&order.currency, order.refunded),
        "new": is_new,
    })
}

/// Codes that were created together.
pub fn code_batch(batch: &CodeBatch) -> Value {
    json!({
        "batch": batch.id,
        "credits": batch.credits,
        "per_account": batch.per_account,
        "created_at": rfc3339(batch.created_at_ms),
        "created_by": batch.created_by,
        "expires_at": rfc3339(batch.expires_at_ms),
        "count": batch.count,
        "redeemed": batch.redeemed,
        "voided": batch.voided,
    })
}

/// A code without its text.
pub fn code(code: &CodeRow, now_ms: i64) -> Value {
    json!({
        "code_id": code.id(),
        "state": code.state(now_ms).name(),
        "redeemed_by": code.redeemed_by,
        "redeemed_at": code.redeemed_at_ms.map(rfc3339),
    })
}

/// A comparison of the provider's payments with the ledger.
pub fn reconciliation(report: &Reconciliation) -> Value {
    json!({
        "at": rfc3339(report.at_ms),
        "from": rfc3339(report.from_ms),
        "to": rfc3339(report.to_ms),
        "payments": report.payments,
        "orders": report.orders,
        "differences": report.differences,
    })
}
