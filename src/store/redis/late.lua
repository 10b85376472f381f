-- Reports to the ledger the end of a request that is so old that its marker may have expired. Only the ledger knows whether
-- this end was counted before; it posts the debit. A remaining hold is released, with what it counts under limits. The
-- next seeding of the API key's spending includes the debit.
-- KEYS: account, its holds of older versions, the partition's leases, the request's marker, the partition's events, the API key
-- ARGV: request, account, lifetime of the marker in ms, the ending for the ledger, number of tokens used
local known = redis.call('GET', KEYS[4])
if known then return {'known', ended(known, KEYS[5])} end
local a, held = account(KEYS[1], ARGV[1])
local is_old = not held
if is_old then held = redis.call('HGET', KEYS[2], ARGV[1]) end
if held and a then
  local open = a.open
  release(a, held)
  if is_old then a.open = open end
  redis.call('HSET', KEYS[1], 'held_paid', I(a.held_paid), 'held_trial', I(a.held_trial), 'open_holds', I(a.open))
  unbind(held, KEYS[6], KEYS[1], tonumber(ARGV[5]))
end
if is_old then remove_old(ARGV[1], ARGV[2]) else redis.call('HDEL', KEYS[1], '~' .. ARGV[1]) end
local id = redis.call('XADD', KEYS[5], '*', 'late', ARGV[1], 'account', ARGV[2], 'ending', ARGV[4])
redis.call('SET', KEYS[4], 'e' .. id, 'PX', ARGV[3])
return {'done', id}
