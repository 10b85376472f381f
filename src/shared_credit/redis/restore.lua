-- Settles requests that the ledger has as ended and whose end this server has lost: each once, by its marker. If an account
-- was seeded after the ledger had the entry, its balance already includes it. A late end has debited nothing here.
-- KEYS: the partition's leases; for each request its account, the account's holds of older versions, its marker, its API key, its member
--   (of no member: a key that does not exist)
-- ARGV: lifetime of a marker in ms; for each request its id, its account, paid, trial, the entry's position, its time
local restored = 0
for i = 0, (#ARGV - 1) / 6 - 1 do
  local key, holds, marker, api_key, member = unpack(KEYS, 2 + 5 * i, 6 + 5 * i)
  local request, name, seq = ARGV[2 + 6 * i], ARGV[3 + 6 * i], tonumber(ARGV[6 + 6 * i])
  local taken_paid, taken_trial = tonumber(ARGV[4 + 6 * i]), tonumber(ARGV[5 + 6 * i])
  if not has_settled(redis.call('GET', marker)) then
    restored = restored + 1
    local a, held = account(key, request)
    local is_old = not held
    if is_old then held = redis.call('HGET', holds, request) end
    if a then
      local paid, trial = a.paid, a.trial
      -- Not clamped at zero: if this server debited the same credits meanwhile, the ledger's entries correct that.
      if seq > a.seeded then paid, trial = paid - taken_paid, trial - taken_trial end
      if held then
        local open = a.open
        release(a, held)
        if is_old then a.open = open end
      end
      redis.call('HSET', key, 'paid', I(paid), 'trial', I(trial), 'held_paid', I(a.held_paid), 'held_trial', I(a.held_trial),
        'open_holds', I(a.open))
      if held then unbind(held, api_key, key, 0) end
      for _, spender in ipairs(a.keyed and { api_key, member } or {}) do
        spend(spender, taken_paid + taken_trial, tonumber(ARGV[7 + 6 * i]), seq)
      end
    end
    if is_old then
      redis.call('HDEL', holds, request)
      redis.call('ZREM', KEYS[1], name .. ' ' .. request)
    else
      redis.call('HDEL', key, '~' .. request)
    end
    redis.call('SET', marker, 'applied', 'PX', ARGV[1])
  end
end
return {'done', I(restored)}
