-- Releases the idempotency key of a request that had no result.
-- KEYS: the entry, the running requests of its process
-- ARGV: request
local known = redis.call('HMGET', KEYS[1], 'request', 'until')
redis.call('HDEL', KEYS[2], ARGV[1])
if known[1] ~= ARGV[1] or not known[2] then return {'known'} end
redis.call('DEL', KEYS[1])
return {'done'}
