"""The scripts of a Redis store. Each script that writes compares everything that the write depends on.

Redis runs a script atomically, but does not undo a script that fails. So the first write of each script that needs
much memory is one that Redis refuses when memory is full.

A script uses keys of one partition, which begin with its tag::

    {stategraph:0}:store      the store: its id, the version of its keys, and the number of its partitions
    {stategraph:3}:run:ID     a run: its version, its record, its indexed fields, and its payloads by number
    {stategraph:3}:entry:ID   its entries by their steps and numbers; those of its inbox with names, by these as well
    {stategraph:3}:rows:ID    its checkpoints by their numbers, without the payloads
    {stategraph:3}:lease:ID   its owner and its cancellation
    {stategraph:3}:leased     the runs that have an owner
    {stategraph:3}:worker:ID  a process, and until when it counts as alive
    {stategraph:3}:due        the runs that can go on by themselves, by the times in milliseconds at which they can
    {stategraph:3}:runs       the runs by their numbers; likewise :status:STATUS, and :within for nested runs
    {stategraph:3}:nested     the nested runs by their ids
    {stategraph:3}:number     the highest number
    {stategraph:3}:changes    a counter of saves and removals
"""

from __future__ import annotations

from hashlib import sha1

from stategraph._values.entries import STEPS_OF_CHUNKS

TEXTS: dict[str, str] = {}
"""The scripts by their SHA-1 hashes, by which a server knows a script that it has run."""


def _script(text: str) -> str:
    """Return the hash of a script."""
    digest = sha1(text.encode(), usedforsecurity=False).hexdigest()
    TEXTS[digest] = text
    return digest


RAISE_LAYOUT = _script(
    """
local store, layout = KEYS[1]..':store', tonumber(ARGV[1])
if tonumber(redis.call('HGET', store, 'layout')) < layout then redis.call('HSET', store, 'layout', layout) end
"""
)
"""Record that a store has the keys of a newer version, unless it has those of one that is newer still."""

_ENTRIES = """
local entries = t..':entry:'..id
local function cut_entries(step, taken)
  for _, field in ipairs(redis.call('HKEYS', entries)) do
    local at, seq, named, chunk = field:match('^(%d+) (%d+)( ?)(c?)')
    local is_over = at and tonumber(at) > 0 and tonumber(at) <= step - (chunk == 'c' and CHUNKS or 0)
    if is_over or (at == '0' and named == '' and tonumber(seq) <= taken) then redis.call('HDEL', entries, field) end
  end
end
local function put_entries(from, to)
  for i = from, to, 3 do
    redis.call('HSET', entries, ARGV[i], ARGV[i + 2])
    if ARGV[i + 1] ~= '' then redis.call('HSET', entries, ARGV[i + 1], ARGV[i]) end
  end
end
local function set_due(ms)
  if ms == '' then
    redis.call('ZREM', t..':due', id)
  elseif ms ~= '=' then
    redis.call('ZADD', t..':due', ms, id)
  end
end
""".replace("CHUNKS", str(STEPS_OF_CHUNKS))
"""Functions for the entries of a run. Of each: its step and number, followed by a space if it has a name in the inbox;
that name; and its record."""

_DROP = """
local function drop(id)
  local status = redis.pcall('HGET', t..':run:'..id, 's')
  local known = redis.call('ZREM', t..':runs', id) + redis.call('ZREM', t..':within', id)
  known = known + redis.call('ZREM', t..':nested', id)
  redis.call('ZREM', t..':due', id)
  if type(status) == 'string' then redis.call('ZREM', t..':status:'..status, id) end
  return known + redis.call('UNLINK', t..':run:'..id, t..':rows:'..id, t..':entry:'..id)
end
local function drop_nested(from, to, parts)
  for _, nested in ipairs(redis.call('ZRANGEBYLEX', t..':nested', '('..from, '('..to)) do
    if not parts or nested:find('[^/]#') then drop(nested) end
  end
end
"""
SAVE = _script(
    """
local t, id = KEYS[1], ARGV[1]
local run, rows = t..':run:'..id, t..':rows:'..id
local lease = redis.call('HMGET', t..':lease:'..ARGV[2], 'worker', 'fence', 'cancelled')
local cancelled = lease[3] and 1 or 0
local now = redis.call('HMGET', run, 'v', 's', 'm')
local inbox = tonumber(now[3] or '0')
if (now[1] or '') ~= ARGV[6] then return {now[1] == ARGV[7] and 2 or 0, cancelled, inbox} end
if ARGV[3] == '1' and not (lease[1] and lease[2] == ARGV[4]) then return {0, cancelled, inbox} end
if ARGV[3] == '2' and lease[1] then return {0, cancelled, inbox} end
if ARGV[5] ~= '' and redis.call('HGET', t..':run:'..ARGV[2], 'i') ~= ARGV[5] then return {0, cancelled, inbox} end
if ARGV[22] ~= '' and tonumber(ARGV[22]) ~= inbox then return {0, cancelled, inbox} end
"""
    + _ENTRIES
    + _DROP
    + """
local number
if not now[1] then
  local parts, time = tonumber(ARGV[13]), redis.call('TIME')
  local us = time[1] * 1000000 + time[2]
  local last = tonumber(redis.call('GET', t..':number') or '0') + parts
  number = string.format('%.0f', math.max(last, us - us % parts + tonumber(ARGV[14])))
  redis.call('SET', t..':number', number)
  redis.call('HSET', run, 'n', number)
  if ARGV[19] ~= '0' then redis.call('HSET', run, 'm', ARGV[19]) end
else
  number = redis.call('HGET', run, 'n') or '0'
end
redis.call('HSET', run, 'v', ARGV[7], 'd', ARGV[8], 'i', ARGV[9], 's', ARGV[10], 'g', ARGV[11], 'p', ARGV[12])
if id:find('/#', 1, true) then
  if not now[1] then
    redis.call('ZADD', t..':within', number, id)
    redis.call('ZADD', t..':nested', 0, id)
  end
else
  if not now[1] then redis.call('ZADD', t..':runs', number, id) end
  if now[2] ~= ARGV[10] then
    if now[2] then redis.call('ZREM', t..':status:'..now[2], id) end
    redis.call('ZADD', t..':status:'..ARGV[10], number, id)
  end
end
if ARGV[18] ~= '0' or ARGV[19] ~= '0' then cut_entries(tonumber(ARGV[18]), tonumber(ARGV[19])) end
local rest = 25 + 3 * tonumber(ARGV[21])
put_entries(25, rest - 1)
set_due(ARGV[20])
for i = rest, #ARGV, 3 do
  redis.call('HSET', run, ARGV[i], ARGV[i + 2])
  redis.call('ZREMRANGEBYSCORE', rows, ARGV[i], ARGV[i])
  redis.call('ZADD', rows, ARGV[i], ARGV[i + 1])
end
local function cut(low, high)
  for _, row in ipairs(redis.call('ZRANGEBYSCORE', rows, low, high)) do
    redis.call('HDEL', run, row:match('^%d+') or '')
  end
  redis.call('ZREMRANGEBYSCORE', rows, low, high)
end
if ARGV[15] ~= '0' then cut('-inf', '('..ARGV[15]) end
if ARGV[16] ~= '' then cut('('..ARGV[16], '+inf') end
if ARGV[23] ~= '' then drop_nested(ARGV[23], ARGV[24]) end
if ARGV[17] ~= '' then drop_nested(id..'/#', id..'/$', true) end
redis.call('INCR', t..':changes')
return {1, cancelled, inbox}
"""
)
"""Write a batch. Returns 1 if it is written, 2 if it was written before, else 0; whether the run is cancelled; and the
number of the newest entry of its inbox.

Its values: the run, the outermost run, the guard and the fence, the incarnation that the outermost run must have; the
old and the new version; the record, its incarnation, status, graph and parent; the number of partitions, and this
partition; the bounds of the rows to remove; "parts" to remove those of older versions; the last step of the journal and
the last number of the inbox to remove; the time in milliseconds at which the run is due, "" or "=" to leave it; how
many entries are put; the number of the newest entry that the inbox must have, or ""; the bounds of the nested runs to
remove, or ""; each entry; and of each row its number, its other columns and its payload.
"""

APPEND = _script(
    """
local t, id = KEYS[1], ARGV[1]
local run = t..':run:'..id
local now = redis.call('HMGET', run, 'i', 'm', 's', 'v')
if now[1] ~= ARGV[5] or (ARGV[8] == 'open' and now[3] == 'completed') then return {0, 0, 0} end
if ARGV[8]:match('^%d') and (now[4] or ''):match('^%d+') ~= ARGV[8] then return {0, 0, 0} end
"""
    + _ENTRIES
    + """
if ARGV[6] ~= '' then
  if (now[2] or '0') ~= ARGV[6] then
    return {redis.call('HGET', entries, ARGV[10]) == ARGV[12] and 2 or 0, 0, 0}
  end
  redis.call('HSET', run, 'm', string.format('%.0f', tonumber(ARGV[6]) + (#ARGV - 9) / 3))
  if ARGV[9] ~= '' then set_due(ARGV[9]) end
else
  local lease = redis.call('HMGET', t..':lease:'..ARGV[2], 'worker', 'fence')
  if ARGV[3] == '1' and not (lease[1] and lease[2] == ARGV[4]) then return {0, 0, 0} end
  if ARGV[3] == '2' and lease[1] then return {0, 0, 0} end
end
if ARGV[7] ~= '0' then cut_entries(tonumber(ARGV[7]), 0) end
put_entries(10, #ARGV)
redis.call('INCR', t..':changes')
return {1, 0, 0}
"""
)
"""Append entries to a run, or remove entries of its journal. Returns as `SAVE`.

Its values: the run, the outermost run, the guard and the fence, the incarnation of the run; the number of the newest
entry of the inbox, "" for the journal; the last step of the journal to remove; "open" if a complete run takes none, or
the version that the run must have; the time at which the run is due from now on, or ""; and of each entry its field,
its name, and its record.
"""

REMOVE = _script(
    """
local t, id = KEYS[1], ARGV[1]
"""
    + _DROP
    + """
local lease = redis.call('HMGET', t..':lease:'..ARGV[3], 'worker', 'fence')
if ARGV[4] == '1' and not (lease[1] and lease[2] == ARGV[5]) then return {0, 0, 0} end
if ARGV[4] == '2' and lease[1] then return {0, 0, 0} end
local now = redis.call('HMGET', t..':run:'..id, 'v', 'm')
if ARGV[2] ~= '' and (now[1] or ''):match('^%d+') ~= ARGV[2] then return {0, 0, 0} end
local inbox = tonumber(now[2] or '0')
if ARGV[6] ~= '' and now[1] and tonumber(ARGV[6]) ~= inbox then return {0, 0, inbox} end
drop_nested(id..'/#', id..'/$')
local known = drop(id)
redis.call('HDEL', t..':lease:'..id, 'cancelled', 'by')
redis.call('INCR', t..':changes')
return {known > 0 and 1 or 2, 0, 0}
"""
)
"""Remove a run and its nested runs. Returns 1 if they are removed, 2 if there were none, and 0 if they stay; and 0.

Its values: the run, its version or "", the outermost run, the guard and the fence, and the number of the newest entry
that its inbox must have, or "".
"""

CHAIN = _script(
    """
local t, id = KEYS[1], ARGV[1]
local run, rows = t..':run:'..id, t..':rows:'..id
local newest = redis.call('ZREVRANGEBYSCORE', rows, ARGV[2], '-inf', 'LIMIT', 0, 1)[1]
if not newest then return {{}, {}} end
local sequence, base = newest:match('^(%d+) (%d+) ')
local found, payloads = {newest}, {}
if sequence then
  found = redis.call('ZRANGEBYSCORE', rows, math.min(tonumber(base), tonumber(sequence)), sequence)
end
for i = 1, #found do payloads[i] = redis.call('HGET', run, found[i]:match('^%d+') or '') end
return {found, payloads}
"""
)
"""Return the newest row of a run up to a number, after the rows that it builds on, and their payloads."""

LIST = _script(
    """
local t, most = KEYS[1], tonumber(ARGV[3])
local ids = redis.call('ZREVRANGEBYSCORE', t..ARGV[1], ARGV[2], '-inf', 'WITHSCORES', 'LIMIT', 0, 1000)
local answer = {#ids == 2000 and '('..ids[2000] or ''}
for i = 1, #ids, 2 do
  local kept = redis.pcall('HMGET', t..':run:'..ids[i], 'd', 's', 'g', 'p')
  if kept.err then kept = {} end
  local wanted = ids[i]:sub(1, #ARGV[7]) == ARGV[7]
  for j = 4, 6 do
    wanted = wanted and (ARGV[j] == '' or not kept[1] or '='..(kept[j - 2] or '') == ARGV[j])
  end
  if wanted then
    if #answer > 3 * most then
      answer[1] = '('..ids[i - 1]
      return answer
    end
    answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = ids[i], ids[i + 1], kept[1] or false
  end
end
return answer
"""
)
"""Return a page of runs, highest number first: where to continue, then the id, the number and the record of each.

Its values: the index, where to start, how many; their status, graph and parent after "=", or ""; and the beginning of
their ids.
"""

DUE = _script(
    """
local t, most, from, found = KEYS[1], tonumber(ARGV[2]), 0, {}
repeat
  local rows = redis.call('ZRANGEBYSCORE', t..':due', '-inf', ARGV[3], 'WITHSCORES', 'LIMIT', from, 1000)
  for i = 1, #rows, 2 do
    local graph = ARGV[1] ~= '' and redis.pcall('HGET', t..':run:'..rows[i], 'g')
    if #found < 2 * most and (not graph or '='..tostring(graph) == ARGV[1]) and not rows[i]:find('/#', 1, true) then
      found[#found + 1], found[#found + 2] = rows[i], rows[i + 1]
    end
  end
  from = from + 1000
until #rows < 2000 or #found >= 2 * most
return found
"""
)
"""Return the runs that are due first, and the times in milliseconds. Its values: their graph after "=", or ""; the most
runs; and the latest time.
"""

# --------------------------------------------------------------------------- leases

_ALWAYS = "redis.call('DEL', KEYS[1]..':none')"
"""The beginning of scripts that must write when memory is full: Redis does not stop a script that has already written.
Without leases, nothing could be removed then, and owners would lose their runs."""

ACQUIRE = _script(
    _ALWAYS
    + """
local lease = KEYS[1]..':lease:'..ARGV[1]
local now = redis.call('HMGET', lease, 'worker', 'fence', 'cancelled')
if now[1] and now[2] ~= ARGV[3] and now[2] ~= ARGV[4] then return false end
local time = redis.call('TIME')
redis.call('HSET', lease, 'worker', ARGV[2], 'fence', ARGV[3], 'since', time[1]..string.format('%06d', time[2]))
redis.call('SADD', KEYS[1]..':leased', ARGV[1])
return now[3] and 1 or 0
"""
)
CLAIM = _script(
    _ALWAYS
    + """
local t, known, dead, time = KEYS[1], cjson.decode(ARGV[4]), cjson.decode(ARGV[5]), redis.call('TIME')
local active, left, claimed, next = t..':status:active', {}, {}, ''
local now_ms = time[1] * 1000 + time[2] / 1000
for number in pairs(ARGV[3] == '' and known or {}) do
  if redis.call('ZCOUNT', active, number, number) > 0 then left[#left + 1] = number end
end
local rows = redis.call('ZRANGEBYSCORE', active, ARGV[6], '(+inf', 'WITHSCORES', 'LIMIT', 0, 1000)
if #rows == 2000 then next = rows[2000] end
for i = 1, #rows, 2 do
  local id, number = rows[i], rows[i + 1]
  local kept = redis.pcall('HMGET', t..':run:'..id, 'v', 'g')
  local version, lease = tostring(kept[1] or ''):match('^%d+'), t..':lease:'..id
  if tonumber(redis.call('ZSCORE', t..':due', id) or '0') > now_ms then version = nil end
  if version and kept[2] == ARGV[1] and known[number] ~= '' and known[number] ~= version then
    local now = redis.call('HMGET', lease, 'worker', 'fence', 'cancelled')
    if not now[1] or now[2] == ARGV[3] or dead[now[1]] then
      if ARGV[3] == '' or claimed[1] then
        next = number
        break
      end
      redis.call('HSET', lease, 'worker', ARGV[2], 'fence', ARGV[3], 'since', time[1]..string.format('%06d', time[2]))
      redis.call('SADD', t..':leased', id)
      claimed = {number, version, id, now[3] and 1 or 0}
    end
  end
end
return {next, left, claimed}
"""
)
"""Lease the oldest active run of a graph without a live owner. With the fence "", only look for it.

Returns the number from which on there may be another one, or ""; when looking, the known runs that are active; and the
number, version, id and cancellation of the leased run. Its values: the graph, the process, the fence, the versions of
known runs by their numbers ("" for any version), the dead processes, and the number to begin at.
"""

FREE = _script(
    """
local lease = KEYS[1]..':lease:'..ARGV[1]
local now = redis.call('HMGET', lease, 'fence', 'cancelled')
if now[1] ~= ARGV[2] then return 0 end
redis.call('SREM', KEYS[1]..':leased', ARGV[1])
if now[2] then return redis.call('HDEL', lease, 'worker', 'fence', 'since') end
return redis.call('DEL', lease)
"""
)
LEASES = _script(
    """
local answer = {}
for _, id in ipairs(redis.call('SMEMBERS', KEYS[1]..':leased')) do
  local kept = redis.call('HMGET', KEYS[1]..':lease:'..id, 'fence', 'worker')
  if kept[1] and kept[2] then answer[#answer + 1] = {id, kept[1], kept[2]} end
end
return answer
"""
)
"""Return the run, the fence and the process of each lease of a partition."""
RENEW = _script(
    _ALWAYS
    + """
local worker, time = KEYS[1]..':worker:'..ARGV[1], redis.call('TIME')
local us = time[1] * 1000000 + time[2] + tonumber(ARGV[5])
redis.call('HSET', worker, 'host', ARGV[2], 'pid', ARGV[3], 'place', ARGV[4], 'until', string.format('%.0f', us))
return redis.call('PEXPIRE', worker, string.format('%.0f', tonumber(ARGV[5]) / 1000 + 86400000))
"""
)
"""Record that a process stays alive for so many microseconds. The record is kept for a day longer."""
CANCEL = _script(
    _ALWAYS
    + """
local lease = KEYS[1]..':lease:'..ARGV[1]
if redis.call('HSETNX', lease, 'cancelled', '1') == 1 and ARGV[2] ~= '' then
  redis.call('HSET', lease, 'by', ARGV[2]:sub(2))
end
return 1
"""
)
TAKE_UP = _script(
    """
local lease = KEYS[1]..':lease:'..ARGV[1]
if redis.call('HEXISTS', lease, 'worker') == 0 then return redis.call('DEL', lease) end
return redis.call('HDEL', lease, 'cancelled', 'by')
"""
)
