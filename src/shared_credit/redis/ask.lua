-- Looks an idempotency key up, and enters the request as running if the key is unknown. A request that is past its time limit
-- and was never ended counts as done: its edge is gone, and only that edge could say that it was not debited.
-- KEYS: the entry, the running requests of its process
-- ARGV: the body's hash, request, the entry's name, how long it may run and how long it is kept after that, in ms
local known = redis.call('HMGET', KEYS[1], 'hash', 'request', 'until', 'headers', 'body')
if known[1] then
  -- Repeats the reply for a request that is already entered, so that a caller that lost it can call again.
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
