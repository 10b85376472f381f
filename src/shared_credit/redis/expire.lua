-- Expires the rest of a trial that is over, once no request holds any of it. The expiry counts as an operation, so that a
-- server that loses it receives it again.
-- KEYS: account, the partition's events, the operation's marker
-- ARGV: account, lifetime of the marker in ms
local a = account(KEYS[1])
if not a then return {'unknown'} end
if not a.trial_ends or clock() < a.trial_ends or a.trial <= 0 or a.held_trial > 0 then return {'living'} end
redis.call('HSET', KEYS[1], 'trial', '0')
local id = redis.call('XADD', KEYS[2], '*', 'lapse', ARGV[1], 'account', ARGV[1], 'trial', I(a.trial))
redis.call('SET', KEYS[3], '0:' .. I(-a.trial), 'PX', ARGV[2])
return {'done', id, I(a.trial)}
