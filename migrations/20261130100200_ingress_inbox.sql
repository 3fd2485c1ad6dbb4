-- what:  event ids (kept long), event bodies (weekly partitions), subscriptions, deliveries, the desk view of parked ones
-- why:   an event has no business row yet: it is stored once, with one delivery per subscribed consumer, in one statement
-- locks: none on existing tables

-- migrate:up
set lock_timeout = '2s';
set role rowclaim_owner;

create table event_ids (
  id          bigint generated always as identity primary key,
  source      text not null constraint event_ids_source check (source ~ '^[a-z][a-z0-9_]{0,31}$'),
  external_id text not null constraint event_ids_external_id check (octet_length(external_id) between 1 and 255),
  kind        text not null constraint event_ids_kind check (octet_length(kind) between 1 and 255),
  received_at timestamptz not null,
  constraint event_ids_once unique (source, external_id)
);
create index event_ids_received on event_ids (received_at);     -- the delivery sweep's window

create table event_bodies (
  received_at timestamptz not null,
  event_id    bigint not null,
  body        bytea not null,
  primary key (event_id, received_at)
) partition by range (received_at);

-- Makes the weekly partitions from this week to ``weeks`` ahead; returns how many it made. No default partition:
-- attaching a partition beside one scans it.
create function make_event_partitions(weeks integer) returns integer
  language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
  monday date := date_trunc('week', rowclaim_now() at time zone 'UTC')::date;
  named  text;
  made   integer := 0;
begin
  perform pg_advisory_xact_lock(hashtext('make_event_partitions'));
  for nth in 0 .. least(weeks, 60) loop
    named := 'event_bodies_' || to_char(monday + 7 * nth, 'IYYY"w"IW');
    if to_regclass('public.' || named) is null then
      execute format('create table public.%I partition of public.event_bodies for values from (%L) to (%L)', named,
                     (monday + 7 * nth)::timestamp at time zone 'UTC', (monday + 7 * nth + 7)::timestamp at time zone 'UTC');
      made := made + 1;
    end if;
  end loop;
  return made;
end $$;
revoke execute on function make_event_partitions(integer) from public;
grant execute on function make_event_partitions(integer) to rowclaim_service;

-- Whole weeks that inserts are still good for: readiness and doctor say it.
create function event_weeks_ahead() returns integer language sql stable parallel safe return (
  select coalesce(floor(extract(epoch from max((regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO \(''([^'']+)''\)'))[1]::timestamptz) - rowclaim_now()) / 604800), 0)::integer
  from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = 'public.event_bodies'::regclass);
grant execute on function event_weeks_ahead() to rowclaim_service, rowclaim_reader;

select make_event_partitions(8);

create table webhook_subscriptions (
  source   text not null,
  kind     text not null,
  consumer text not null,
  since    timestamptz not null,        -- events received from this instant on are owed to the consumer
  caught_up_at timestamptz,             -- null: events since ``since`` were not yet looked through once
  primary key (source, kind, consumer)
);

insert into law.state_edges (table_name, edge, source, target, fence) values
  ('webhook_deliveries', 'arrive',          null,          'pending',     'birth'),
  ('webhook_deliveries', 'arrive_parked',   null,          'parked',      'birth'),
  ('webhook_deliveries', 'claim',           'pending',     'in_progress', 'claim'),
  ('webhook_deliveries', 'finish',          'in_progress', 'done',        'token'),
  ('webhook_deliveries', 'disown',          'in_progress', 'not_ours',    'token'),
  ('webhook_deliveries', 'park',            'in_progress', 'parked',      'token'),
  ('webhook_deliveries', 'put_back',        'in_progress', 'pending',     'token'),
  ('webhook_deliveries', 'reap',            'in_progress', 'pending',     'claim'),
  ('webhook_deliveries', 'reap_park',       'in_progress', 'parked',      'claim'),
  ('webhook_deliveries', 'unpark',          'parked',      'pending',     'person'),
  ('webhook_deliveries', 'replay',          'done',        'pending',     'person'),
  ('webhook_deliveries', 'replay_not_ours', 'not_ours',    'pending',     'person');

create table webhook_deliveries (
  event_id        bigint not null,
  consumer        text not null,
  received_at     timestamptz not null,
  state           text not null constraint webhook_deliveries_state check (state in ('pending', 'in_progress', 'done', 'parked', 'not_ours')),
  edge            text not null,
  claim_token     bigint not null default 0,
  outcome_token   bigint,
  attempt         integer not null default 0,
  next_attempt_at timestamptz not null,
  claimed_by      text,
  claimed_at      timestamptz,
  lease_until     timestamptz,
  renewals        integer not null default 0,      -- since the latest claim
  crash_reaps     integer not null default 0,      -- reaps in which nothing had renewed
  parked_reason   text,
  finished_at     timestamptz,
  primary key (event_id, consumer),
  constraint webhook_deliveries_leased check ((state = 'in_progress') = (lease_until is not null)),
  constraint webhook_deliveries_reasoned check ((state = 'parked') = (parked_reason is not null))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
create index webhook_deliveries_pending on webhook_deliveries (consumer, next_attempt_at) where state = 'pending';
create index webhook_deliveries_in_progress on webhook_deliveries (claimed_at) where state = 'in_progress';   -- the reaper; lease_until stays in no index, so that renewals are HOT
create index webhook_deliveries_parked on webhook_deliveries (event_id) where state = 'parked';
create trigger webhook_deliveries_born before insert on webhook_deliveries for each row execute function law.guard_state('state', 'webhook_deliveries');
create trigger webhook_deliveries_moves before update of state, edge, claim_token, outcome_token on webhook_deliveries for each row
  when ((old.state, old.edge, old.claim_token, old.outcome_token) is distinct from (new.state, new.edge, new.claim_token, new.outcome_token))
  execute function law.guard_state('state', 'webhook_deliveries');

grant select, insert on event_ids, event_bodies to rowclaim_ingress;
grant select on event_ids, event_bodies to rowclaim_service;
grant select, insert, update on webhook_deliveries, webhook_subscriptions to rowclaim_service;
grant select on event_ids, webhook_deliveries, webhook_subscriptions to rowclaim_reader;

create view desk.ingress_parked as
select 'ingress'::text as slice, 'delivery'::text as kind, d.event_id || ':' || d.consumer as id, d.state, coalesce(d.finished_at, d.received_at) as since,
       d.parked_reason as why, null::timestamptz as next_instant, null::text as action_url
from webhook_deliveries d where d.state = 'parked';
grant select on desk.ingress_parked to rowclaim_reader, rowclaim_operator;

reset role;

-- migrate:down
