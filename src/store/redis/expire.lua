-- Lapses what is left of a trial that is over, once no request holds any of it.
-- KEYS: account, the partition's events
-- ARGV: account
local a = account(KEYS[1])
if not a then return {'unknown'} end
if not a.trial_ends or clock() < a.trial_ends or a.trial <= 0 or a.held_trial > 0 then return {'living'} end
redis.call('HSET', KEYS[1], 'trial', '0')
local id = redis.call('XADD', KEYS[2], '*', 'lapse', ARGV[1], 'account', ARGV[1], 'trial', I(a.trial))
return {'done', id, I(a.trial)}
