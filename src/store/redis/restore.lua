-- Makes requests that the ledger has as ended ended here too, where the server has lost that: each once, by its marker.
-- An account that was seeded after the ledger had the entry has it in its balance.
-- KEYS: the partition's leases; for each request its account, the account's holds, its marker, its API key
-- ARGV: how long a marker stays in ms; for each request itself, its account, paid, trial, the entry's position, its time
local restored = 0
for i = 0, (#ARGV - 1) / 6 - 1 do
  local key, holds, marker, api_key = KEYS[2 + 4 * i], KEYS[3 + 4 * i], KEYS[4 + 4 * i], KEYS[5 + 4 * i]
  local request, name, seq = ARGV[2 + 6 * i], ARGV[3 + 6 * i], tonumber(ARGV[6 + 6 * i])
  local taken_paid, taken_trial = tonumber(ARGV[4 + 6 * i]), tonumber(ARGV[5 + 6 * i])
  if redis.call('EXISTS', marker) == 0 then
    restored = restored + 1
    local a = account(key)
    if a then
      local paid, trial = a.paid, a.trial
      -- Not held at zero: what this server took of the same credit in the meantime is levelled by the ledger's entries.
      if seq > a.seeded then paid, trial = paid - taken_paid, trial - taken_trial end
      local held = redis.call('HGET', holds, request)
      if held then
        local held_paid, held_trial = parts(held)
        a.held_paid, a.held_trial = a.held_paid - held_paid, a.held_trial - held_trial
      end
      redis.call('HSET', key, 'paid', I(paid), 'trial', I(trial),
        'held_paid', I(math.max(0, a.held_paid)), 'held_trial', I(math.max(0, a.held_trial)))
      if held then unbind(held, api_key, key, 0) end
      if a.keyed then spend(api_key, taken_paid + taken_trial, tonumber(ARGV[7 + 6 * i]), seq) end
    end
    redis.call('HDEL', holds, request)
    redis.call('ZREM', KEYS[1], name .. ' ' .. request)
    redis.call('SET', marker, 'applied', 'PX', ARGV[1])
  end
end
return {'done', I(restored)}
