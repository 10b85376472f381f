-- People: where a session was begun and when its password was last typed, invitations, accounts that were deleted, and
-- a log of what was done in an administrator's name.

-- Sessions say where they come from now: those of before cannot, and end.
DROP TABLE session;
CREATE TABLE session(
  -- SHA-256 of the token in the cookie.
  hash BLOB NOT NULL PRIMARY KEY CHECK(length(hash) = 32),
  account TEXT NOT NULL REFERENCES account(id),
  created_at_ms INTEGER NOT NULL,
  used_at_ms INTEGER NOT NULL,
  -- When its holder last typed the password.
  confirmed_at_ms INTEGER NOT NULL,
  address TEXT NOT NULL,
  browser TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX session_account ON session(account, created_at_ms);
CREATE INDEX session_used ON session(used_at_ms);

-- NULL: the account was not deleted by its holder.
ALTER TABLE account ADD COLUMN deleted_at_ms INTEGER;
-- The mailbox that the e-mail reaches, where several addresses reach one; NULL: the e-mail itself.
ALTER TABLE account ADD COLUMN mailbox TEXT;
UPDATE account SET mailbox =
  replace(substr(email, 1, min(instr(email, '@'), ifnull(nullif(instr(email, '+'), 0), 255)) - 1), '.', '') || '@gmail.com'
  WHERE email LIKE '%@gmail.com' OR email LIKE '%@googlemail.com';
CREATE INDEX account_mailbox ON account(mailbox) WHERE mailbox IS NOT NULL;
-- What trials were promised since a moment.
CREATE INDEX account_trial ON account(created_at_ms, trial_micro) WHERE trial_micro IS NOT NULL;

CREATE TABLE invite(
  -- SHA-256 of the code. The code itself is nowhere.
  hash BLOB NOT NULL PRIMARY KEY CHECK(length(hash) = 32),
  created_at_ms INTEGER NOT NULL,
  expires_at_ms INTEGER NOT NULL,
  created_by TEXT NOT NULL,
  -- The account that was opened with it; NULL: still good until it expires.
  used_by TEXT REFERENCES account(id),
  used_at_ms INTEGER,
  CHECK((used_by IS NULL) = (used_at_ms IS NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX invite_created ON invite(created_at_ms);

CREATE TABLE audit(
  seq INTEGER NOT NULL PRIMARY KEY,
  at_ms INTEGER NOT NULL,
  -- An account's id, or who ran a command.
  actor TEXT NOT NULL,
  address TEXT NOT NULL,
  act TEXT NOT NULL,
  -- What it was done to: an id.
  object TEXT NOT NULL,
  before TEXT NOT NULL,
  after TEXT NOT NULL,
  -- The hash of the line before.
  prev BLOB NOT NULL CHECK(length(prev) = 32),
  hash BLOB NOT NULL CHECK(length(hash) = 32)
) STRICT;

CREATE TRIGGER audit_is_never_changed BEFORE UPDATE ON audit BEGIN
  SELECT raise(ABORT, 'a line of the audit log is never changed');
END;

CREATE TRIGGER audit_is_never_shortened BEFORE DELETE ON audit BEGIN
  SELECT raise(ABORT, 'a line of the audit log is never deleted');
END;
