-- Begins to count the spending of an API key or a member, from the ledger's totals, if it is not counted yet. Requests that have ended
-- but are not in the ledger yet are in the partition's events; the caller, who reads both, ensures that no request is in
-- both. The ledger decides the debit of a late end.
-- KEYS: the API key or member, account, the partition's events, its epoch
-- ARGV: how an ending names the API key or member, the time, its spending by day, week, month and in total, the last entry that this includes, the
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
  if fields.ending and string.find(fields.ending, ARGV[1], 1, true) then
    on_its_way = on_its_way + (tonumber(fields.paid) or 0) + (tonumber(fields.trial) or 0)
  end
end
local now = periods(tonumber(ARGV[2]))
for i, period in ipairs(PERIODS) do
  redis.call('HSET', KEYS[1], period, I(now[period]), period .. '_spent', I(tonumber(ARGV[2 + i]) + on_its_way))
end
redis.call('HSET', KEYS[1], 'seeded', ARGV[7])
-- From now on, each request of the account that ends checks whether it belongs to such a key or member.
redis.call('HSET', KEYS[2], 'keyed', '1')
return {'done'}
