-- Whether an admission could be written here.
-- KEYS: a key of the partition's
-- ARGV: how long it stays in ms
redis.call('SET', KEYS[1], '1', 'PX', ARGV[1])
return {'done'}
