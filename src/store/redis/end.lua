-- Settles a request, once: releases its hold and debits the cost. The part of the cost above the hold is debited from free
-- credits, as far as there are any. It counts as the API key's spending too, whatever the key's limit: the account has paid it.
-- KEYS: account, its holds, the partition's leases, the request's marker, the partition's events, the API key
-- ARGV: request, account, cost, lifetime of the marker in ms, the ending for the ledger, number of tokens used
local known = redis.call('GET', KEYS[4])
if known then return {'known', known} end
local a = account(KEYS[1])
if not a then return {'unknown'} end
local held_paid, held_trial = 0, 0
local held = redis.call('HGET', KEYS[2], ARGV[1])
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
local now = clock()
local paid_free, trial_free = free(a, now)
local more_trial = take(trial_free)
trial, a.trial = trial + more_trial, a.trial - more_trial
local more_paid = take(paid_free)
paid, a.paid = paid + more_paid, a.paid - more_paid
redis.call('HSET', KEYS[1], 'paid', I(a.paid), 'trial', I(a.trial),
  'held_paid', I(math.max(0, a.held_paid)), 'held_trial', I(math.max(0, a.held_trial)))
if held then unbind(held, KEYS[6], KEYS[1], tonumber(ARGV[6])) end
if a.keyed then spend(KEYS[6], paid + trial, now) end
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[2] .. ' ' .. ARGV[1])
local id = redis.call('XADD', KEYS[5], '*', 'request', ARGV[1], 'account', ARGV[2],
  'paid', I(paid), 'trial', I(trial), 'writeoff', I(rest), 'ending', ARGV[5])
redis.call('SET', KEYS[4], id, 'PX', ARGV[4])
return {'done', id, I(paid), I(trial), I(rest)}
