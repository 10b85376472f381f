-- Takes what has expired out of the count of a partition's answers.
-- KEYS: as in answers.lua
-- ARGV: the most of each index at one time
return {'done', I(tidy(clock(), tonumber(ARGV[1])))}
