-- Budgets: the credits that a member of an organisation may spend in a period, such as '100/day'; NULL: no limit of their own.

ALTER TABLE membership ADD COLUMN budget TEXT;

-- What edges know of a key changes with its member, and with their budget.
CREATE TRIGGER key_member_changed AFTER UPDATE OF member ON api_key WHEN NEW.member IS NOT OLD.member BEGIN
  INSERT OR REPLACE INTO change SELECT NEW.id, ifnull(max(rev), 0) + 1 FROM change;
END;

CREATE TRIGGER member_budget_changed AFTER UPDATE OF budget ON membership WHEN NEW.budget IS NOT OLD.budget BEGIN
  INSERT OR REPLACE INTO change
    SELECT id, (SELECT ifnull(max(rev), 0) + 1 FROM change) FROM api_key
    WHERE member = NEW.person AND account = NEW.account;
END;
