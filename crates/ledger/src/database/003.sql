-- Credit that processes other than the one that admits have set aside: a command about to take, a gateway that drains.
-- Whoever admits reads it in the same snapshot as the balance.
CREATE TABLE claim (
  boot    TEXT NOT NULL,
  account TEXT NOT NULL,
  paid    INTEGER NOT NULL,
  trial   INTEGER NOT NULL,
  PRIMARY KEY (account, boot)
) STRICT, WITHOUT ROWID;

-- Credit that was bought (`topup`), beside credit that was given (`grant`). As in 002, the entries and their hashes stay
-- as they are.

CREATE TABLE entry_3 (
  seq           INTEGER PRIMARY KEY,
  kind          TEXT NOT NULL CHECK (kind IN ('trial', 'grant', 'topup', 'refund', 'adjust', 'lapse', 'debit', 'void')),
  ref           TEXT NOT NULL,
  account       TEXT NOT NULL REFERENCES account (id),
  at            INTEGER NOT NULL,
  d_paid        INTEGER NOT NULL,
  d_trial       INTEGER NOT NULL,
  bal_paid      INTEGER NOT NULL,
  bal_trial     INTEGER NOT NULL,
  writeoff      INTEGER NOT NULL DEFAULT 0,  -- part of a response's cost that the account could not bear
  detail        TEXT NOT NULL DEFAULT '',    -- JSON: what a debit or void was for; a refund's request; an adjustment's reason; who posted
  prev          BLOB NOT NULL,
  hash          BLOB NOT NULL
) STRICT;

INSERT INTO entry_3 (seq, kind, ref, account, at, d_paid, d_trial, bal_paid, bal_trial, writeoff, detail, prev, hash)
SELECT seq, kind, ref, account, at, d_paid, d_trial, bal_paid, bal_trial, writeoff, detail, prev, hash FROM entry ORDER BY seq;

DROP TABLE entry;
ALTER TABLE entry_3 RENAME TO entry;

CREATE UNIQUE INDEX entry_counts_once ON entry (kind, ref);
CREATE UNIQUE INDEX entry_ends_a_request_once ON entry (ref) WHERE kind IN ('debit', 'void');
CREATE INDEX entry_by_account ON entry (account, seq);
-- Few: what was refunded of a debit is looked for among its account's refunds.
CREATE INDEX entry_refunds ON entry (account) WHERE kind = 'refund';

CREATE TRIGGER entry_is_never_changed BEFORE UPDATE ON entry BEGIN SELECT RAISE(ABORT, 'entries are immutable'); END;
CREATE TRIGGER entry_is_never_removed BEFORE DELETE ON entry BEGIN SELECT RAISE(ABORT, 'entries are immutable'); END;
