-- What a commit of many endings writes is small: how much of what the serving process has settled is in the balances stands in
-- the account's and the key's own row, not in rows of its own.
--
-- From here on `entry.detail` may have control characters in the place of the texts that nearly every ending has
-- (`compact_detail.rs`); the hash covers the JSON without them.
--
-- A process of an older version that still ends its requests beside this one writes `applied` and `applied_key`, as it knows
-- them. Those tables also take the amounts of a process whose place another one has taken in a row.

-- The number of an instance that has settled requests. A number is never given again.
CREATE TABLE instance (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  boot   TEXT NOT NULL UNIQUE
) STRICT;

ALTER TABLE account ADD COLUMN applied_by INTEGER;  -- number of an instance
ALTER TABLE account ADD COLUMN applied_paid INTEGER NOT NULL DEFAULT 0;
ALTER TABLE account ADD COLUMN applied_trial INTEGER NOT NULL DEFAULT 0;

-- At most one row of a key has them, in general that of its last day.
ALTER TABLE key_spend ADD COLUMN applied_by INTEGER;
ALTER TABLE key_spend ADD COLUMN applied INTEGER NOT NULL DEFAULT 0;
