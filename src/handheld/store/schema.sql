-- A run file is one SQLite database (application_id 'HHrn', user_version = the schema's version).
-- Times are nanoseconds on CLOCK_MONOTONIC unless a name says `device`; bytes are bytes.
-- The tables source, channel, reading, gap and cost are the sampler's: sensors/sink.py.

CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;  -- value: JSON

CREATE TABLE op (            -- the operations of a graph, in the order they run
  id INTEGER PRIMARY KEY, graph TEXT, position INTEGER,
  op TEXT, source TEXT, phase TEXT, path TEXT,  -- what it is, and where in the model it comes from
  signature TEXT,            -- ops with the same signature do the same work
  variant TEXT,              -- how the plan runs it, and why
  launches INTEGER, flops INTEGER, bytes INTEGER,  -- floating point operations; least bytes moved
  live TEXT                  -- JSON: bytes alive while it runs, by category
);

CREATE TABLE step (          -- a run of a graph, as the host saw it
  id INTEGER PRIMARY KEY, graph TEXT, batch INTEGER,
  begin_ns INTEGER, end_ns INTEGER,  -- the call: data checked, everything enqueued
  window INTEGER,            -- of recorded steps, those that ran one after the other; else null
  loss REAL                  -- null: losses are the trainer's to report
);

CREATE TABLE command (       -- of recorded steps: what the device was told, packed, a row a step
  step INTEGER PRIMARY KEY, count INTEGER,
  data BLOB                  -- little-endian int64, `count` of each in turn: kind (0 launch,
                             -- 1 upload, 2 download, 3 copy), op id or -1, bytes, host begin,
                             -- host end, device queued, submitted, started, ended
);

CREATE TABLE clock (         -- pairs that tie the device's clock to the host's
  device_ns INTEGER, host_ns INTEGER, error_ns INTEGER  -- host_ns is right to ± error_ns
);

CREATE TABLE energy_window (  -- a stretch of equal work, for the energy of ops
  id INTEGER PRIMARY KEY,
  method TEXT,               -- `slope`: normal steps with `extra` more runs of these ops each;
                             -- `alone`: these ops alone
  signature TEXT,            -- of the ops; empty: steps as they are; `rest of PHASE`: all ops not named
  ops TEXT,                  -- JSON: their ids
  extra INTEGER, runs INTEGER,  -- more runs a step of each op; steps (or rounds of these ops)
  begin_ns INTEGER, end_ns INTEGER
);

CREATE TABLE note (t_ns INTEGER, kind TEXT, text TEXT);  -- what happened besides
