-- What the gateway keeps in PostgreSQL. Amounts are µc (1 credit = 1 000 000 µc). Times are milliseconds since 1970 UTC.
-- Run as it stands, or by `model-gateway sidecar`, if its role may create schemas. Version 1.

CREATE SCHEMA model_gateway;
SET search_path = model_gateway;

CREATE TABLE schema_version (only_row boolean PRIMARY KEY CHECK (only_row), version integer NOT NULL);
INSERT INTO schema_version VALUES (true, 1);

-- Who may write, and how far the data is: one row for the ledger and one for the accounts. Each commit of the holder changes the row, so
-- that a process that was superseded cannot commit.
CREATE TABLE holding (
  domain      text PRIMARY KEY CHECK (domain IN ('ledger', 'accounts')),
  epoch       bigint NOT NULL,       -- grows with each new holder
  holder      text NOT NULL,         -- id of a data directory
  address     text NOT NULL,         -- where the holder's sidecar listens
  lease_until timestamptz NOT NULL,  -- by this server's clock
  seq         bigint NOT NULL,       -- last entry
  hash        bytea NOT NULL,        -- its hash
  version     bigint NOT NULL,       -- last change of rows besides the entries
  format      integer NOT NULL       -- version of the holder's file: an older program must not change what a newer one wrote
);
INSERT INTO holding VALUES
  ('ledger', 0, '', '', '-infinity', 0, decode(repeat('00', 32), 'hex'), 0, 0),
  ('accounts', 0, '', '', '-infinity', 0, decode(repeat('00', 32), 'hex'), 0, 0);

-- The columns of `entry` in ledger.db.
CREATE TABLE entry (
  seq       bigint PRIMARY KEY,
  kind      text NOT NULL CHECK (kind IN ('debit', 'void', 'refund', 'adjust', 'trial', 'grant', 'topup', 'lapse',
    'bonus', 'payment_refund', 'dispute', 'code')),
  ref       text NOT NULL,
  account   text NOT NULL,
  at        bigint NOT NULL,
  d_paid    bigint NOT NULL,
  d_trial   bigint NOT NULL,
  bal_paid  bigint NOT NULL CHECK (bal_paid >= 0),
  bal_trial bigint NOT NULL CHECK (bal_trial >= 0),
  writeoff  bigint NOT NULL,
  detail    text NOT NULL,
  prev      bytea NOT NULL,
  hash      bytea NOT NULL
);
-- A request ends once; any other entry counts once by its kind and reference.
CREATE UNIQUE INDEX entry_ends_a_request_once ON entry (ref) WHERE kind IN ('debit', 'void');
CREATE UNIQUE INDEX entry_counts_once ON entry (kind, ref) WHERE kind NOT IN ('debit', 'void');

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'entries are immutable'; END $$;
CREATE TRIGGER entry_is_immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON entry
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TABLE account (
  id            text PRIMARY KEY,
  paid          bigint NOT NULL CHECK (paid >= 0),
  trial         bigint NOT NULL CHECK (trial >= 0),
  trial_ends_at bigint,
  credited      bigint NOT NULL,
  opened_at     bigint NOT NULL,
  version       bigint NOT NULL      -- of holding, at the last change
) WITH (fillfactor = 70);
CREATE INDEX account_version ON account (version);

-- Rows of other tables of ledger.db, and of all tables of app.db, as JSON.
CREATE TABLE copied_row (
  domain  text NOT NULL,
  tbl     text NOT NULL,
  key     text NOT NULL,             -- JSON array: the primary key
  row     text,                      -- JSON object: columns; NULL: deleted
  version bigint NOT NULL,
  PRIMARY KEY (domain, tbl, key)
) WITH (fillfactor = 70);
CREATE INDEX copied_row_version ON copied_row (domain, version);
