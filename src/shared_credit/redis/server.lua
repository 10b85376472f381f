-- Returns the server's identity, its time, and the epochs of its partitions.
-- KEYS: the epochs of partitions
local answer = {server(), I(clock())}
for i, epoch in ipairs(mget(KEYS)) do answer[i + 2] = epoch or '' end
return answer
