-- Sign-ins of programs (RFC 8628): what they ask for until a person answers, and logins, which are keys that refresh themselves.
-- Times in ms since 1970 UTC.

-- What a login is besides its key. The key has its name, limits, spending and status; its own hash is of no text.
CREATE TABLE login(
  key TEXT NOT NULL PRIMARY KEY REFERENCES api_key(id),
  -- Who approved it.
  person TEXT NOT NULL REFERENCES account(id),
  -- What the next refresh token derives from, together with the one before it.
  secret BLOB NOT NULL CHECK(length(secret) = 32),
  -- SHA-256 of what all its refresh tokens begin with; NULL: the program has not fetched the first one.
  family BLOB UNIQUE CHECK(length(family) = 32),
  -- SHA-256 of the refresh token that is valid, of the one before, and when that was replaced.
  refresh BLOB CHECK(length(refresh) = 32),
  previous BLOB CHECK(length(previous) = 32),
  refreshed_at_ms INTEGER,
  -- When it ends unless it is refreshed.
  expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The texts by which the key of a login is used. Expired ones are deleted.
CREATE TABLE login_token(
  hash BLOB NOT NULL PRIMARY KEY CHECK(length(hash) = 32),
  login TEXT NOT NULL REFERENCES login(key),
  expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX login_token_login ON login_token(login);
CREATE INDEX login_token_age ON login_token(expires_at_ms);

CREATE TABLE device_request(
  -- SHA-256 of the device code.
  hash BLOB NOT NULL PRIMARY KEY CHECK(length(hash) = 32),
  user_code TEXT NOT NULL UNIQUE,
  -- What the program calls itself, and the address from which it asks.
  client TEXT NOT NULL,
  address TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL,
  expires_at_ms INTEGER NOT NULL,
  -- The answer; with a login it is yes.
  status TEXT NOT NULL CHECK(status IN ('open', 'approved', 'refused')),
  login TEXT REFERENCES login(key),
  CHECK((status = 'approved') = (login IS NOT NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX device_request_age ON device_request(expires_at_ms);

-- What edges know of a key changes with the texts by which it is used.
CREATE TRIGGER login_token_is_new AFTER INSERT ON login_token BEGIN
  INSERT OR REPLACE INTO change SELECT NEW.login, ifnull(max(rev), 0) + 1 FROM change;
END;

CREATE TRIGGER login_token_changed AFTER UPDATE OF expires_at_ms ON login_token WHEN NEW.expires_at_ms <> OLD.expires_at_ms BEGIN
  INSERT OR REPLACE INTO change SELECT NEW.login, ifnull(max(rev), 0) + 1 FROM change;
END;
