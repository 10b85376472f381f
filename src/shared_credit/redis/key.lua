-- Stores an API key by its hash. If the key is not valid any more, has moved to another account, or has other settings, this
-- publishes its hash to all processes that may have it in a cache.
-- KEYS: the key
-- ARGV: hash, account, key id, displayed form, status, the account's status, how long it is kept in ms,
--   or 0 if it is kept for good, the key's settings, the account's rates, the member's id, budget and allowed models, or
--   three empty texts
local before = redis.call('HMGET', KEYS[1], 'settings', 'account_rates', 'member', 'budget', 'account', 'key_id', 'models')
redis.call('HSET', KEYS[1], 'account', ARGV[2], 'key_id', ARGV[3], 'shown', ARGV[4], 'status', ARGV[5],
  'account_status', ARGV[6], 'settings', ARGV[8], 'account_rates', ARGV[9],
  'member', ARGV[10], 'budget', ARGV[11], 'models', ARGV[12])
if ARGV[7] ~= '0' then redis.call('PEXPIRE', KEYS[1], ARGV[7]) else redis.call('PERSIST', KEYS[1]) end
local is_closed = ARGV[5] ~= 'active' or ARGV[6] ~= 'active'
if is_closed then redis.call('HSETNX', KEYS[1], 'closed_at', I(clock())) else redis.call('HDEL', KEYS[1], 'closed_at') end
local is_other = before[1] and (before[1] ~= ARGV[8] or before[2] ~= ARGV[9]
  or (before[3] or '') ~= ARGV[10] or (before[4] or '') ~= ARGV[11] or before[5] ~= ARGV[2] or before[6] ~= ARGV[3]
  or (before[7] or '') ~= ARGV[12])
if is_closed then
  redis.call('PUBLISH', 'gw:revoked', ARGV[1] .. ' ' .. I(clock()))
elseif is_other then
  redis.call('PUBLISH', 'gw:revoked', ARGV[1])
end
return {'done'}
