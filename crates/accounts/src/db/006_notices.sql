-- Links that work once, mail that leaves the gateway, webhooks and alerts. Amounts are in µc, times in ms since 1970 UTC.

-- NULL: the account holder has not opened a link that was sent to the e-mail.
ALTER TABLE account ADD COLUMN verified_at_ms INTEGER;
-- The alert rules, as JSON; empty: none.
ALTER TABLE account ADD COLUMN alerts TEXT NOT NULL DEFAULT '';
CREATE INDEX account_alerts ON account(id) WHERE alerts <> '';

-- At most two open links per purpose: one that an operator made, and one that was sent by mail because somebody asked for
-- it. Anybody can ask, so that one never replaces an operator's link. Using one deletes both.
CREATE TABLE one_time_link(
  account TEXT NOT NULL REFERENCES account(id),
  purpose TEXT NOT NULL CHECK(purpose IN ('reset', 'setup', 'verify')),
  -- SHA-256 of the token. The token itself is nowhere.
  hash BLOB NOT NULL UNIQUE CHECK(length(hash) = 32),
  by_operator INTEGER NOT NULL CHECK(by_operator IN (0, 1)),
  created_by TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL,
  expires_at_ms INTEGER NOT NULL,
  PRIMARY KEY(account, purpose, by_operator)
) STRICT, WITHOUT ROWID;

CREATE TABLE outgoing_mail(
  id TEXT NOT NULL PRIMARY KEY,
  account TEXT NOT NULL REFERENCES account(id),
  kind TEXT NOT NULL CHECK(kind IN ('reset', 'setup', 'verify', 'low_balance', 'spend', 'webhook_disabled', 'test')),
  -- Amounts and names for the text, as JSON. Never a link or a token: those are made when the mail is sent.
  detail TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL,
  -- When the next attempt is due. An attempt that runs moves this on, so that no other process sends the mail too.
  next_at_ms INTEGER NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0,
  state TEXT NOT NULL DEFAULT 'queued' CHECK(state IN ('queued', 'sent', 'failed')),
  last_error TEXT NOT NULL DEFAULT '',
  ended_at_ms INTEGER,
  CHECK((state = 'queued') = (ended_at_ms IS NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX outgoing_mail_due ON outgoing_mail(next_at_ms) WHERE state = 'queued';
CREATE INDEX outgoing_mail_account ON outgoing_mail(account) WHERE state = 'queued';
CREATE INDEX outgoing_mail_ended ON outgoing_mail(ended_at_ms) WHERE ended_at_ms IS NOT NULL;

CREATE TABLE webhook(
  account TEXT NOT NULL PRIMARY KEY REFERENCES account(id),
  url TEXT NOT NULL,
  -- The receiver checks signatures with the same secret, so a hash would not do.
  secret BLOB NOT NULL CHECK(length(secret) = 32),
  -- After a rotation, deliveries are signed with the old secret too, until this time.
  old_secret BLOB CHECK(length(old_secret) = 32),
  old_until_ms INTEGER,
  created_at_ms INTEGER NOT NULL,
  disabled_at_ms INTEGER,
  disabled_because TEXT NOT NULL DEFAULT '',
  CHECK((old_secret IS NULL) = (old_until_ms IS NULL))
) STRICT, WITHOUT ROWID;

CREATE TABLE webhook_delivery(
  id TEXT NOT NULL PRIMARY KEY,
  account TEXT NOT NULL REFERENCES account(id),
  event TEXT NOT NULL,
  -- The same bytes with every attempt: the receiver knows a repetition by its id.
  body TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL,
  -- As in outgoing_mail.
  next_at_ms INTEGER NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0,
  state TEXT NOT NULL DEFAULT 'pending' CHECK(state IN ('pending', 'delivered', 'failed')),
  -- Of the last attempt.
  last_status INTEGER,
  last_error TEXT NOT NULL DEFAULT '',
  took_ms INTEGER,
  ended_at_ms INTEGER,
  CHECK((state = 'pending') = (ended_at_ms IS NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX webhook_delivery_due ON webhook_delivery(next_at_ms) WHERE state = 'pending';
CREATE INDEX webhook_delivery_log ON webhook_delivery(account, created_at_ms);
CREATE INDEX webhook_delivery_ended ON webhook_delivery(ended_at_ms) WHERE ended_at_ms IS NOT NULL;

-- Rules that have fired and are not armed again.
CREATE TABLE alert_state(
  account TEXT NOT NULL REFERENCES account(id),
  rule TEXT NOT NULL,
  -- The period in which it fired: its start, or 0 for a rule without periods.
  period_ms INTEGER NOT NULL,
  fired_at_ms INTEGER NOT NULL,
  PRIMARY KEY(account, rule)
) STRICT, WITHOUT ROWID;

-- After a change of the password, nobody must be able to change it with a link from before.
CREATE TRIGGER password_voids_links AFTER UPDATE OF password ON account BEGIN
  DELETE FROM one_time_link WHERE account = NEW.id AND purpose IN ('reset', 'setup');
END;

CREATE TRIGGER deletion_ends_notices AFTER UPDATE OF deleted_at_ms ON account WHEN NEW.deleted_at_ms IS NOT NULL BEGIN
  DELETE FROM one_time_link WHERE account = NEW.id;
  DELETE FROM outgoing_mail WHERE account = NEW.id;
  DELETE FROM webhook_delivery WHERE account = NEW.id;
  DELETE FROM webhook WHERE account = NEW.id;
  DELETE FROM alert_state WHERE account = NEW.id;
  UPDATE account SET alerts = '', verified_at_ms = NULL WHERE id = NEW.id;
END;
