-- Releases a hold of an older version, beside the account, whose lease has ended.
-- KEYS: account, its holds, the partition's leases, the API key that the hold names
-- ARGV: request, account
local lease = redis.call('ZSCORE', KEYS[3], ARGV[2] .. ' ' .. ARGV[1])
if not lease or tonumber(lease) > clock() then return {'living'} end
local held = redis.call('HGET', KEYS[2], ARGV[1])
if held and redis.call('EXISTS', KEYS[1]) == 1 then
  local paid, trial = parts(held)
  redis.call('HINCRBY', KEYS[1], 'held_paid', I(-paid))
  redis.call('HINCRBY', KEYS[1], 'held_trial', I(-trial))
  unbind(held, KEYS[4], KEYS[1], 0)
end
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[2] .. ' ' .. ARGV[1])
return {'done'}
