-- Releases the holds of an account whose leases have ended: their edges are gone, or have lost track of them. Sets when the
-- account is visited next, or takes it off the list if it has no holds.
-- KEYS: account, the partition's leases
-- ARGV: account
local now = clock()
local due = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not due or tonumber(due) > now then return {'living'} end
local a = account(KEYS[1])
if not a then
  redis.call('ZREM', KEYS[2], ARGV[1])
  return {'done', '0'}
end
local at = string.match(KEYS[1], '^gw:{.-}:')
local fields = redis.call('HGETALL', KEYS[1])
local lapsed, held, open, next_visit = {}, {}, 0, now + VISIT
for i = 1, #fields, 2 do
  if string.sub(fields[i], 1, 1) == '~' then
    local ends = tonumber(string.match(fields[i + 1], '@(%d+)$')) or 0
    if ends <= now then
      table.insert(lapsed, fields[i])
      table.insert(held, fields[i + 1])
    else
      open, next_visit = open + 1, math.min(next_visit, ends)
    end
  end
end
for _, value in ipairs(held) do release(a, value) end
if open > 0 then redis.call('ZADD', KEYS[2], I(next_visit), ARGV[1]) else redis.call('ZREM', KEYS[2], ARGV[1]) end
redis.call('HSET', KEYS[1], 'held_paid', I(a.held_paid), 'held_trial', I(a.held_trial), 'open_holds', I(open))
for _, value in ipairs(held) do unbind(value, at .. 'k:' .. (string.match(value, ':([^:@]*)@%d+$') or ''), KEYS[1], 0) end
if open == 0 then table.insert(lapsed, 'listed') end
for first = 1, #lapsed, 1000 do
  redis.call('HDEL', KEYS[1], unpack(lapsed, first, math.min(#lapsed, first + 999)))
end
return {'done', I(#held)}
