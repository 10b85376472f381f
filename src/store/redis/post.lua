-- Changes a balance by an entry that the ledger has posted, or by a debit that it is about to post: once per operation. A
-- correction of a settled request counts only if the server has that settlement. If it lost it, the restore uses the
-- ledger's amount.
-- KEYS: account, the operation's marker, and for a correction the marker of the settled request
-- ARGV: paid, trial, credited, lifetime of the marker in ms, '1' if free credits must cover the debit,
--   the entry's position or 0
local known = redis.call('GET', KEYS[2])
if known then return {'known', string.match(known, '^(.*):(.*)$')} end
if KEYS[3] and redis.call('EXISTS', KEYS[3]) == 0 then return {'lost'} end
local a = account(KEYS[1])
if not a then return {'unknown'} end
local paid, trial, credited = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
-- The account was seeded from a ledger that already had the entry.
local seq = tonumber(ARGV[6])
if seq > 0 and seq <= a.seeded then return {'known', I(paid), I(trial)} end
if ARGV[5] == '1' then
  local paid_free, trial_free = free(a, clock())
  if -paid > paid_free or -trial > trial_free then return {'insufficient', I(paid_free + trial_free)} end
end
redis.call('HSET', KEYS[1], 'paid', I(a.paid + paid), 'trial', I(a.trial + trial), 'credited', I(a.credited + credited))
redis.call('SET', KEYS[2], I(paid) .. ':' .. I(trial), 'PX', ARGV[4])
return {'done'}
