-- What owners have set for their keys, and operators for accounts: JSON, empty where nothing is set.

ALTER TABLE api_key ADD COLUMN settings TEXT NOT NULL DEFAULT '';
ALTER TABLE account ADD COLUMN rates TEXT NOT NULL DEFAULT '';

CREATE TRIGGER key_settings_changed AFTER UPDATE OF settings ON api_key WHEN NEW.settings <> OLD.settings BEGIN
  INSERT OR REPLACE INTO change SELECT NEW.id, ifnull(max(rev), 0) + 1 FROM change;
END;

CREATE TRIGGER account_rates_changed AFTER UPDATE OF rates ON account WHEN NEW.rates <> OLD.rates BEGIN
  INSERT OR REPLACE INTO change
    SELECT id, (SELECT ifnull(max(rev), 0) + 1 FROM change) FROM api_key WHERE account = NEW.id;
END;
