-- Removes events that the ledger has entered. The removal is what tells an edge that the ledger has the end of its request.
-- The server may be another one than the server that the events were read from, and may have given an event's id to another
-- event. So this removes only an event of the request that was entered.
-- KEYS: the partition's events; for each event the marker of its request
-- ARGV: for each event its id, and its request or '' if it belongs to none
local markers, ids = {}, {}
for i = 2, #KEYS do markers[i - 1] = KEYS[i] end
for i, value in ipairs(mget(markers)) do
  local id, request = ARGV[2 * i - 1], ARGV[2 * i]
  local is_same = request == '' or value == SETTLED .. id or value == LATE .. id
  if not is_same then
    local event = redis.call('XRANGE', KEYS[1], id, id)[1]
    is_same = event and event[2][2] == request
    -- An edge of an older version looks at the marker instead. This comes first: a server without memory refuses it.
    if is_same and value then redis.call('SET', markers[i], 'applied', 'XX', 'KEEPTTL') end
  end
  if is_same then table.insert(ids, id) end
end
if #ids > 0 then redis.call('XDEL', KEYS[1], unpack(ids)) end
return {'done', I(#ids)}
