-- Reports to the ledger the end of a request that is so old that its marker may have expired. Only the ledger knows whether
-- this end was counted before; it posts the debit. A remaining hold is released, with what it counts under limits. The
-- next seeding of the API key's spending includes the debit.
-- KEYS: account, its holds, the partition's leases, the request's marker, the partition's events, the API key
-- ARGV: request, account, lifetime of the marker in ms, the ending for the ledger, number of tokens used
local known = redis.call('GET', KEYS[4])
if known then return {'known', known} end
local held = redis.call('HGET', KEYS[2], ARGV[1])
local a = account(KEYS[1])
if held and a then
  local paid, trial = parts(held)
  redis.call('HSET', KEYS[1], 'held_paid', I(math.max(0, a.held_paid - paid)),
    'held_trial', I(math.max(0, a.held_trial - trial)))
  unbind(held, KEYS[6], KEYS[1], tonumber(ARGV[5]))
end
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[2] .. ' ' .. ARGV[1])
local id = redis.call('XADD', KEYS[5], '*', 'late', ARGV[1], 'account', ARGV[2], 'ending', ARGV[4])
redis.call('SET', KEYS[4], id, 'PX', ARGV[3])
return {'done', id}
