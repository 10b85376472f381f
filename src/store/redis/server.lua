-- Returns the server's identity, its time, and the epochs of its partitions.
-- KEYS: the epochs of partitions
local info = redis.call('INFO', 'server', 'replication')
local server = string.match(info, 'run_id:(%w+)') or ''
local history = string.match(info, 'master_replid:(%w+)') or ''
local answer = {server .. ':' .. history, I(clock())}
for i, epoch in ipairs(mget(KEYS)) do answer[i + 2] = epoch or '' end
return answer
