-- Stores an account's balance from the ledger, as absolute amounts, if the server does not know the account yet.
-- KEYS: account, its holds of older versions, the partition's epoch
-- ARGV: paid, trial, credited, status, the trial's end in ms or '', the last entry that this includes, the epoch seen
if redis.call('EXISTS', KEYS[1]) == 1 then return {'known'} end
-- Another epoch: since the ledger was read, the server has lost everything, including the markers of the ledger's entries.
if (redis.call('GET', KEYS[3]) or '') ~= ARGV[7] then return {'other'} end
local held_paid, held_trial = 0, 0
for _, held in ipairs(redis.call('HVALS', KEYS[2])) do
  local paid, trial = parts(held)
  held_paid, held_trial = held_paid + paid, held_trial + trial
end
redis.call('HSET', KEYS[1], 'paid', ARGV[1], 'trial', ARGV[2], 'credited', ARGV[3], 'status', ARGV[4],
  'trial_ends', ARGV[5], 'seeded', ARGV[6], 'held_paid', I(held_paid), 'held_trial', I(held_trial), 'open_holds', '0')
return {'done'}
