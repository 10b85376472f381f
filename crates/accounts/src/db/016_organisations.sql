-- Organisations: accounts that several people share. Times in ms since 1970 UTC.

-- Name of the organisation that the account belongs to; NULL: it is one person's. Nobody signs in to an organisation's
-- account: its e-mail is a pseudonym, and it has no password, identity, session or role.
ALTER TABLE account ADD COLUMN organisation TEXT;

-- The person who made the key; NULL: the account's own holder, or an operator.
ALTER TABLE api_key ADD COLUMN member TEXT REFERENCES account(id);
CREATE INDEX api_key_member ON api_key(member, account) WHERE member IS NOT NULL;

-- The organisation that the session shows; NULL: the person's own account.
ALTER TABLE session ADD COLUMN shown TEXT REFERENCES account(id);

CREATE TABLE membership(
  account TEXT NOT NULL REFERENCES account(id),
  -- The person's own account, by which they sign in.
  person TEXT NOT NULL REFERENCES account(id),
  role TEXT NOT NULL CHECK(role IN ('owner', 'admin', 'billing', 'member')),
  since_ms INTEGER NOT NULL,
  PRIMARY KEY(account, person)
) STRICT, WITHOUT ROWID;

CREATE INDEX membership_person ON membership(person);

-- Open invitations to an organisation. One that is used or revoked has no row.
CREATE TABLE member_invite(
  -- SHA-256 of the token in the link.
  hash BLOB NOT NULL PRIMARY KEY CHECK(length(hash) = 32),
  account TEXT NOT NULL REFERENCES account(id),
  -- The only address that it is for, normalized.
  email TEXT NOT NULL,
  role TEXT NOT NULL CHECK(role IN ('owner', 'admin', 'billing', 'member')),
  invited_by TEXT NOT NULL REFERENCES account(id),
  created_at_ms INTEGER NOT NULL,
  expires_at_ms INTEGER NOT NULL,
  -- A new invitation replaces the one before.
  UNIQUE(account, email)
) STRICT, WITHOUT ROWID;
