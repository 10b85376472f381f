-- Records up to where in the ledger this server knows every entry of its partitions, if it is still the server that the caller
-- published them to. A server keeps or loses its last writes in their order: after a restart or a failover, one that has this
-- record has everything before it too.
-- KEYS: the records of partitions
-- ARGV: the server's identity, as server.lua returns it; the position of the entry
if server() ~= ARGV[1] then return {'other'} end
for _, key in ipairs(KEYS) do redis.call('SET', key, ARGV[2]) end
return {'done'}
