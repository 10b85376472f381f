-- Identities at providers, by which people sign in, and sign-ins that are under way. Times in ms since 1970 UTC.
CREATE TABLE identity(
  -- As the provider has them. The subject never changes; an address can.
  issuer TEXT NOT NULL,
  subject TEXT NOT NULL,
  account TEXT NOT NULL REFERENCES account(id),
  -- Id of the provider in the config file.
  provider TEXT NOT NULL,
  -- The address at the provider, as it was last: it finds no account.
  email TEXT NOT NULL,
  -- The role that the account has only because of groups at the provider.
  role TEXT NOT NULL DEFAULT 'member' CHECK(role IN ('member', 'viewer', 'administrator')),
  linked_at_ms INTEGER NOT NULL,
  -- NULL: it was never used.
  used_at_ms INTEGER,
  PRIMARY KEY(issuer, subject)
) STRICT, WITHOUT ROWID;

CREATE INDEX identity_account ON identity(account);

CREATE TABLE sign_in_flow(
  -- SHA-256 of the secret in the browser's cookie.
  hash BLOB NOT NULL PRIMARY KEY CHECK(length(hash) = 32),
  provider TEXT NOT NULL,
  -- What the provider said, as JSON, while the browser must do one thing more; empty: it has said nothing.
  identity TEXT NOT NULL,
  expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX sign_in_flow_age ON sign_in_flow(expires_at_ms);

CREATE TRIGGER deletion_ends_identities AFTER UPDATE OF deleted_at_ms ON account WHEN NEW.deleted_at_ms IS NOT NULL BEGIN
  DELETE FROM identity WHERE account = NEW.id;
END;
