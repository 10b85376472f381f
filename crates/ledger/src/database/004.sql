-- What the ledger remembers of the store that many edges share.

-- Where each partition was last found: restored up to there, whatever the server loses later.
CREATE TABLE shared_partition (
  partition INTEGER PRIMARY KEY,
  server    TEXT NOT NULL,
  epoch     TEXT NOT NULL,
  seen_at   INTEGER NOT NULL
) STRICT;

-- The last entry that the shared store was told of.
CREATE TABLE shared_pushed (seq INTEGER NOT NULL) STRICT;
INSERT INTO shared_pushed SELECT ifnull(max(seq), 0) FROM entry;

-- From which entry on a server may have lost something, should it have lost what came after a moment.
CREATE TABLE shared_mark (at INTEGER PRIMARY KEY, seq INTEGER NOT NULL) STRICT;
