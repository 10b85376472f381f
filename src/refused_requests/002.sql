-- What is known of requests beside the ledger. Times are in ms since 1970 UTC.
CREATE TABLE request_note(
  -- In the order in which they were written.
  seq INTEGER NOT NULL PRIMARY KEY,
  request_id TEXT NOT NULL UNIQUE,
  account TEXT NOT NULL,
  at_ms INTEGER NOT NULL,
  -- What the newest of an account are counted by.
  kind TEXT NOT NULL,
  -- As the client got it.
  status INTEGER NOT NULL,
  -- What a request without a receipt asked for; empty otherwise.
  asked_for TEXT NOT NULL,
  -- Ids that the client got from the vendor: in a header, in the body. NULL: none.
  header_id TEXT,
  answer_id TEXT,
  -- Why the vendor failed the request. Without a vendor: it did not.
  vendor TEXT,
  vendor_status INTEGER,
  cause TEXT,
  words TEXT,
  is_private INTEGER NOT NULL
) STRICT;

CREATE INDEX request_note_account ON request_note(account, kind, at_ms, seq);
CREATE INDEX request_note_at ON request_note(at_ms);
CREATE INDEX request_note_header ON request_note(header_id) WHERE header_id IS NOT NULL;
CREATE INDEX request_note_answer ON request_note(answer_id) WHERE answer_id IS NOT NULL;
