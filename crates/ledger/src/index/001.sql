-- Everything here is computed from the ledger's entries, in their order: the same entries make the same rows.
-- Amounts are µc (1 credit = 1 000 000 µc). Times are milliseconds since 1970 UTC.

-- How far the index is: the last entry in it.
CREATE TABLE watermark (
  seq           INTEGER NOT NULL,
  hash          BLOB NOT NULL,
  conversations INTEGER NOT NULL  -- number of ids of conversations
) STRICT;
INSERT INTO watermark VALUES (0, zeroblob(32), 0);

-- The rows below have the numbers of these names.
CREATE TABLE account (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE model (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE api_key (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE outcome (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
INSERT INTO outcome VALUES (0, 'completed');

-- One row for each entry. Kinds below 2 are ends of requests: 0 a debit, 1 a void.
CREATE TABLE activity (
  account      INTEGER NOT NULL,
  at           INTEGER NOT NULL,
  seq          INTEGER NOT NULL,
  kind         INTEGER NOT NULL,
  model        INTEGER,
  api_key      INTEGER,
  outcome      INTEGER,
  conversation INTEGER,
  flags        INTEGER NOT NULL,  -- 1: the vendor counted more than the request can use
  PRIMARY KEY (account, at, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX activity_by_seq ON activity (account, seq);
-- Nearly all are completed: those are found by time.
CREATE INDEX activity_by_outcome ON activity (account, outcome, at, seq) WHERE kind < 2 AND outcome <> 0;
CREATE INDEX activity_by_conversation ON activity (conversation, at, seq) WHERE conversation IS NOT NULL;
CREATE INDEX activity_implausible ON activity (seq) WHERE flags = 1;

-- The few entries of an account that are not ends of requests, with all that a statement adds up.
CREATE TABLE posting (
  account INTEGER NOT NULL,
  at      INTEGER NOT NULL,
  seq     INTEGER NOT NULL,
  kind    INTEGER NOT NULL,
  change  INTEGER NOT NULL,
  PRIMARY KEY (account, at, seq)
) STRICT, WITHOUT ROWID;

-- Debits by hour: a chart of a month reads at most 720 rows for a model and a key. A list of one model's or one key's
-- requests reads only the hours that have a row of it; an hour may have voids alone.
CREATE TABLE usage_hour (
  account    INTEGER NOT NULL,
  hour       INTEGER NOT NULL,  -- since 1970 UTC
  model      INTEGER NOT NULL,
  api_key    INTEGER NOT NULL,
  responses  INTEGER NOT NULL,
  credits    INTEGER NOT NULL,
  input      INTEGER NOT NULL,  -- tokens of every class of input
  cache_read INTEGER NOT NULL,  -- those of them that came from a cache
  output     INTEGER NOT NULL,
  voids      INTEGER NOT NULL,
  PRIMARY KEY (account, hour, model, api_key)
) STRICT, WITHOUT ROWID;

-- Ten years of one account are read by the day.
CREATE TABLE usage_day (
  account    INTEGER NOT NULL,
  day        INTEGER NOT NULL,  -- since 1970 UTC
  model      INTEGER NOT NULL,
  api_key    INTEGER NOT NULL,
  responses  INTEGER NOT NULL,
  credits    INTEGER NOT NULL,
  input      INTEGER NOT NULL,
  cache_read INTEGER NOT NULL,
  output     INTEGER NOT NULL,
  PRIMARY KEY (account, day, model, api_key)
) STRICT, WITHOUT ROWID;

-- All accounts together, for the operator.
CREATE TABLE usage_total (
  day        INTEGER NOT NULL,
  model      INTEGER NOT NULL,
  responses  INTEGER NOT NULL,
  credits    INTEGER NOT NULL,
  input      INTEGER NOT NULL,
  cache_read INTEGER NOT NULL,
  output     INTEGER NOT NULL,
  writeoff   INTEGER NOT NULL,  -- parts of costs that the accounts could not pay
  PRIMARY KEY (day, model)
) STRICT, WITHOUT ROWID;

-- A conversation without a turn has only voids, and no times. Ids ascend with time, so the rows that change are together.
CREATE TABLE conversation (
  account    INTEGER NOT NULL,
  id         INTEGER NOT NULL,
  name       TEXT NOT NULL,
  began_at   INTEGER NOT NULL,
  last_at    INTEGER NOT NULL,
  turns      INTEGER NOT NULL,
  credits    INTEGER NOT NULL,
  input      INTEGER NOT NULL,
  cache_read INTEGER NOT NULL,
  output     INTEGER NOT NULL,
  PRIMARY KEY (account, id)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX conversation_by_name ON conversation (account, name);
CREATE INDEX conversation_by_time ON conversation (account, last_at, name) WHERE turns > 0;
