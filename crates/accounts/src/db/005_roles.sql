-- Who may look at the operator's view and not act; invitations that were withdrawn; and who had a trial already.

ALTER TABLE account ADD COLUMN viewer INTEGER NOT NULL DEFAULT 0 CHECK(viewer IN (0, 1) AND viewer + admin < 2);

-- NULL: it was not withdrawn. One that was has expired at that moment.
ALTER TABLE invite ADD COLUMN withdrawn_at_ms INTEGER;

-- Mailboxes of deleted accounts that had a trial: a keyed hash and nothing else, so that a mailbox has one trial.
CREATE TABLE past_trial(
  mailbox BLOB NOT NULL PRIMARY KEY CHECK(length(mailbox) = 32),
  deleted_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What those hashes are keyed with: one row, made here, that nobody else has.
CREATE TABLE past_trial_key(key BLOB NOT NULL CHECK(length(key) = 32)) STRICT;
INSERT INTO past_trial_key VALUES(randomblob(32));
