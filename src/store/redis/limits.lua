-- Rate limits of a key and its account, and the spending limit of a key. A bucket counts in sixty-thousandths of a unit and
-- drains by its limit every ms, as in billing/rates.rs. A hold under limits lists after its amounts what must be given back:
-- the tokens counted for the key, the tokens counted for the account, and the key.
local MINUTE = 60000
local function level(used, at, limit, now)
  used, at = tonumber(used) or 0, tonumber(at) or now
  -- If the clock was set back far: better too generous for one minute than closed until the clock has caught up.
  if at > now + MINUTE then return 0 end
  return math.max(0, used - limit * math.max(0, now - at))
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
  redis.call('HINCRBY', key, 'held', I(-(paid + trial)))
  local function correct(hash, reserved)
    if reserved == 0 then return end
    local tokens = tonumber(redis.call('HGET', hash, 'tokens')) or 0
    redis.call('HSET', hash, 'tokens', I(math.max(0, tokens + (used - reserved) * MINUTE)))
  end
  correct(key, of_key)
  correct(account, of_account)
end
-- Adds to a key's spending, if it is counted. The seed already includes entries up to its own position; skip those.
local function spend(key, amount, at, seq)
  local v = redis.call('HMGET', key, 'seeded', 'day', 'day_spent', 'week', 'week_spent', 'month', 'month_spent',
    'total', 'total_spent')
  if not v[1] or (seq and seq <= tonumber(v[1])) then return end
  local now = periods(at)
  for i, period in ipairs(PERIODS) do
    local is, spent = tonumber(v[2 * i]), tonumber(v[2 * i + 1])
    if now[period] > is then is, spent = now[period], 0 end
    if now[period] == is then redis.call('HSET', key, period, I(is), period .. '_spent', I(spent + amount)) end
  end
end
