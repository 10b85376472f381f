-- What account holders look their spending up by. The entries stay as they are: the columns are read out of `detail`,
-- and the sums stand beside the entries, moved in the transaction that enters each debit.

ALTER TABLE entry ADD COLUMN model TEXT GENERATED ALWAYS AS (CASE WHEN json_valid(detail) THEN detail ->> '$.model' END) VIRTUAL;
ALTER TABLE entry ADD COLUMN key_id TEXT GENERATED ALWAYS AS (CASE WHEN json_valid(detail) THEN detail ->> '$.key_id' END) VIRTUAL;
ALTER TABLE entry ADD COLUMN outcome TEXT GENERATED ALWAYS AS (CASE WHEN json_valid(detail) THEN detail ->> '$.outcome' END) VIRTUAL;
ALTER TABLE entry ADD COLUMN conversation TEXT GENERATED ALWAYS AS (CASE WHEN json_valid(detail) THEN detail ->> '$.conversation' END) VIRTUAL;

CREATE INDEX entry_by_time ON entry (account, at) WHERE kind IN ('debit', 'void');
CREATE INDEX entry_by_model ON entry (account, model, at) WHERE kind IN ('debit', 'void');
CREATE INDEX entry_by_key ON entry (account, key_id, at) WHERE kind IN ('debit', 'void');
-- Nearly all are completed: those are found by time.
CREATE INDEX entry_by_outcome ON entry (account, outcome, at) WHERE kind IN ('debit', 'void') AND outcome <> 'completed';
CREATE INDEX entry_by_conversation ON entry (account, conversation, at)
  WHERE kind IN ('debit', 'void') AND conversation IS NOT NULL;

-- Debits by the hour: a chart of a month reads at most 720 rows for a model, whatever was spent.
CREATE TABLE spent (
  account    TEXT NOT NULL,
  hour       INTEGER NOT NULL,  -- since 1970 UTC
  model      TEXT NOT NULL,
  responses  INTEGER NOT NULL,
  credits    INTEGER NOT NULL,
  input      INTEGER NOT NULL,  -- tokens of every class of input
  cache_read INTEGER NOT NULL,  -- those of them that came from a cache
  output     INTEGER NOT NULL,
  PRIMARY KEY (account, hour, model)
) STRICT, WITHOUT ROWID;

CREATE TABLE conversation (
  account    TEXT NOT NULL,
  id         TEXT NOT NULL,
  began_at   INTEGER NOT NULL,
  last_at    INTEGER NOT NULL,
  turns      INTEGER NOT NULL,
  credits    INTEGER NOT NULL,
  input      INTEGER NOT NULL,
  cache_read INTEGER NOT NULL,
  output     INTEGER NOT NULL,
  PRIMARY KEY (account, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX conversation_by_time ON conversation (account, last_at, id);

INSERT INTO spent (account, hour, model, responses, credits, input, cache_read, output)
SELECT account, at / 3600000, ifnull(model, ''), count(*), -sum(d_paid + d_trial),
  sum(ifnull(detail ->> '$.usage.input', 0) + ifnull(detail ->> '$.usage.cache_read', 0)
    + ifnull(detail ->> '$.usage.cache_write_5m', 0) + ifnull(detail ->> '$.usage.cache_write_1h', 0)
    + ifnull(detail ->> '$.usage.audio_input', 0)),
  sum(ifnull(detail ->> '$.usage.cache_read', 0)),
  sum(ifnull(detail ->> '$.usage.output', 0) + ifnull(detail ->> '$.usage.audio_output', 0))
FROM entry WHERE kind = 'debit' AND json_valid(detail) GROUP BY account, at / 3600000, ifnull(model, '');
