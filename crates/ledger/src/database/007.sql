-- Since when the ledger has an anchor beside it (`ledger.anchor`): one row, from the first one on. A ledger that has the row and
-- finds no anchor has lost it; one from before anchors existed has none, and gets its first.
CREATE TABLE anchored (
  since INTEGER NOT NULL  -- ms since 1970
) STRICT;
