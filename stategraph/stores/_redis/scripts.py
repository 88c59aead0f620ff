"""The scripts of a Redis store. Whatever a write has to compare stands in the script that writes it.

Redis runs a script as a whole, but takes nothing back of one that fails. So the first write of each script that needs
much memory is one that Redis refuses where there is none left.

All that a script touches is in one partition, whose keys begin with its tag::

    {stategraph:3}:run:ID     of a run: its version, its record, what it is looked for by, and its payloads by number
    {stategraph:3}:rows:ID    of its checkpoints, by their numbers: all but the payloads
    {stategraph:3}:lease:ID   who has it, and whether it is cancelled
    {stategraph:3}:leased     the runs that have an owner
    {stategraph:3}:worker:ID  of a process: until when it is there
    {stategraph:3}:runs       the runs by their numbers; likewise :status:STATUS, and :within those that are nested
    {stategraph:3}:nested     the nested ones by their ids
    {stategraph:3}:number     the highest number
    {stategraph:3}:changes    how often something was saved or removed
"""

from __future__ import annotations

from hashlib import sha1

import attrs


@attrs.frozen
class Script:
    """A script that the server knows by its hash, once it has seen it.

    Attributes:
        text: What it says.
        sha: Its hash.
        writes: Whether it writes.
    """

    text: str
    writes: bool = False
    sha: str = attrs.field(init=False)

    @sha.default
    def _hash(self) -> str:
        return sha1(self.text.encode(), usedforsecurity=False).hexdigest()


_DROP = """
local function drop(id)
  local status = redis.pcall('HGET', t..':run:'..id, 's')
  local known = redis.call('ZREM', t..':runs', id) + redis.call('ZREM', t..':within', id)
  known = known + redis.call('ZREM', t..':nested', id)
  if type(status) == 'string' then redis.call('ZREM', t..':status:'..status, id) end
  return known + redis.call('UNLINK', t..':run:'..id, t..':rows:'..id)
end
local function drop_nested(parts)
  for _, nested in ipairs(redis.call('ZRANGEBYLEX', t..':nested', '('..id..'/#', '('..id..'/$')) do
    if parts ~= 'parts' or nested:find('[^/]#') then drop(nested) end
  end
end
"""
SAVE = Script(
    """
local t, id = KEYS[1], ARGV[1]
local run, rows = t..':run:'..id, t..':rows:'..id
local lease = redis.call('HMGET', t..':lease:'..ARGV[2], 'worker', 'fence', 'cancelled')
local cancelled = lease[3] and 1 or 0
local now = redis.call('HMGET', run, 'v', 's')
if (now[1] or '') ~= ARGV[6] then return {now[1] == ARGV[7] and 2 or 0, cancelled} end
if ARGV[3] == '1' and not (lease[1] and lease[2] == ARGV[4]) then return {0, cancelled} end
if ARGV[3] == '2' and lease[1] then return {0, cancelled} end
if ARGV[5] ~= '' and redis.call('HGET', t..':run:'..ARGV[2], 'i') ~= ARGV[5] then return {0, cancelled} end
"""
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
for i = 18, #ARGV, 3 do
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
if ARGV[17] ~= '' then drop_nested(ARGV[17]) end
redis.call('INCR', t..':changes')
return {1, cancelled}
""",
    writes=True,
)
"""Writes a batch. Answers 1 if that was done, 2 if it was done before, else 0; and whether the run is cancelled.

Its values: the run, the outermost run, the guard and the fence, the incarnation that the outermost run must have; the
version before and the one to be; the record, its incarnation, status, graph and parent; how many partitions there are,
and which this is; the bounds of the rows that go; what goes of that which is nested; of each row its number, all but
its payload, and its payload.
"""

REMOVE = Script(
    """
local t, id = KEYS[1], ARGV[1]
"""
    + _DROP
    + """
local lease = redis.call('HMGET', t..':lease:'..ARGV[3], 'worker', 'fence')
if ARGV[4] == '1' and not (lease[1] and lease[2] == ARGV[5]) then return {0, 0} end
if ARGV[4] == '2' and lease[1] then return {0, 0} end
if ARGV[2] ~= '' and (redis.call('HGET', t..':run:'..id, 'v') or ''):match('^%d+') ~= ARGV[2] then return {0, 0} end
drop_nested()
local known = drop(id)
redis.call('INCR', t..':changes')
return {known > 0 and 1 or 2, 0}
""",
    writes=True,
)
"""Removes a run and all that is nested in it. Answers 1 if it was there, 2 if it was not, and 0 if it stays; as SAVE.

Its values: the run, its version or nothing, the outermost run, the guard and the fence.
"""

CHAIN = Script(
    """
local t, id = KEYS[1], ARGV[1]
local run, rows = t..':run:'..id, t..':rows:'..id
local newest = redis.call('ZREVRANGEBYSCORE', rows, ARGV[2], '-inf', 'LIMIT', 0, 1)[1]
if not newest then return {} end
local sequence, base = newest:match('^(%d+) (%d+) ')
local found, payloads = {newest}, {}
if sequence then
  found = redis.call('ZRANGEBYSCORE', rows, math.min(tonumber(base), tonumber(sequence)), sequence)
end
for i = 1, #found do payloads[i] = redis.call('HGET', run, found[i]:match('^%d+') or '') end
return {redis.call('HGET', run, 'd'), found, payloads}
"""
)
"""Finds a checkpoint after those that it builds on: of a run, up to a number."""

RUN = Script(
    """
local run = KEYS[1]..':run:'..ARGV[1]
local kept = redis.call('HMGET', run, 'n', 'd')
local rows, payloads, first = redis.call('ZRANGE', KEYS[1]..':rows:'..ARGV[1], 0, -1), {}, 0
local sequence, base = (rows[#rows] or ''):match('^(%d+) (%d+) ')
if sequence then
  first = redis.call('ZCOUNT', KEYS[1]..':rows:'..ARGV[1], '-inf', '('..math.min(tonumber(base), tonumber(sequence)))
  for i = first + 1, #rows do payloads[i - first] = redis.call('HGET', run, rows[i]:match('^%d+') or '') end
end
return {kept[1], kept[2], rows, first, payloads}
"""
)
"""Finds a run and all its rows, how many of these come before those that the newest builds on, and the payloads of
those."""

LIST = Script(
    """
local t, most = KEYS[1], tonumber(ARGV[3])
local ids = redis.call('ZREVRANGEBYSCORE', t..ARGV[1], ARGV[2], '-inf', 'WITHSCORES', 'LIMIT', 0, 1000)
local answer = {#ids == 2000 and '('..ids[2000] or ''}
for i = 1, #ids, 2 do
  local kept = redis.pcall('HMGET', t..':run:'..ids[i], 'n', 'd', 's', 'g', 'p')
  if kept.err then kept = {} end
  local wanted = ids[i]:sub(1, #ARGV[7]) == ARGV[7]
  for j = 4, 6 do
    wanted = wanted and (ARGV[j] == '' or not kept[2] or '='..(kept[j - 1] or '') == ARGV[j])
  end
  if wanted then
    if #answer > 3 * most then
      answer[1] = '('..ids[i - 1]
      return answer
    end
    answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = ids[i], kept[1] or ids[i + 1], kept[2] or false
  end
end
return answer
"""
)
"""Finds runs, the highest number first. Answers from where to go on, then of each its id, its number and its record.

Its values: by what they are found, a number or from where to go on, how many, and their status, graph and parent after
an =, or nothing, and what their ids begin with.
"""

# --------------------------------------------------------------------------- leases

_ALWAYS = "redis.call('DEL', KEYS[1]..':none')"
"""Comes first in what is to be written though the memory is full: Redis lets a script go on that has written. Without
a lease nothing could be removed then, and who has one would lose it."""

ACQUIRE = Script(
    _ALWAYS
    + """
local lease = KEYS[1]..':lease:'..ARGV[1]
local now = redis.call('HMGET', lease, 'worker', 'fence', 'cancelled')
if now[1] and now[2] ~= ARGV[3] and now[2] ~= ARGV[4] then return false end
local time = redis.call('TIME')
redis.call('HSET', lease, 'worker', ARGV[2], 'fence', ARGV[3], 'since', time[1]..string.format('%06d', time[2]))
redis.call('SADD', KEYS[1]..':leased', ARGV[1])
return now[3] and 1 or 0
""",
    writes=True,
)
FREE = Script(
    """
local lease = KEYS[1]..':lease:'..ARGV[1]
local now = redis.call('HMGET', lease, 'fence', 'cancelled')
if now[1] ~= ARGV[2] then return 0 end
redis.call('SREM', KEYS[1]..':leased', ARGV[1])
if now[2] then return redis.call('HDEL', lease, 'worker', 'fence', 'since') end
return redis.call('DEL', lease)
""",
    writes=True,
)
LEASES = Script(
    """
local answer = {}
for _, id in ipairs(redis.call('SMEMBERS', KEYS[1]..':leased')) do
  local kept = redis.call('HMGET', KEYS[1]..':lease:'..id, 'fence', 'worker')
  if kept[1] and kept[2] then answer[#answer + 1] = {id, kept[1], kept[2]} end
end
return answer
"""
)
"""Finds the leases of a partition: of each, the run, the fence and the process."""
RENEW = Script(
    _ALWAYS
    + """
local worker, time = KEYS[1]..':worker:'..ARGV[1], redis.call('TIME')
local us = time[1] * 1000000 + time[2] + tonumber(ARGV[5])
redis.call('HSET', worker, 'host', ARGV[2], 'pid', ARGV[3], 'place', ARGV[4], 'until', string.format('%.0f', us))
return redis.call('PEXPIRE', worker, string.format('%.0f', tonumber(ARGV[5]) / 1000 + 86400000))
""",
    writes=True,
)
"""Says that a process is there for so many microseconds; who it was is known for a day longer."""
CANCEL = Script(
    _ALWAYS
    + """
local lease = KEYS[1]..':lease:'..ARGV[1]
if redis.call('HSETNX', lease, 'cancelled', '1') == 1 and ARGV[2] ~= '' then
  redis.call('HSET', lease, 'by', ARGV[2]:sub(2))
end
return 1
""",
    writes=True,
)
TAKE_UP = Script(
    """
local lease = KEYS[1]..':lease:'..ARGV[1]
if redis.call('HEXISTS', lease, 'worker') == 0 then return redis.call('DEL', lease) end
return redis.call('HDEL', lease, 'cancelled', 'by')
""",
    writes=True,
)
