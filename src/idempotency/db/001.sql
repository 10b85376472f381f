-- Times are milliseconds since 1970 UTC.

-- What was asked under a key. Small rows: the answers stand apart.
CREATE TABLE asked (
  account    TEXT NOT NULL,
  path       TEXT NOT NULL,
  key        TEXT NOT NULL,
  hash       BLOB NOT NULL,               -- SHA-256 of the request's body
  request_id TEXT NOT NULL UNIQUE,
  boot       TEXT NOT NULL,               -- the process that answers it
  done       INTEGER NOT NULL DEFAULT 0,
  expires_at INTEGER NOT NULL,            -- once done
  bytes      INTEGER NOT NULL DEFAULT 0,  -- of its answer, while that is kept
  PRIMARY KEY (account, path, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX asked_by_age ON asked (done, expires_at, bytes);

CREATE TABLE answer (
  request_id TEXT PRIMARY KEY REFERENCES asked (request_id) ON DELETE CASCADE,
  headers    TEXT NOT NULL,               -- JSON: [[name, value], …]
  body       BLOB NOT NULL
) STRICT;
