-- Begins to count what an API key spends, with what the ledger has of it, where it is not counted yet. What has ended and
-- the ledger does not have is among the partition's events: the reader of both sees to it that none is in both. Of a
-- late end the ledger decides what is taken.
-- KEYS: the API key, account, the partition's events, its epoch
-- ARGV: the API key's id, the moment, what it has spent by day, week, month and in total, the last entry in this, the
--   epoch seen
if redis.call('HEXISTS', KEYS[1], 'seeded') == 1 then return {'known'} end
if redis.call('EXISTS', KEYS[2]) == 0 then return {'unknown'} end
if (redis.call('GET', KEYS[4]) or '') ~= ARGV[8] then return {'other'} end
local events = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', '1001')
if #events > 1000 then return {'busy'} end
local on_its_way = 0
for _, event in ipairs(events) do
  local fields = {}
  for i = 1, #event[2], 2 do fields[event[2][i]] = event[2][i + 1] end
  if fields.ending and string.find(fields.ending, '"key_id":"' .. ARGV[1] .. '"', 1, true) then
    on_its_way = on_its_way + (tonumber(fields.paid) or 0) + (tonumber(fields.trial) or 0)
  end
end
local now = periods(tonumber(ARGV[2]))
for i, period in ipairs(PERIODS) do
  redis.call('HSET', KEYS[1], period, I(now[period]), period .. '_spent', I(tonumber(ARGV[2 + i]) + on_its_way))
end
redis.call('HSET', KEYS[1], 'seeded', ARGV[7])
-- From now on the end of any request of the account looks whether it is of such a key.
redis.call('HSET', KEYS[2], 'keyed', '1')
return {'done'}
