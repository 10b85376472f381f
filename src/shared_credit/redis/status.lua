-- Sets whether an account may spend, if the server knows the account.
-- KEYS: account
-- ARGV: status
if redis.call('EXISTS', KEYS[1]) == 0 then return {'unknown'} end
redis.call('HSET', KEYS[1], 'status', ARGV[1])
return {'done'}
