-- Automatic top-ups: orders of credits that charge a saved payment method. Amounts are in minor units of the currency, credits
-- in µc, times in ms since 1970 UTC.

-- The saved method that the order charges, as the provider names it. NULL: the order has a checkout page.
ALTER TABLE payment_order ADD COLUMN method TEXT;

-- An account has one running charge at a time, also if two processes begin one.
CREATE UNIQUE INDEX payment_order_charging ON payment_order(account)
  WHERE method IS NOT NULL AND state IN ('created', 'open', 'processing');
CREATE INDEX payment_order_auto ON payment_order(account, created_at_ms) WHERE method IS NOT NULL;

CREATE TABLE auto_topup(
  account TEXT NOT NULL PRIMARY KEY REFERENCES account(id),
  -- A balance below this one is topped up.
  threshold INTEGER NOT NULL CHECK(threshold > 0),
  amount INTEGER NOT NULL CHECK(amount > 0),
  -- Maximum sum of the charges in a calendar month (UTC).
  month_cap INTEGER NOT NULL CHECK(month_cap >= amount),
  currency TEXT NOT NULL,
  is_on INTEGER NOT NULL DEFAULT 0 CHECK(is_on IN (0, 1)),
  -- The saved method, and what its holder calls it.
  method TEXT,
  method_label TEXT NOT NULL DEFAULT '',
  -- When the holder last turned it on. Failed charges count from then on.
  set_at_ms INTEGER NOT NULL,
  -- Why the gateway turned it off, for the holder.
  stopped TEXT NOT NULL DEFAULT '',
  -- The page at the provider on which the holder enters a method, while it is open.
  setup TEXT UNIQUE,
  setup_url TEXT NOT NULL DEFAULT '',
  setup_at_ms INTEGER,
  next_poll_at_ms INTEGER,
  CHECK(is_on = 0 OR method IS NOT NULL),
  CHECK((setup IS NULL) = (next_poll_at_ms IS NULL) AND (setup IS NULL) = (setup_at_ms IS NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX auto_topup_setup ON auto_topup(next_poll_at_ms) WHERE next_poll_at_ms IS NOT NULL;

-- Saved methods that the provider must forget.
CREATE TABLE method_removal(
  method TEXT NOT NULL PRIMARY KEY,
  next_try_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
