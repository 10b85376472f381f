-- Begins a new epoch of a partition, if the partition is still in the epoch that the caller saw.
-- KEYS: the partition's epoch
-- ARGV: the epoch that the caller saw or '', the new epoch
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return {'other'} end
redis.call('SET', KEYS[1], ARGV[2])
return {'done'}
