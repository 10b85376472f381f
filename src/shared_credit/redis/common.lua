-- Start of every script. Amounts are µc: whole numbers of at most 2^53 - 1, which a double holds exactly. Times are the
-- server's own, in ms. Redis does not roll back a script that fails half way, so all checks come before the first write.
local function I(n)
  if n == 0 then return '0' end
  return string.format('%.0f', n)
end
local function clock()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end
-- Values of several keys by one command. A user without the right to it reads them one by one.
local function mget(keys)
  if #keys == 0 then return {} end
  local values = redis.pcall('MGET', unpack(keys))
  if not values.err then return values end
  values = {}
  for i, key in ipairs(keys) do values[i] = redis.call('GET', key) end
  return values
end
-- The server's identity: another one after each restart and each failover.
local function server()
  local info = redis.call('INFO', 'server', 'replication')
  return (string.match(info, 'run_id:(%w+)') or '') .. ':' .. (string.match(info, 'master_replid:(%w+)') or '')
end
-- The marker of a request that has ended is a letter and the id of the event that reports the end, or 'applied' if it was
-- restored. SETTLED: this server has taken the cost. LATE: it has not; the ledger decides.
local SETTLED, LATE = 'e', 'l'
local function has_settled(marker) return marker and string.sub(marker, 1, 1) ~= LATE end
local function event_of(marker) return string.match(marker, '^[el]?(%d+%-%d+)$') end
local function parts(text)
  local paid, trial = string.match(text, '^(%d+):(%d+)')
  return tonumber(paid), tonumber(trial)
end
-- Returns an account, and the hold of a request. A hold is a field of its account, '~' and the request: its amounts, what it
-- counts under limits, '@' and the end of its lease. `listed`: the account is among the partition's leases.
local function account(key, request)
  local v = redis.call('HMGET', key, 'paid', 'trial', 'held_paid', 'held_trial', 'credited', 'status', 'trial_ends',
    'seeded', 'keyed', 'listed', 'open_holds', '~' .. (request or ''))
  if not v[1] then return nil end
  return { paid = tonumber(v[1]), trial = tonumber(v[2]), held_paid = tonumber(v[3]), held_trial = tonumber(v[4]),
    credited = tonumber(v[5]), status = v[6], trial_ends = tonumber(v[7]), seeded = tonumber(v[8]) or 0,
    keyed = v[9], listed = v[10], open = tonumber(v[11]) or 0 }, v[12]
end
-- Free credits of each bucket. A server that lost its last writes may have promised a credit twice. Until the ledger has
-- decided which bucket pays, that bucket may be below zero, and the other one covers it.
local function free(a, now)
  local paid, trial = a.paid - a.held_paid, a.trial - a.held_trial
  if not (a.trial_ends and now < a.trial_ends) then trial = math.min(0, trial) end
  if trial < 0 then paid, trial = paid + trial, 0 end
  if paid < 0 then paid, trial = 0, trial + paid end
  return paid, math.max(0, trial)
end
