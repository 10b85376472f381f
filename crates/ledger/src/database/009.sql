-- What pages read is derived from the entries in a file of its own (`index.db`). The indexes of `entry` that only pages used
-- are dropped one at a time once that file has caught up, and the aggregates of versions 5 to 8 are emptied then
-- (`indexer/retired.rs`): both would take too long here. The tables stay: a process of version 8 that still ends its requests
-- beside this one writes there.
SELECT 1;
