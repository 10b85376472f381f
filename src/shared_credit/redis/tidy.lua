-- Removes expired entries from the totals of a partition's stored responses.
-- KEYS: as in answers.lua
-- ARGV: maximum number of entries per index and call
return {'done', I(tidy(clock(), tonumber(ARGV[1])))}
