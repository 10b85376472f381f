-- Sets credit aside for a request: `full`, or where that does not fit all there is, as long as it is `floor` at least.
-- KEYS: account, its holds, the partition's leases, the request's marker
-- ARGV: request, account, full, floor, lease in ms, most open requests
-- Says the same again for a request that is held already, so that a lost answer can be asked for once more.
if redis.call('EXISTS', KEYS[4]) == 1 then return {'ended'} end
local known = redis.call('HGET', KEYS[2], ARGV[1])
if known then
  local paid, trial = parts(known)
  return {'held', I(paid), I(trial)}
end
local a = account(KEYS[1])
if not a then return {'unknown'} end
if a.status ~= 'active' then return {'suspended'} end
if redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[6]) then return {'too_many', ARGV[6]} end
local now = clock()
local full, floor = tonumber(ARGV[3]), tonumber(ARGV[4])
local paid_free, trial_free = free(a, now)
local amount = full
if paid_free + trial_free < full then
  amount = paid_free + trial_free
  if amount < floor or amount <= 0 then
    if a.trial_ends and now >= a.trial_ends and a.credited == 0 then return {'trial_expired'} end
    return {'insufficient', I(amount)}
  end
end
local trial = math.min(amount, trial_free)
local paid = amount - trial
redis.call('HINCRBY', KEYS[1], 'held_paid', I(paid))
redis.call('HINCRBY', KEYS[1], 'held_trial', I(trial))
redis.call('HSET', KEYS[2], ARGV[1], I(paid) .. ':' .. I(trial))
redis.call('ZADD', KEYS[3], I(now + tonumber(ARGV[5])), ARGV[2] .. ' ' .. ARGV[1])
return {'held', I(paid), I(trial)}
