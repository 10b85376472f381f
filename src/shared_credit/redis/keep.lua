-- Marks a request under an idempotency key as done and stores its response, if there is one to store. If the server has lost
-- the entry, this creates it again. If another request has the key by now, that request's entry stays.
-- KEYS: as in answers.lua; then the entry, the running requests of its process, the account's responses by expiry
-- ARGV: the body's hash or '', request, the entry's name, its account, how long it is kept in ms, the byte limits of an account
--   and of the partition; if a response is stored: its headers and body
local known = redis.call('HMGET', KEYS[4], 'request', 'until', 'hash')
redis.call('HDEL', KEYS[5], ARGV[2])
if known[1] and known[1] ~= ARGV[2] then return {'taken'} end
if known[1] and not known[2] then return {'known'} end
local hash = known[3] or ARGV[1]
if hash == '' then return {'lost'} end
local now = clock()
tidy(now, 16)
local expires, name = I(now + tonumber(ARGV[5])), ARGV[3]
local most_of_account, most = tonumber(ARGV[6]), tonumber(ARGV[7])
redis.call('HSET', KEYS[4], 'hash', hash, 'request', ARGV[2])
redis.call('HDEL', KEYS[4], 'until')
redis.call('PEXPIRE', KEYS[4], ARGV[5])
redis.call('ZADD', KEYS[2], expires, name .. ' ' .. ARGV[2])
-- Drops up to two keys per call: one makes room for the new key, the other lets a lowered limit take effect over time.
for _ = 1, 2 do
  if redis.call('ZCARD', KEYS[2]) * KEY_BYTES > most then forget(oldest(KEYS[2])) end
end
if not ARGV[9] then return {'done'} end
local bytes = #ARGV[8] + #ARGV[9]
-- Drops the oldest responses to make room, at most 16 per call: a script blocks its server while it runs.
for _ = 1, 16 do
  local full = nil
  if used(ARGV[4]) + bytes > most_of_account then full = KEYS[6] elseif used('*') + bytes > most then full = KEYS[1] end
  local first = full and oldest(full)
  if not first then break end
  give_up(first)
end
if used(ARGV[4]) + bytes > most_of_account or used('*') + bytes > most then return {'done'} end
local answer = I(bytes) .. ' ' .. name .. ' ' .. ARGV[2]
redis.call('HSET', KEYS[4], 'headers', ARGV[8], 'body', ARGV[9])
redis.call('ZADD', KEYS[1], expires, answer)
redis.call('ZADD', KEYS[6], expires, answer)
redis.call('PEXPIRE', KEYS[6], ARGV[5])
redis.call('HINCRBY', KEYS[3], ARGV[4], I(bytes))
redis.call('HINCRBY', KEYS[3], '*', I(bytes))
return {'kept'}
