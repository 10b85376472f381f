-- Merges of accounts into others. A merge is stored before anything moves, and what was stored is completed: until it has
-- ended, the triggers below keep both accounts as they are.

CREATE TABLE account_merge(
  -- The account that ends.
  account TEXT NOT NULL PRIMARY KEY REFERENCES account(id),
  -- The account that gets everything.
  target TEXT NOT NULL REFERENCES account(id),
  -- The member of the target who gets the keys that no member has.
  member TEXT REFERENCES account(id),
  started_at_ms INTEGER NOT NULL,
  -- The part of the credits that is being moved, by its number, and its amount in µc. 0: none yet. Both are stored before the
  -- ledger has entries of it.
  part INTEGER NOT NULL DEFAULT 0,
  amount INTEGER NOT NULL DEFAULT 0,
  ended_at_ms INTEGER,
  CHECK(account <> target),
  CHECK((part = 0) = (amount = 0) AND amount >= 0)
) STRICT, WITHOUT ROWID;

CREATE INDEX account_merge_open ON account_merge(target) WHERE ended_at_ms IS NULL;

CREATE TRIGGER merging_account_stays BEFORE UPDATE OF status, admin, viewer, deleted_at_ms ON account
  WHEN (NEW.status, NEW.admin, NEW.viewer, NEW.deleted_at_ms) IS NOT (OLD.status, OLD.admin, OLD.viewer, OLD.deleted_at_ms)
    AND EXISTS(SELECT 1 FROM account_merge WHERE account = NEW.id AND ended_at_ms IS NULL)
  BEGIN SELECT RAISE(ABORT, 'the account is being merged into another one: complete that with the `account merge` that `account show` names'); END;

CREATE TRIGGER merge_target_stays BEFORE UPDATE OF deleted_at_ms ON account
  WHEN NEW.deleted_at_ms IS NOT NULL
    AND EXISTS(SELECT 1 FROM account_merge WHERE target = NEW.id AND ended_at_ms IS NULL)
  BEGIN SELECT RAISE(ABORT, 'another account is being merged into this one: complete that first with the `account merge` that `account show` names'); END;

CREATE TRIGGER merging_account_gets_no_key BEFORE INSERT ON api_key
  WHEN EXISTS(SELECT 1 FROM account_merge WHERE account = NEW.account AND ended_at_ms IS NULL)
  BEGIN SELECT RAISE(ABORT, 'the account is being merged into another one: create the key there'); END;
