-- Changes a balance by an entry that the ledger has posted, or by a debit that it is about to post: once per operation. A
-- correction of a settled request counts only if the server has that settlement, and with it the event. If it lost it, the
-- restore uses the ledger's amount. The debit of a late end counts as spending of the API key and its member.
-- KEYS: account, the operation's marker; for a correction the partition's events, for a late end the API key and the member
-- ARGV: paid, trial, credited, lifetime of the operation's marker in ms, '1' if free credits must cover the debit,
--   the entry's position or 0; for a correction the event's id and its request, for a late end its time
local known = redis.call('GET', KEYS[2])
if known then return {'known', string.match(known, '^(.*):(.*)$')} end
if ARGV[8] then
  local event = redis.call('XRANGE', KEYS[3], ARGV[7], ARGV[7])[1]
  if not event or event[2][1] ~= 'request' or event[2][2] ~= ARGV[8] then return {'lost'} end
end
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
if ARGV[7] and not ARGV[8] and a.keyed then
  for i = 3, #KEYS do spend(KEYS[i], -(paid + trial), tonumber(ARGV[7]), seq) end
end
return {'done'}
