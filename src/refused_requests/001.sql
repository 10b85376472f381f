-- Refused requests of accounts whose key was recognised. Times are in ms since 1970 UTC.
CREATE TABLE refused(
  -- In the order in which they were written.
  seq INTEGER NOT NULL PRIMARY KEY,
  request_id TEXT NOT NULL UNIQUE,
  account TEXT NOT NULL,
  at_ms INTEGER NOT NULL,
  status INTEGER NOT NULL,
  -- In one word, as the client got it.
  code TEXT NOT NULL,
  -- As the client got it.
  message TEXT NOT NULL,
  surface TEXT NOT NULL,
  -- Empty: the request was refused before the gateway knew it.
  model TEXT NOT NULL,
  key_id TEXT NOT NULL,
  key_shown TEXT NOT NULL
) STRICT;

CREATE INDEX refused_account ON refused(account, at_ms, seq);
CREATE INDEX refused_at ON refused(at_ms);

-- Counts, also of those whose row above was deleted because the account has too many.
CREATE TABLE refused_count(
  account TEXT NOT NULL,
  -- Days since 1970 UTC.
  day INTEGER NOT NULL,
  status INTEGER NOT NULL,
  code TEXT NOT NULL,
  requests INTEGER NOT NULL,
  PRIMARY KEY(account, day, status, code)
) STRICT, WITHOUT ROWID;

CREATE INDEX refused_count_day ON refused_count(day);
