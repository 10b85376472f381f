-- Returns for each request whether the ledger has entered its end: 'applied', 'waiting', or 'lost' if this server does not
-- have the end, so that its edge must send it again. An end whose marker this server has, and whose event it does not have,
-- was entered: one script writes both, and only the ledger's acknowledgement removes the event.
-- KEYS: the events of the partitions; for each request its marker
-- ARGV: the number of partitions; for each request the number of its partition among them
local streams, markers, answer = {}, {}, {}
for i, key in ipairs(KEYS) do
  if i <= tonumber(ARGV[1]) then streams[i] = key else table.insert(markers, key) end
end
-- The first event of each partition: all before it are entered. A user without the right to XREAD reads one by one.
local first, arguments = {}, { 'COUNT', '1', 'STREAMS', unpack(streams) }
for _ = 1, #streams do table.insert(arguments, '0') end
local found = redis.pcall('XREAD', unpack(arguments))
if found and found.err then
  for i, stream in ipairs(streams) do
    local event = redis.call('XRANGE', stream, '-', '+', 'COUNT', '1')[1]
    first[i] = event and event[1]
  end
elseif found then
  local at = {}
  for i, stream in ipairs(streams) do at[stream] = i end
  for _, read in ipairs(found) do first[at[read[1]]] = read[2][1][1] end
end
local function position(id)
  local ms, number = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(number)
end
local function is_before(id, other)
  local ms, number = position(id)
  local other_ms, other_number = position(other)
  return ms < other_ms or (ms == other_ms and number < other_number)
end
-- Events are entered in order, so what comes after a young event waits too. An old one may be one that cannot be entered,
-- which holds up no other.
local now = clock()
local function is_young(id) return now - position(id) < 10000 end
for i, value in ipairs(mget(markers)) do
  local partition = tonumber(ARGV[i + 1])
  local id = value and event_of(value)
  if not value then answer[i] = 'lost'
  elseif not id then answer[i] = value
  elseif not first[partition] or is_before(id, first[partition]) then answer[i] = 'applied'
  elseif is_young(first[partition]) then answer[i] = 'waiting'
  elseif #redis.call('XRANGE', streams[partition], id, id) == 0 then answer[i] = 'applied'
  else answer[i] = 'waiting' end
end
return answer
