-- Rate limits of a key and its account, and the spend limits of a key and its member. A bucket counts in sixty-thousandths of a unit and
-- drains by its limit every ms, as in billing/rates.rs. A hold under limits lists after its amounts what must be given back:
-- the tokens counted for the key, the tokens counted for the account, the member if there is one, and the key.
local MINUTE = 60000
-- An account that has holds, or had some lately, is visited this often, in ms.
local VISIT = 10000
-- Reads the marker of a request that has ended: 'applied' once the ledger has removed its event, else the event's id.
local function ended(marker, events)
  local id = event_of(marker)
  if id and #redis.call('XRANGE', events, id, id) == 0 then return 'applied' end
  return id or marker
end
local function level(used, at, limit, now)
  used, at = tonumber(used) or 0, tonumber(at) or now
  -- If the clock was set back far: better too generous for one minute than closed until the clock has caught up.
  if at > now + MINUTE then return 0 end
  return math.max(0, used - limit * math.max(0, now - at))
end
-- Takes a hold off the totals of its account. The caller stores the account.
local function release(a, held)
  local paid, trial = parts(held)
  a.held_paid, a.held_trial = math.max(0, a.held_paid - paid), math.max(0, a.held_trial - trial)
  a.open = math.max(0, a.open - 1)
end
-- Removes the hold of a version that kept holds and leases beside the account.
-- KEYS of the caller: account, its holds, the partition's leases
local function remove_old(request, name)
  redis.call('HDEL', KEYS[2], request)
  redis.call('ZREM', KEYS[3], name .. ' ' .. request)
end
local function bound(held)
  local of_key, of_account = string.match(held, '^%d+:%d+:(%d+):(%d+):')
  return tonumber(of_key), tonumber(of_account)
end
-- Returns the day, the week (from Monday) and the calendar month of a time, as increasing numbers, in UTC.
local function periods(at)
  local day = math.floor(at / 86400000)
  local z = day + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  return { day = day, week = math.floor((day + 3) / 7), month = (yoe + era * 400) * 12 + math.floor((5 * doy + 2) / 153),
    total = 0 }
end
local PERIODS = { 'day', 'week', 'month', 'total' }
-- Gives back what a hold counts under its limits, except for the tokens that were used.
local function unbind(held, key, account, used)
  local of_key, of_account = bound(held)
  if not of_key then return end
  local paid, trial = parts(held)
  redis.call('HINCRBY', key, 'open', '-1')
  local at, member = string.match(account, '^gw:{.-}:'), string.match(held, '^%d+:%d+:%d+:%d+:([^:@]+):')
  for _, spender in ipairs({ key, member and at .. 'k:' .. member }) do
    redis.call('HINCRBY', spender, 'held', I(-(paid + trial)))
  end
  local function correct(hash, reserved)
    if reserved == 0 then return end
    local tokens = tonumber(redis.call('HGET', hash, 'tokens')) or 0
    redis.call('HSET', hash, 'tokens', I(math.max(0, tokens + (used - reserved) * MINUTE)))
  end
  correct(key, of_key)
  correct(account, of_account)
end
-- The fields of what a key or a member has spent in a period: the one that counts now, and the one that counted before it.
local function fields(period)
  return { period, period .. '_spent', period .. '_before', period .. '_before_spent' }
end
-- Makes a period the one that counts now. The clock may go back to the one before, which then counts on. What was spent in a
-- period that is ahead of it otherwise counts for it too: too strict for one period, rather than open whenever the clock is set.
local function turn(s, period)
  if s[1] == period then return end
  if s[3] == period then
    s[1], s[2], s[3], s[4] = s[3], s[4], s[1], s[2]
  elseif period > s[1] then
    s[1], s[2], s[3], s[4] = period, 0, s[1], s[2]
  else
    s[1], s[3], s[4] = period, s[1], s[2]
  end
end
local function numbers(v, from)
  return { tonumber(v[from]), tonumber(v[from + 1]), tonumber(v[from + 2]), tonumber(v[from + 3]) }
end
local SPENDING = { 'seeded' }
for _, period in ipairs(PERIODS) do
  for _, field in ipairs(fields(period)) do table.insert(SPENDING, field) end
end
-- Adds to the spending of a key or a member, if it is counted. The seed already includes entries up to its own position; skip those.
-- A time ahead of the clock counts as now: ids of events never go back, so after a clock was set forward and back they stay ahead.
local function spend(key, amount, at, seq)
  local v = redis.call('HMGET', key, unpack(SPENDING))
  if not v[1] or (seq and seq <= tonumber(v[1])) then return end
  local present = clock()
  local current, of = periods(present), periods(math.min(at, present))
  local change = {}
  for i, period in ipairs(PERIODS) do
    local s = numbers(v, 4 * i - 2)
    if s[1] > current[period] then turn(s, current[period]) end
    if of[period] > s[1] then turn(s, of[period]) end
    for j = 1, 3, 2 do
      if s[j] == of[period] then s[j + 1] = s[j + 1] + amount end
    end
    for j, field in ipairs(fields(period)) do
      if s[j] then
        table.insert(change, field)
        table.insert(change, I(s[j]))
      end
    end
  end
  redis.call('HSET', key, unpack(change))
end
