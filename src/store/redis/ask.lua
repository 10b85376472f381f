-- Looks an idempotency key up, and enters the request as running where nothing is known of it. One that ran longer than
-- it may and that nobody ended is taken for spent: its edge is gone, and so is who could say that it was not debited.
-- KEYS: the entry, what its process runs
-- ARGV: the body's hash, request, its name, how long it may run and how long it is known after that, in ms
local known = redis.call('HMGET', KEYS[1], 'hash', 'request', 'until', 'headers', 'body')
if known[1] then
  -- Says the same again for a request that is entered already, so that a lost answer can be asked for once more.
  if known[2] == ARGV[2] then return {'new'} end
  if known[1] ~= ARGV[1] then return {'other_body'} end
  if known[3] and clock() < tonumber(known[3]) then return {'running'} end
  if known[5] then return {'done', known[2], known[4], known[5]} end
  return {'done', known[2]}
end
local runs, lasts = tonumber(ARGV[4]), I(tonumber(ARGV[4]) + tonumber(ARGV[5]))
redis.call('HSET', KEYS[1], 'hash', ARGV[1], 'request', ARGV[2], 'until', I(clock() + runs))
redis.call('PEXPIRE', KEYS[1], lasts)
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('PEXPIRE', KEYS[2], lasts)
return {'new'}
