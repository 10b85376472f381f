-- Changes a balance by what the ledger has posted, or is about to take: once per operation. One that levels what an end
-- took counts only where that end does: a server that has lost it is restored by what the ledger took.
-- KEYS: account, the operation's marker, and where it levels an end the request's marker
-- ARGV: paid, trial, credited, how long the marker stays in ms, '1' where what is taken must be free,
--   the entry's position or 0
local known = redis.call('GET', KEYS[2])
if known then return {'known', string.match(known, '^(.*):(.*)$')} end
if KEYS[3] and redis.call('EXISTS', KEYS[3]) == 0 then return {'lost'} end
local a = account(KEYS[1])
if not a then return {'unknown'} end
local paid, trial, credited = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
-- The account was seeded from a ledger that had the entry.
local seq = tonumber(ARGV[6])
if seq > 0 and seq <= a.seeded then return {'known', I(paid), I(trial)} end
if ARGV[5] == '1' then
  local paid_free, trial_free = free(a, clock())
  if -paid > paid_free or -trial > trial_free then return {'insufficient', I(paid_free + trial_free)} end
end
redis.call('HSET', KEYS[1], 'paid', I(a.paid + paid), 'trial', I(a.trial + trial), 'credited', I(a.credited + credited))
redis.call('SET', KEYS[2], I(paid) .. ':' .. I(trial), 'PX', ARGV[4])
return {'done'}
