-- Makes an account known as the ledger has it, absolutely, where it is not known yet.
-- KEYS: account, its holds, the partition's epoch
-- ARGV: paid, trial, credited, status, the trial's end in ms or '', the last entry that is in this, the epoch seen
if redis.call('EXISTS', KEYS[1]) == 1 then return {'known'} end
-- Another epoch: everything was lost since the ledger was read, the markers of what it has among it.
if (redis.call('GET', KEYS[3]) or '') ~= ARGV[7] then return {'other'} end
local held_paid, held_trial = 0, 0
for _, held in ipairs(redis.call('HVALS', KEYS[2])) do
  local paid, trial = parts(held)
  held_paid, held_trial = held_paid + paid, held_trial + trial
end
redis.call('HSET', KEYS[1], 'paid', ARGV[1], 'trial', ARGV[2], 'credited', ARGV[3], 'status', ARGV[4],
  'trial_ends', ARGV[5], 'seeded', ARGV[6], 'held_paid', I(held_paid), 'held_trial', I(held_trial))
return {'done'}
