-- Orders of credits at a payment provider. `amount`, `refunded` and `tax` are in minor units of the currency, credits in µc,
-- times in ms since 1970 UTC.
CREATE TABLE payment_order(
  id TEXT NOT NULL PRIMARY KEY,
  account TEXT NOT NULL REFERENCES account(id),
  amount INTEGER NOT NULL CHECK(amount > 0),
  currency TEXT NOT NULL,
  -- What the price of that moment buys. A later price does not change it.
  credits INTEGER NOT NULL CHECK(credits > 0),
  bonus INTEGER NOT NULL CHECK(bonus >= 0),
  -- created: the provider may not know the order; open: it has a checkout page; processing: paid, and the bank has not
  -- confirmed it; refused: the payment is not the one that was ordered, and an operator must look.
  state TEXT NOT NULL DEFAULT 'created'
    CHECK(state IN ('created', 'open', 'processing', 'paid', 'expired', 'failed', 'refused')),
  -- The provider's id of the checkout, and the address of its page.
  checkout TEXT UNIQUE,
  checkout_url TEXT NOT NULL DEFAULT '',
  -- Reference of the purchase in the ledger. It is stored before the entry, so that each entry has its order.
  payment TEXT UNIQUE,
  created_at_ms INTEGER NOT NULL,
  paid_at_ms INTEGER,
  -- When the provider is polled next: about an order without an end, and about refunds of a paid one. NULL: never.
  next_poll_at_ms INTEGER,
  polls INTEGER NOT NULL DEFAULT 0,
  tax INTEGER,
  refunded INTEGER NOT NULL DEFAULT 0,
  -- Written-off credits for which the account was suspended.
  written_off INTEGER NOT NULL DEFAULT 0,
  -- Why the order failed, or what an operator must know.
  note TEXT NOT NULL DEFAULT '',
  CHECK((state = 'created') = (checkout IS NULL) OR state IN ('failed', 'expired')),
  CHECK(state <> 'paid' OR (payment IS NOT NULL AND paid_at_ms IS NOT NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX payment_order_account ON payment_order(account, id);
CREATE INDEX payment_order_due ON payment_order(next_poll_at_ms) WHERE next_poll_at_ms IS NOT NULL;

-- Events of the provider that were handled. This only saves work: what decides whether a payment counts is the ledger.
CREATE TABLE payment_event(
  id TEXT NOT NULL PRIMARY KEY,
  at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX payment_event_age ON payment_event(at_ms);
