-- what:  roles, the two clock functions, declared state edges and the guard, append-only guard, admin actions
-- why:   every later table stands on these: least privilege, one clock, and a database that itself refuses an undeclared change
-- locks: none on existing tables

-- migrate:up
set lock_timeout = '2s';

-- Roles belong to the whole cluster: a second database on the same server finds them made (or meets their maker).
do $$
declare
  name text;
begin
  foreach name in array array['rowclaim_owner', 'rowclaim_service'] loop
    begin
      execute format('create role %I nologin', name);
    exception when duplicate_object or unique_violation then null;
    end;
  end loop;
  foreach name in array array['rowclaim_ingress', 'rowclaim_fulfillment', 'rowclaim_operator', 'rowclaim_reader', 'rowclaim_cdc', 'rowclaim_retention'] loop
    begin
      execute format('create role %I login', name);
    exception when duplicate_object or unique_violation then null;
    end;
    begin
      execute format('alter role %I set timezone = %L', name, 'UTC');
      execute format('alter role %I set lock_timeout = %L', name, '2s');
      execute format('alter role %I set statement_timeout = %L', name, '5s');
      execute format('alter role %I set idle_in_transaction_session_timeout = %L', name, '10s');
    exception when internal_error then
      if sqlerrm not like 'tuple concurrently updated%' then raise; end if;  -- another database's migration says the same
    end;
  end loop;
end $$;

do $$
begin
  grant rowclaim_service to rowclaim_ingress, rowclaim_fulfillment, rowclaim_operator;
exception when internal_error or unique_violation then
  if sqlstate = 'XX000' and sqlerrm not like 'tuple concurrently updated%' then raise; end if;
end $$;

grant usage, create on schema public to rowclaim_owner;
do $$
begin
  execute format('grant create on database %I to rowclaim_owner', current_database());
end $$;
set role rowclaim_owner;

create schema law;
grant usage on schema law to public;
create schema desk;
grant usage on schema desk to rowclaim_reader, rowclaim_operator;
comment on schema desk is 'What a machine must not guess, one view a slice and kind: slice, kind, id, state, since, why, next_instant, action_url.';

-- Production has no knob: both are the plain clock. Tests replace both together.
create function rowclaim_now() returns timestamptz language sql stable parallel safe return now();
create function rowclaim_clock() returns timestamptz language sql volatile parallel safe return clock_timestamp();

create table law.state_edges (
  table_name text not null,
  edge       text not null,
  source     text,              -- null: a state a row may be born in
  target     text not null,
  fence      text not null constraint state_edges_fence check (fence in ('birth', 'claim', 'token', 'person')),
  primary key (table_name, edge),
  constraint state_edges_birth check ((source is null) = (fence = 'birth'))
);
create unique index state_edges_one_name on law.state_edges (table_name, source, target, fence);
grant select on law.state_edges to public;

-- Columns edge, claim_token, outcome_token and the state column (argument 1) of the table (argument 2; its own name
-- would be the partition's on a partition) are held to law.state_edges, whoever writes.
create function law.guard_state() returns trigger language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  state_column constant text := tg_argv[0];
  guarded      constant text := tg_argv[1];
  state_was    text;
  state_is     constant text := to_jsonb(new) ->> state_column;
  declared     law.state_edges;
begin
  select * into declared from law.state_edges e where e.table_name = guarded and e.edge = new.edge;
  if not found then
    raise exception '%: unknown edge %', guarded, new.edge using errcode = 'RC001';
  end if;
  if tg_op = 'INSERT' then
    if declared.fence <> 'birth' or declared.target <> state_is then
      raise exception '%: no row is born %', guarded, state_is using errcode = 'RC001';
    end if;
    return new;
  end if;
  state_was := to_jsonb(old) ->> state_column;
  if declared.source is distinct from state_was or declared.target <> state_is then
    raise exception '%: edge % is % -> %, not % -> %', guarded, declared.edge, declared.source, declared.target, state_was, state_is
      using errcode = 'RC001';
  end if;
  if declared.fence in ('claim', 'person') and (new.claim_token <> old.claim_token + 1 or new.outcome_token is not null) then
    raise exception '%: edge % takes a new claim token', guarded, declared.edge using errcode = 'RC002';
  end if;
  if declared.fence = 'token' and (new.claim_token <> old.claim_token or new.outcome_token is distinct from old.claim_token) then
    raise exception '%: edge % needs the current claim token', guarded, declared.edge using errcode = 'RC002';
  end if;
  return new;
end $$;

create function law.guard_history() returns trigger language plpgsql as $$
begin
  raise exception '%.% is append-only', tg_table_schema, tg_table_name using errcode = 'RC003';
end $$;

create table admin_actions (
  id         bigint generated always as identity primary key,
  acted_at   timestamptz not null default rowclaim_now(),
  actor      text not null,
  verb       text not null,
  target     text not null,
  reason     text not null constraint admin_actions_reason check (reason <> ''),
  before     jsonb,
  after      jsonb
);
create trigger admin_actions_history before update or delete on admin_actions for each row execute function law.guard_history();
create trigger admin_actions_truncate before truncate on admin_actions for each statement execute function law.guard_history();
grant select, insert on admin_actions to rowclaim_service;
grant select on admin_actions to rowclaim_reader;

reset role;

-- migrate:down
