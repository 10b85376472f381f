-- Begins another epoch of a partition, where the one before is still the one that was seen.
-- KEYS: the partition's epoch
-- ARGV: the one before or '', the new one
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return {'other'} end
redis.call('SET', KEYS[1], ARGV[2])
return {'done'}
