-- Checks that the server accepts the write of an admission.
-- KEYS: a key of the partition
-- ARGV: its lifetime in ms
redis.call('SET', KEYS[1], '1', 'PX', ARGV[1])
return {'done'}
