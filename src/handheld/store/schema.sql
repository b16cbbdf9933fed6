-- A run file is one SQLite database (application_id 'HHrn'; user_version is the version of this schema).
-- Times are nanoseconds by CLOCK_MONOTONIC, unless the name says `device`. Sizes are in bytes.
-- The sampler adds the tables source, channel, reading, gap and cost: sensors/sink.py.

CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;  -- value: JSON

CREATE TABLE op (            -- the operations of a graph, in the order in which they run
  id INTEGER PRIMARY KEY, graph TEXT, position INTEGER,
  op TEXT, source TEXT, phase TEXT, path TEXT,  -- its kind, and its place in the model
  signature TEXT,            -- ops with the same signature do the same work
  variant TEXT,              -- how the plan runs it, and why
  launches INTEGER, flops INTEGER, bytes INTEGER,  -- floating-point operations; bytes moved at least
  live TEXT                  -- JSON: bytes alive while it runs, per category
);

CREATE TABLE step (          -- one run of a graph, as the host saw it
  id INTEGER PRIMARY KEY, graph TEXT, batch INTEGER,
  begin_ns INTEGER, end_ns INTEGER,  -- the call: it checks the data and enqueues everything
  window INTEGER,            -- recorded steps that ran in sequence have the same window; else null
  loss REAL                  -- null: the trainer reports losses, the profiler does not
);

CREATE TABLE command (       -- the device commands of recorded steps: one packed row per step
  step INTEGER PRIMARY KEY, count INTEGER,
  data BLOB                  -- little-endian int64, `count` values of each column in turn: kind
                             -- (0 launch, 1 upload, 2 download, 3 copy), op id or -1, bytes,
                             -- host begin, host end, device queued, submitted, started, ended
);

CREATE TABLE clock (         -- pairs that relate the device's clock to the host's clock
  device_ns INTEGER, host_ns INTEGER, error_ns INTEGER  -- host_ns is correct to ± error_ns
);

CREATE TABLE energy_window (  -- a window of repeated equal work, for the energy of ops
  id INTEGER PRIMARY KEY,
  method TEXT,               -- `slope`: normal steps in which these ops run `extra` more times;
                             -- `alone`: only these ops; `step`: steps of the plan that trains
  signature TEXT,            -- of the ops; empty: normal steps; `rest of PHASE`: all ops not named
  ops TEXT,                  -- JSON: their ids
  extra INTEGER, runs INTEGER,  -- additional runs per step of each op; number of steps (or rounds)
  begin_ns INTEGER, end_ns INTEGER
);

CREATE TABLE training_step (  -- the steps of a training, when their loss was read; empty if nothing was trained
  step INTEGER PRIMARY KEY,  -- counted over the whole training, also before a resume
  epoch INTEGER, t_ns INTEGER, loss REAL, rate REAL
);

CREATE TABLE training_epoch (  -- the epochs of a training
  number INTEGER PRIMARY KEY, t_ns INTEGER, step INTEGER,  -- the last step of the epoch
  loss REAL, rate REAL, samples INTEGER, seconds REAL,
  test TEXT,                 -- JSON: the metrics of the evaluation that followed
  dropped INTEGER, note TEXT
);

CREATE TABLE note (t_ns INTEGER, kind TEXT, text TEXT);  -- other events of the run
