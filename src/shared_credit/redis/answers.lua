-- Bookkeeping of a partition's stored responses and of the idempotency keys they belong to; the start of each script that
-- changes it. Each key that is done counts as 1 KiB, whether its response is stored or not.
-- KEYS: responses by expiry, done keys by expiry, bytes of each account's stored responses ('*': of all)
local KEY_BYTES = 1024
local at = string.match(KEYS[1], '^gw:{.-}:')
-- Drops a response, but keeps its key.
local function give_up(answer)
  local bytes, name, request = string.match(answer, '^(%d+) (%S+) (%S+)$')
  local of = string.match(name, '^(.*):')
  redis.call('ZREM', KEYS[1], answer)
  redis.call('ZREM', at .. 'ia:' .. of, answer)
  for _, counted in ipairs({of, '*'}) do
    if redis.call('HINCRBY', KEYS[3], counted, '-' .. bytes) <= 0 then redis.call('HDEL', KEYS[3], counted) end
  end
  local entry = at .. 'i:' .. name
  if redis.call('HGET', entry, 'request') == request then redis.call('HDEL', entry, 'headers', 'body') end
end
-- Drops a key: the next request under it counts as new.
local function forget(known)
  redis.call('ZREM', KEYS[2], known)
  local name, request = string.match(known, '^(%S+) (%S+)$')
  local entry = at .. 'i:' .. name
  if redis.call('HGET', entry, 'request') == request then redis.call('DEL', entry) end
end
local function oldest(index)
  return redis.call('ZRANGE', index, 0, 0)[1]
end
local function used(by)
  return tonumber(redis.call('HGET', KEYS[3], by) or '0')
end
-- Redis has deleted expired entries already; this removes them from the totals.
local function tidy(now, most)
  local answers = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', I(now), 'LIMIT', 0, most)
  for _, answer in ipairs(answers) do give_up(answer) end
  local keys = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', I(now), 'LIMIT', 0, most)
  for _, known in ipairs(keys) do redis.call('ZREM', KEYS[2], known) end
  return #answers + #keys
end
