-- Keys that changed, or whose account did: the latest change of each, for whoever tells others of keys.

CREATE TABLE change(
  key TEXT NOT NULL PRIMARY KEY REFERENCES api_key(id),
  rev INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX change_rev ON change(rev, key);

INSERT INTO change SELECT id, 1 FROM api_key;

CREATE TRIGGER key_is_new AFTER INSERT ON api_key BEGIN
  INSERT OR REPLACE INTO change SELECT NEW.id, ifnull(max(rev), 0) + 1 FROM change;
END;

CREATE TRIGGER key_changed AFTER UPDATE OF status ON api_key BEGIN
  INSERT OR REPLACE INTO change SELECT NEW.id, ifnull(max(rev), 0) + 1 FROM change;
END;

CREATE TRIGGER account_changed AFTER UPDATE OF status ON account BEGIN
  INSERT OR REPLACE INTO change
    SELECT id, (SELECT ifnull(max(rev), 0) + 1 FROM change) FROM api_key WHERE account = NEW.id;
END;
