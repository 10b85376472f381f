-- Refunds of payments that operators ordered, as rows before the provider is called: a repetition knows that it is one.
-- Amounts are in minor units of the order's currency.
CREATE TABLE payment_refund(
  payment_order TEXT NOT NULL REFERENCES payment_order(id),
  ref TEXT NOT NULL,
  amount INTEGER NOT NULL CHECK(amount > 0),
  -- What was paid back before.
  refunded_before INTEGER NOT NULL,
  created_at_ms INTEGER NOT NULL,
  -- When the provider had paid it back and the ledger had its entry. Only one refund of a payment may be without.
  done_at_ms INTEGER,
  PRIMARY KEY(payment_order, ref)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX payment_refund_running ON payment_refund(payment_order) WHERE done_at_ms IS NULL;

-- Comparisons of the provider's payments with the ledger, as JSON.
CREATE TABLE payment_reconciliation(
  at_ms INTEGER NOT NULL PRIMARY KEY,
  report TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX payment_order_paid ON payment_order(paid_at_ms) WHERE paid_at_ms IS NOT NULL;
