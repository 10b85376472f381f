-- Segments: files with the oldest entries (docs/segments.md). `entry` keeps all postings; ends of requests leave it once a
-- segment that has them is recorded here.

-- Who signs the segments, and how far the ledger is sealed: one row, from the first segment on.
CREATE TABLE installation (
  only_row       INTEGER PRIMARY KEY CHECK (only_row = 1),
  id             TEXT NOT NULL,
  signing_key    BLOB NOT NULL,     -- Ed25519, PKCS #8
  sealed_through INTEGER NOT NULL,  -- last entry in a segment
  sealed_until   INTEGER NOT NULL   -- time of the latest end of a request in a segment, in ms since 1970
) STRICT;

CREATE TABLE segment (
  first         INTEGER PRIMARY KEY,
  last          INTEGER NOT NULL,
  previous_hash BLOB NOT NULL,
  last_hash     BLOB NOT NULL,
  from_ms       INTEGER NOT NULL,
  to_ms         INTEGER NOT NULL,
  ended_until   INTEGER NOT NULL,  -- time of the latest end of a request
  endings       INTEGER NOT NULL,  -- debits and voids; the other entries stay in `entry` too
  accounts      INTEGER NOT NULL,
  file          TEXT NOT NULL,     -- name of the file
  bytes         INTEGER NOT NULL,
  sha256        BLOB NOT NULL,     -- of the file
  sealed_at     INTEGER NOT NULL,
  emptied_at    INTEGER,           -- since when `entry` has none of the endings
  archived_to   TEXT,              -- folder; NULL: the folder `segments` beside this file
  archived_at   INTEGER
) STRICT;

-- The balances of accounts at the ends of segments. An account has a row for each segment that changed it; its balance at
-- another end is the one of the row before.
CREATE TABLE sealed_balance (
  account        TEXT NOT NULL,
  sealed_through INTEGER NOT NULL,
  paid           INTEGER NOT NULL,
  trial          INTEGER NOT NULL,
  credited       INTEGER NOT NULL,
  PRIMARY KEY (account, sealed_through)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER segment_is_never_removed BEFORE DELETE ON segment BEGIN SELECT RAISE(ABORT, 'segments are immutable'); END;
CREATE TRIGGER segment_is_never_changed
  BEFORE UPDATE OF first, last, previous_hash, last_hash, from_ms, to_ms, ended_until, endings, accounts, file, bytes, sha256, sealed_at ON segment
  BEGIN SELECT RAISE(ABORT, 'segments are immutable'); END;

-- An end of a request may go once a segment has it; a posting never.
DROP TRIGGER entry_is_never_removed;
CREATE TRIGGER entry_is_never_removed BEFORE DELETE ON entry
  WHEN OLD.kind NOT IN ('debit', 'void')
    OR ifnull((SELECT last FROM segment WHERE first <= OLD.seq ORDER BY first DESC LIMIT 1), 0) < OLD.seq
  BEGIN SELECT RAISE(ABORT, 'entries are immutable'); END;
