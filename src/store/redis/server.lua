-- Returns the server's identity, the partition's epoch and the server's time.
-- KEYS: the partition's epoch
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''
local history = string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)') or ''
return {server .. ':' .. history, redis.call('GET', KEYS[1]) or '', I(clock())}
