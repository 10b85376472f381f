-- Reserves credits for a request: `full`, or if a limit or the account leaves less, all that is free, provided that this is at
-- least `floor`. The key, its member and then the account are judged, each by itself.
-- KEYS: account, its holds of older versions, the partition's leases, the request's marker, and under limits the API key, and
--   its member if it has one
-- ARGV: request, account, full, floor, lease in ms (0: a dry run that reserves nothing), maximum number of open requests;
--   and under limits: the API key's id, the tokens that the request may use, the key's requests per minute, tokens per minute
--   and concurrent requests, the same three limits of the account, the key's spend limit or '' and its period, and of a member's
--   key the budget or '', its period, and the member's id
if redis.call('EXISTS', KEYS[4]) == 1 then return {'ended'} end
local a, known = account(KEYS[1], ARGV[1])
if not a then return {'unknown'} end
-- Repeats the reply for a request that already has a hold, so that a caller that lost it can call again.
if known then
  local paid, trial = parts(known)
  return {'held', I(paid), I(trial)}
end
if a.status ~= 'active' then return {'suspended'} end
local open = a.open
if open >= tonumber(ARGV[6]) then return {'too_many', ARGV[6]} end
local now = clock()
local api_key, member, buckets, limits, key_open = ARGV[7], ARGV[19], {}, {}, nil
-- Appends to a reply what is left under each limit.
local function told(answer)
  for _, b in ipairs(buckets) do
    local remaining = b.limit - math.ceil(b.level / MINUTE)
    table.insert(answer, I(b.limit))
    table.insert(answer, I(math.max(0, remaining)))
    table.insert(answer, I(b.limit > 0 and math.ceil(b.level / b.limit) or 0))
  end
  return answer
end
if api_key then
  local k = redis.call('HMGET', KEYS[5], 'requests', 'requests_at', 'tokens', 'tokens_at', 'open')
  local of = redis.call('HMGET', KEYS[1], 'requests', 'requests_at', 'tokens', 'tokens_at')
  key_open = k[5]
  local wait, whose, which, most = 0, nil, nil, nil
  local function judge(owner, hash, state, runs, first)
    local concurrent = tonumber(ARGV[first + 2])
    if concurrent > 0 and runs >= concurrent and wait < 1 then
      wait, whose, which, most = 1, owner, 'concurrent', concurrent
    end
    for i, name in ipairs({ 'requests', 'tokens' }) do
      local b = { hash = hash, name = name, limit = tonumber(ARGV[first + i - 1]), level = 0, count = 1 }
      if name == 'tokens' then b.count = math.min(b.limit, tonumber(ARGV[8])) end
      if b.limit > 0 then
        b.level = level(state[2 * i - 1], state[2 * i], b.limit, now)
        local ms = math.ceil((b.level + (b.count - b.limit) * MINUTE) / b.limit)
        if ms > wait then wait, whose, which, most = ms, owner, name, b.limit end
      end
      table.insert(buckets, b)
    end
  end
  judge('key', KEYS[5], k, tonumber(k[5]) or 0, 9)
  judge('account', KEYS[1], of, open, 12)
  if wait > 0 then return told({'limited', whose, which, I(most), I(wait)}) end
  for i = 5, #KEYS do
    local limit, period = ARGV[2 * i + 5], ARGV[2 * i + 6]
    if limit ~= '' then
      local s = redis.call('HMGET', KEYS[i], 'held', 'seeded', unpack(fields(period)))
      -- The spending must be seeded from the ledger first.
      if not s[2] then return {'unknown'} end
      local counted = numbers(s, 3)
      turn(counted, periods(now)[period])
      local free_here = math.max(0, tonumber(limit) - counted[2] - (tonumber(s[1]) or 0))
      table.insert(limits, { free = free_here, refusal = i == 5 and 'key_spend' or 'member_budget' })
    end
  end
end
local full, floor = tonumber(ARGV[3]), tonumber(ARGV[4])
local paid_free, trial_free = free(a, now)
local amount = full
for _, limit in ipairs(limits) do
  if limit.free < amount then
    amount = limit.free
    if amount < floor or amount <= 0 then return {limit.refusal, I(amount)} end
  end
end
if paid_free + trial_free < amount then
  amount = paid_free + trial_free
  if amount < floor or amount <= 0 then
    if a.trial_ends and now >= a.trial_ends and a.credited == 0 then return {'trial_expired'} end
    return {'insufficient', I(amount)}
  end
end
-- A dry run has no lease: it reserves nothing.
if tonumber(ARGV[5]) == 0 then return told({'held', '0', '0'}) end
local trial = math.min(amount, trial_free)
local paid = amount - trial
local hold = I(paid) .. ':' .. I(trial)
local ends = now + tonumber(ARGV[5])
local change = { 'held_paid', I(a.held_paid + paid), 'held_trial', I(a.held_trial + trial), 'open_holds', I(open + 1) }
local function set(to, ...)
  for _, value in ipairs({ ... }) do table.insert(to, value) end
end
if api_key then
  local of_key = { 'open', I((tonumber(key_open) or 0) + 1) }
  for _, b in ipairs(buckets) do
    if b.limit > 0 then
      set(b.hash == KEYS[1] and change or of_key, b.name, I(b.level + b.count * MINUTE), b.name .. '_at', I(now))
    end
  end
  redis.call('HSET', KEYS[5], unpack(of_key))
  for i = 5, #KEYS do redis.call('HINCRBY', KEYS[i], 'held', I(amount)) end
  hold = hold .. ':' .. I(buckets[2].count) .. ':' .. I(buckets[4].count)
  if member then hold = hold .. ':' .. member end
  hold = hold .. ':' .. api_key
end
if not a.listed then
  redis.call('ZADD', KEYS[3], I(math.min(ends, now + VISIT)), ARGV[2])
  set(change, 'listed', '1')
end
set(change, '~' .. ARGV[1], hold .. '@' .. I(ends))
redis.call('HSET', KEYS[1], unpack(change))
-- What is left under each limit, this request included.
for _, b in ipairs(buckets) do
  if b.limit > 0 then b.level = b.level + b.count * MINUTE end
end
return told({'held', I(paid), I(trial)})
