-- Sums of usage are also by the member of an organisation whose key a request had. A key that is handed over has several.
-- Everything is made anew from the ledger's entries, because these rows cannot be divided.
DROP TABLE usage_hour;
DROP TABLE usage_day;
DELETE FROM activity;
DELETE FROM posting;
DELETE FROM usage_total;
DELETE FROM conversation;
DELETE FROM account;
DELETE FROM model;
DELETE FROM api_key;
DELETE FROM outcome WHERE id > 0;
UPDATE watermark SET seq = 0, hash = zeroblob(32), conversations = 0;

CREATE TABLE member (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
INSERT INTO member VALUES (0, '');  -- no member

-- Debits by hour: a chart of a month reads at most 720 rows for a model and a key. A list of one model's or one key's
-- requests reads only the hours that have a row of it; an hour may have voids alone.
CREATE TABLE usage_hour (
  account    INTEGER NOT NULL,
  hour       INTEGER NOT NULL,  -- since 1970 UTC
  model      INTEGER NOT NULL,
  api_key    INTEGER NOT NULL,
  member     INTEGER NOT NULL,
  responses  INTEGER NOT NULL,
  credits    INTEGER NOT NULL,
  input      INTEGER NOT NULL,  -- tokens of every class of input
  cache_read INTEGER NOT NULL,  -- those of them that came from a cache
  output     INTEGER NOT NULL,
  voids      INTEGER NOT NULL,
  PRIMARY KEY (account, hour, model, api_key, member)
) STRICT, WITHOUT ROWID;

-- Ten years of one account are read by the day.
CREATE TABLE usage_day (
  account    INTEGER NOT NULL,
  day        INTEGER NOT NULL,  -- since 1970 UTC
  model      INTEGER NOT NULL,
  api_key    INTEGER NOT NULL,
  member     INTEGER NOT NULL,
  responses  INTEGER NOT NULL,
  credits    INTEGER NOT NULL,
  input      INTEGER NOT NULL,
  cache_read INTEGER NOT NULL,
  output     INTEGER NOT NULL,
  PRIMARY KEY (account, day, model, api_key, member)
) STRICT, WITHOUT ROWID;
