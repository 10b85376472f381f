-- What the provider has taken back of a payment, and whether the ledger has taken the credits for it.

-- A JSON object: what each dispute has taken of the amount, in minor units, by its id; 0 if the bank returned it.
ALTER TABLE payment_order ADD COLUMN disputes TEXT NOT NULL DEFAULT '{}';
-- open: a process takes credits back, or died while it did; held: running requests hold the rest, and the account begins
-- no new ones.
ALTER TABLE payment_order ADD COLUMN clawback TEXT NOT NULL DEFAULT 'none' CHECK(clawback IN ('none', 'open', 'held'));

CREATE INDEX payment_order_clawback ON payment_order(account, id) WHERE clawback <> 'none';

CREATE TRIGGER clawback_changed AFTER UPDATE OF clawback ON payment_order
  WHEN (OLD.clawback = 'held') <> (NEW.clawback = 'held') BEGIN
  INSERT OR REPLACE INTO change
    SELECT id, (SELECT ifnull(max(rev), 0) + 1 FROM change) FROM api_key WHERE account = NEW.account;
END;
