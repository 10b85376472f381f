-- Makes a key known by its hash; one that opens no door any more is told to all who may remember it.
-- KEYS: the key
-- ARGV: hash, account, key id, shown, status, the account's status, how long a revoked key stays in ms
redis.call('HSET', KEYS[1], 'account', ARGV[2], 'key_id', ARGV[3], 'shown', ARGV[4], 'status', ARGV[5],
  'account_status', ARGV[6])
if ARGV[5] == 'revoked' then redis.call('PEXPIRE', KEYS[1], ARGV[7]) else redis.call('PERSIST', KEYS[1]) end
if ARGV[5] ~= 'active' or ARGV[6] ~= 'active' then
  redis.call('HSETNX', KEYS[1], 'closed_at', I(clock()))
  redis.call('PUBLISH', 'gw:revoked', ARGV[1] .. ' ' .. I(clock()))
else
  redis.call('HDEL', KEYS[1], 'closed_at')
end
return {'done'}
