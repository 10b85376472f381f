-- Settles a request, once: releases its hold and debits the cost. The part of the cost above the hold is debited from free
-- credits, as far as there are any. It counts as spending of the API key and its member too, whatever
-- their limits: the account has paid it.
-- A cost without a hold is left to the ledger: the hold's lease has ended, or the server has lost the hold, and perhaps also
-- the end that released it. Only the ledger knows whether this end was counted before; it posts its debit. So is an end of an
-- account that the server has lost: the account is seeded after the ledger has the end.
-- KEYS: account, its holds of older versions, the partition's leases, the request's marker, the partition's events, the API key,
--   of a member's key also the member
-- ARGV: request, account, cost, lifetime of the marker in ms, the ending for the ledger, number of tokens used
local a, held = account(KEYS[1], ARGV[1])
local is_old = a and not held
if is_old then held = redis.call('HGET', KEYS[2], ARGV[1]) end
if not a or (not held and tonumber(ARGV[3]) > 0) then
  local known = redis.call('GET', KEYS[4])
  if known then return {'known', ended(known, KEYS[5])} end
  local id = redis.call('XADD', KEYS[5], '*', 'late', ARGV[1], 'account', ARGV[2], 'ending', ARGV[5])
  redis.call('SET', KEYS[4], LATE .. id, 'PX', ARGV[4])
  return {'done', id, '0', '0', '0'}
end
local held_paid, held_trial = 0, 0
if held then
  held_paid, held_trial = parts(held)
  a.held_paid, a.held_trial = a.held_paid - held_paid, a.held_trial - held_trial
end
local rest = tonumber(ARGV[3])
local function take(most)
  local taken = math.max(0, math.min(rest, most))
  rest = rest - taken
  return taken
end
-- Never debits more than a bucket has: a store that lost its last writes may have promised it twice. What one bucket lacks
-- is debited from the other; the ledger decides which bucket pays.
local trial = take(math.min(held_trial, a.trial))
local paid = take(math.min(held_paid, a.paid))
a.trial, a.paid = a.trial - trial, a.paid - paid
if rest > 0 then
  local paid_free, trial_free = free(a, clock())
  local more_trial = take(trial_free)
  trial, a.trial = trial + more_trial, a.trial - more_trial
  local more_paid = take(paid_free)
  paid, a.paid = paid + more_paid, a.paid - more_paid
end
-- The event comes first, since the marker names it. If there is a marker, this was an end that the server knows.
local id = redis.call('XADD', KEYS[5], '*', 'request', ARGV[1], 'account', ARGV[2],
  'paid', I(paid), 'trial', I(trial), 'writeoff', I(rest), 'ending', ARGV[5])
local known = redis.call('SET', KEYS[4], SETTLED .. id, 'PX', ARGV[4], 'NX', 'GET')
if known then
  redis.call('XDEL', KEYS[5], id)
  return {'known', ended(known, KEYS[5])}
end
if held and not is_old then a.open = math.max(0, a.open - 1) end
redis.call('HSET', KEYS[1], 'paid', I(a.paid), 'trial', I(a.trial), 'held_paid', I(math.max(0, a.held_paid)),
  'held_trial', I(math.max(0, a.held_trial)), 'open_holds', I(a.open))
if held then unbind(held, KEYS[6], KEYS[1], tonumber(ARGV[6])) end
for i = 6, a.keyed and #KEYS or 0 do spend(KEYS[i], paid + trial, tonumber(string.match(id, '^%d+'))) end
if is_old then remove_old(ARGV[1], ARGV[2]) else redis.call('HDEL', KEYS[1], '~' .. ARGV[1]) end
return {'done', id, I(paid), I(trial), I(rest)}
