-- Usage: the sums of `spent` by key too, by the day, and by the day over all accounts. They change in the transaction that enters
-- a debit, and are filled from the entries here.
--
-- `spent` stays, empty: a process of the older version that still ends its requests beside this one writes there. What it
-- writes is missing below until the aggregates are rebuilt.
DELETE FROM spent;

CREATE TABLE usage_hour (
  account    TEXT NOT NULL,
  hour       INTEGER NOT NULL,  -- since 1970 UTC
  model      TEXT NOT NULL,
  key_id     TEXT NOT NULL,
  responses  INTEGER NOT NULL,
  credits    INTEGER NOT NULL,  -- µc
  input      INTEGER NOT NULL,  -- tokens of every class of input
  cache_read INTEGER NOT NULL,  -- those of them that came from a cache
  output     INTEGER NOT NULL,
  PRIMARY KEY (account, hour, model, key_id)
) STRICT, WITHOUT ROWID;

-- Ten years of one account are read by the day.
CREATE TABLE usage_day (
  account    TEXT NOT NULL,
  day        INTEGER NOT NULL,  -- since 1970 UTC
  model      TEXT NOT NULL,
  key_id     TEXT NOT NULL,
  responses  INTEGER NOT NULL,
  credits    INTEGER NOT NULL,
  input      INTEGER NOT NULL,
  cache_read INTEGER NOT NULL,
  output     INTEGER NOT NULL,
  PRIMARY KEY (account, day, model, key_id)
) STRICT, WITHOUT ROWID;

-- All accounts together, for the operator.
CREATE TABLE usage_total (
  day        INTEGER NOT NULL,
  model      TEXT NOT NULL,
  responses  INTEGER NOT NULL,
  credits    INTEGER NOT NULL,
  input      INTEGER NOT NULL,
  cache_read INTEGER NOT NULL,
  output     INTEGER NOT NULL,
  writeoff   INTEGER NOT NULL,  -- parts of costs that the accounts could not pay
  PRIMARY KEY (day, model)
) STRICT, WITHOUT ROWID;

-- The few entries of an account that are not ends of requests, with all that a statement adds up.
CREATE INDEX entry_postings ON entry (account, at, seq, kind, d_paid, d_trial) WHERE kind NOT IN ('debit', 'void');

-- Debits of more tokens than the request can use, for the operator: few, and listed without reading the ledger.
CREATE INDEX entry_implausible ON entry (seq) WHERE kind = 'debit' AND instr(detail, '"implausible":true') > 0;

-- A vendor's counter can be nonsense: of one response, at most 2^40 tokens of a class count.
INSERT INTO usage_hour (account, hour, model, key_id, responses, credits, input, cache_read, output)
SELECT account, at / 3600000, ifnull(detail ->> '$.model', ''), ifnull(detail ->> '$.key_id', ''), count(*),
  min(-sum(d_paid + d_trial), 9007199254740991),
  min(sum(min(ifnull(detail ->> '$.usage.input', 0) + ifnull(detail ->> '$.usage.cache_read', 0)
    + ifnull(detail ->> '$.usage.cache_write_5m', 0) + ifnull(detail ->> '$.usage.cache_write_1h', 0)
    + ifnull(detail ->> '$.usage.audio_input', 0), 1 << 40)), 1 << 62),
  min(sum(min(ifnull(detail ->> '$.usage.cache_read', 0), 1 << 40)), 1 << 62),
  min(sum(min(ifnull(detail ->> '$.usage.output', 0) + ifnull(detail ->> '$.usage.audio_output', 0), 1 << 40)), 1 << 62)
FROM entry WHERE kind = 'debit' AND json_valid(detail) GROUP BY 1, 2, 3, 4;

INSERT INTO usage_day (account, day, model, key_id, responses, credits, input, cache_read, output)
SELECT account, hour / 24, model, key_id, sum(responses), min(sum(credits), 9007199254740991),
  min(sum(input), 1 << 62), min(sum(cache_read), 1 << 62), min(sum(output), 1 << 62)
FROM usage_hour GROUP BY 1, 2, 3, 4;

WITH lost (day, model, writeoff) AS MATERIALIZED (
  SELECT at / 86400000, ifnull(detail ->> '$.model', ''), min(sum(writeoff), 9007199254740991)
  FROM entry WHERE kind = 'debit' AND writeoff > 0 AND json_valid(detail) GROUP BY 1, 2
), summed (day, model, responses, credits, input, cache_read, output) AS MATERIALIZED (
  SELECT day, model, sum(responses), min(sum(credits), 9007199254740991),
    min(sum(input), 1 << 62), min(sum(cache_read), 1 << 62), min(sum(output), 1 << 62)
  FROM usage_day GROUP BY 1, 2
)
INSERT INTO usage_total (day, model, responses, credits, input, cache_read, output, writeoff)
SELECT day, model, responses, credits, input, cache_read, output, ifnull(writeoff, 0)
FROM summed LEFT JOIN lost USING (day, model);
