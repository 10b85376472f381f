-- Models that the keys of a member may use, as catalog ids separated by spaces; '': all.

ALTER TABLE membership ADD COLUMN models TEXT NOT NULL DEFAULT '';

-- What edges know of a key changes with it.
CREATE TRIGGER member_models_changed AFTER UPDATE OF models ON membership WHEN NEW.models IS NOT OLD.models BEGIN
  INSERT OR REPLACE INTO change
    SELECT id, (SELECT ifnull(max(rev), 0) + 1 FROM change) FROM api_key
    WHERE member = NEW.person AND account = NEW.account;
END;
