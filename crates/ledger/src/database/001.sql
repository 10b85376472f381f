-- Amounts are µc (1 credit = 1 000 000 µc). Times are milliseconds since 1970 UTC.

CREATE TABLE account (
  id            TEXT PRIMARY KEY,
  paid          INTEGER NOT NULL CHECK (paid >= 0),
  trial         INTEGER NOT NULL CHECK (trial >= 0),
  trial_ends_at INTEGER,
  credited      INTEGER NOT NULL DEFAULT 0,  -- sum of all credit ever bought or granted, the trial apart
  opened_at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A price never changes: another price is another version.
CREATE TABLE price_version (
  id            TEXT PRIMARY KEY,
  json          TEXT NOT NULL,
  first_used_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE entry (
  seq           INTEGER PRIMARY KEY,
  kind          TEXT NOT NULL CHECK (kind IN ('trial', 'grant', 'lapse', 'debit', 'void')),
  ref           TEXT NOT NULL,
  account       TEXT NOT NULL REFERENCES account (id),
  at            INTEGER NOT NULL,
  d_paid        INTEGER NOT NULL,
  d_trial       INTEGER NOT NULL,
  bal_paid      INTEGER NOT NULL,
  bal_trial     INTEGER NOT NULL,
  writeoff      INTEGER NOT NULL DEFAULT 0,  -- part of a response's cost that the account could not bear
  detail        TEXT NOT NULL DEFAULT '',    -- JSON: what a debit or void was for
  prev          BLOB NOT NULL,
  hash          BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX entry_counts_once ON entry (kind, ref);
CREATE UNIQUE INDEX entry_ends_a_request_once ON entry (ref) WHERE kind IN ('debit', 'void');
CREATE INDEX entry_by_account ON entry (account, seq);

CREATE TRIGGER entry_is_never_changed BEFORE UPDATE ON entry BEGIN SELECT RAISE(ABORT, 'entries are immutable'); END;
CREATE TRIGGER entry_is_never_removed BEFORE DELETE ON entry BEGIN SELECT RAISE(ABORT, 'entries are immutable'); END;

-- How much of what a running process has settled is already in the balances above: one snapshot tells both.
CREATE TABLE applied (
  boot    TEXT NOT NULL,
  account TEXT NOT NULL,
  paid    INTEGER NOT NULL,
  trial   INTEGER NOT NULL,
  PRIMARY KEY (boot, account)
) STRICT, WITHOUT ROWID;
