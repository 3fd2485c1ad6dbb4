-- what:  vendor gates (closed until, pace, refusals in a row), pages, job runs
-- why:   a vendor's refusal concerns the vendor, not a row; a page is a row before it is a message; a job is a row
-- locks: none on existing tables

-- migrate:up
set lock_timeout = '2s';
set role rowclaim_owner;

-- One row a vendor. It says when, never what: what is owed is told by business rows alone.
create table vendor_gates (
  vendor        text primary key,
  closed_until  timestamptz,               -- null or past: open. The database's clock opens it.
  reason        text,
  closed_by     text,
  closed_at     timestamptz,
  refusals      integer not null default 0 constraint vendor_gates_refusals check (refusals >= 0),  -- in a row, without an instant of their own
  next_start_at timestamptz not null default '-infinity'                                            -- the earliest start of the next call
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
grant select, insert, update on vendor_gates to rowclaim_service;
grant select on vendor_gates to rowclaim_reader;

create table pages (
  id          bigint generated always as identity primary key,
  dedup_key   text not null,
  severity    text not null constraint pages_severity check (severity in ('critical', 'error', 'warning', 'info')),
  summary     text not null,
  opened_at   timestamptz not null,
  seen_at     timestamptz not null,
  seen        bigint not null default 1,
  sent_at     timestamptz,
  sending_until timestamptz,              -- held by the process that is sending it; past: its sender died
  resolved_at timestamptz,
  resolve_sent_at timestamptz
);
create unique index pages_open on pages (dedup_key) where resolved_at is null;
create index pages_unsent on pages (id) where sent_at is null or (resolved_at is not null and resolve_sent_at is null);
grant select, insert, update on pages to rowclaim_service;
grant select on pages to rowclaim_reader;

insert into law.state_edges (table_name, edge, source, target, fence) values
  ('job_runs', 'plan',     null,      'due',     'birth'),
  ('job_runs', 'claim',    'due',     'running', 'claim'),
  ('job_runs', 'finish',   'running', 'done',    'token'),
  ('job_runs', 'put_back', 'running', 'due',     'token'),
  ('job_runs', 'reap',     'running', 'due',     'claim');

create table job_runs (
  job             text not null,
  period          text not null,
  state           text not null constraint job_runs_state check (state in ('due', 'running', 'done')),
  edge            text not null,
  claim_token     bigint not null default 0,
  outcome_token   bigint,
  attempt         integer not null default 0,
  next_attempt_at timestamptz not null,
  claimed_by      text,
  claimed_at      timestamptz,
  lease_until     timestamptz,
  finished_at     timestamptz,
  report          jsonb,
  primary key (job, period)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
create index job_runs_due on job_runs (next_attempt_at) where state = 'due';
create index job_runs_running on job_runs (claimed_at) where state = 'running';
create trigger job_runs_born before insert on job_runs for each row execute function law.guard_state('state', 'job_runs');
create trigger job_runs_moves before update of state, edge, claim_token, outcome_token on job_runs for each row
  when ((old.state, old.edge, old.claim_token, old.outcome_token) is distinct from (new.state, new.edge, new.claim_token, new.outcome_token))
  execute function law.guard_state('state', 'job_runs');
grant select, insert, update on job_runs to rowclaim_service;
grant select on job_runs to rowclaim_reader;

reset role;

-- migrate:down
