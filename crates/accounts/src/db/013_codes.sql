-- Codes that account holders redeem for credits. Only hashes are stored. Credits are in µc.
CREATE TABLE credit_code(
  hash BLOB NOT NULL PRIMARY KEY CHECK(length(hash) = 32),
  -- The codes that were created together.
  batch TEXT NOT NULL,
  credits INTEGER NOT NULL CHECK(credits > 0),
  -- Maximum number of codes of the batch that one account redeems.
  per_account INTEGER NOT NULL CHECK(per_account > 0),
  created_at_ms INTEGER NOT NULL,
  created_by TEXT NOT NULL,
  expires_at_ms INTEGER NOT NULL,
  voided_at_ms INTEGER,
  -- Who redeems the code: stored before the ledger has the entry, so that only one account can.
  redeemed_by TEXT REFERENCES account(id),
  redeemed_at_ms INTEGER,
  -- Whether the ledger has the entry.
  is_entered INTEGER NOT NULL DEFAULT 0,
  CHECK((redeemed_by IS NULL) = (redeemed_at_ms IS NULL)),
  CHECK(NOT is_entered OR redeemed_by IS NOT NULL)
) STRICT, WITHOUT ROWID;
CREATE INDEX credit_code_batch ON credit_code(batch, redeemed_by);
CREATE INDEX credit_code_running ON credit_code(redeemed_at_ms) WHERE redeemed_by IS NOT NULL AND NOT is_entered;
