-- What each key has spent, as its running total by day: what it spent since any day is the difference of two rows. Moved
-- in the transaction that enters a debit. A refund gives the account credit, not the key another chance.
CREATE TABLE key_spend (
  key     TEXT NOT NULL,
  day     INTEGER NOT NULL,  -- since 1970 UTC
  total   INTEGER NOT NULL,  -- µc from the first day on, up to the end of this
  used_at INTEGER NOT NULL,  -- the last end of a request on this day
  PRIMARY KEY (key, day)
) STRICT, WITHOUT ROWID;

INSERT INTO key_spend (key, day, total, used_at)
SELECT key, day, sum(spent) OVER (PARTITION BY key ORDER BY day), used_at
FROM (
  SELECT detail ->> '$.key_id' AS key, at / 86400000 AS day, -sum(d_paid + d_trial) AS spent, max(at) AS used_at
  FROM entry WHERE kind IN ('debit', 'void') AND json_valid(detail) AND detail ->> '$.key_id' IS NOT NULL
  GROUP BY 1, 2
);

-- How much of what a process has settled for a key is in there: as `applied` is for accounts.
CREATE TABLE applied_key (
  boot  TEXT NOT NULL,
  key   TEXT NOT NULL,
  spent INTEGER NOT NULL,
  PRIMARY KEY (boot, key)
) STRICT, WITHOUT ROWID;
