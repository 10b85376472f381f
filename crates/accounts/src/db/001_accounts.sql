-- Accounts, keys and sessions. Amounts are in µc, times in ms since 1970 UTC.

CREATE TABLE account(
  id TEXT NOT NULL PRIMARY KEY,
  -- Trimmed and lower case.
  email TEXT NOT NULL UNIQUE,
  -- PHC string; NULL: no password sign-in.
  password TEXT,
  admin INTEGER NOT NULL CHECK(admin IN (0, 1)),
  status TEXT NOT NULL CHECK(status IN ('active', 'suspended')),
  created_at_ms INTEGER NOT NULL,
  -- The trial promised at sign-up; NULL: none.
  trial_micro INTEGER,
  trial_ends_at_ms INTEGER,
  -- When the ledger had the account; NULL: not yet known to.
  granted_at_ms INTEGER,
  CHECK((trial_micro IS NULL) = (trial_ends_at_ms IS NULL))
) STRICT;

CREATE INDEX account_ungranted ON account(id) WHERE granted_at_ms IS NULL;

CREATE TABLE api_key(
  id TEXT NOT NULL PRIMARY KEY,
  account TEXT NOT NULL REFERENCES account(id),
  name TEXT NOT NULL,
  -- SHA-256 of the key. The key itself is nowhere.
  hash BLOB NOT NULL UNIQUE CHECK(length(hash) = 32),
  shown TEXT NOT NULL,
  status TEXT NOT NULL CHECK(status IN ('active', 'disabled', 'revoked')),
  created_at_ms INTEGER NOT NULL,
  revoked_at_ms INTEGER,
  CHECK((status = 'revoked') = (revoked_at_ms IS NOT NULL))
) STRICT;

CREATE INDEX api_key_account ON api_key(account, created_at_ms);

CREATE TABLE session(
  -- SHA-256 of the token in the cookie.
  hash BLOB NOT NULL PRIMARY KEY CHECK(length(hash) = 32),
  account TEXT NOT NULL REFERENCES account(id),
  created_at_ms INTEGER NOT NULL,
  used_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX session_account ON session(account, created_at_ms);
CREATE INDEX session_used ON session(used_at_ms);
