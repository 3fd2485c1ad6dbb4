-- what:  purchases, whose fulfillment_state column is the whole queue of what buyers are still owed
-- why:   the row that comes back from the claim is the one a process owns; nothing else says what is due
-- locks: none on existing tables

-- migrate:up
set lock_timeout = '2s';
set role rowclaim_owner;

insert into law.state_edges (table_name, edge, source, target, fence) values
  ('purchases', 'record',            null,          'pending',     'birth'),
  ('purchases', 'claim',             'pending',     'in_progress', 'claim'),
  ('purchases', 'deliver',           'in_progress', 'delivered',   'token'),
  ('purchases', 'refuse',            'in_progress', 'failed',      'token'),
  ('purchases', 'put_back',          'in_progress', 'pending',     'token'),
  ('purchases', 'retrigger_pending', 'pending',     'pending',     'person'),
  ('purchases', 'retrigger_failed',  'failed',      'pending',     'person'),
  ('purchases', 'force_in_progress', 'in_progress', 'pending',     'person'),
  ('purchases', 'force_delivered',   'delivered',   'pending',     'person');

create table purchases (
  id                       bigint generated always as identity primary key,
  stripe_session_id        text not null constraint purchases_once unique,
  user_id                  text,
  email                    text,
  github_handle            text,
  github_account_id        bigint,                  -- pinned by the check before the money moved; a freed login can be another's tomorrow
  amount_minor             bigint constraint purchases_amount check (amount_minor >= 0),
  currency                 text,
  created_at               timestamptz not null,
  revoked_at               timestamptz,             -- refunded or disputed before the invite: never claimed
  fulfillment_state        text not null constraint purchases_fulfillment_state check (fulfillment_state in ('pending', 'in_progress', 'delivered', 'failed')),
  edge                     text not null,
  claim_token              bigint not null default 0,
  outcome_token            bigint,
  claimed_by               text,
  fulfillment_attempts     integer not null default 0,
  fulfillment_attempted_at timestamptz,             -- the start of the latest attempt; only a claim writes it
  fulfilled_at             timestamptz,             -- the latest successful delivery
  fulfillment_last_error   text,                    -- for operators only
  fulfillment_last_code    text,                    -- the outcome's machine code
  ask_first                boolean not null default false,   -- the latest call's fate is unknown: look before sending again
  timeouts_in_row          integer not null default 0,
  timeout_starts           timestamptz[] not null default '{}',  -- when the latest of those attempts began, five at most
  deferrals                integer not null default 0,           -- how often in a row it was deferred
  next_attempt_at          timestamptz,             -- deferred (poison-slow) until then, and tried after all due rows; null: due
  invitation_id            bigint,
  invitation_url           text,
  invited_account_id       bigint,
  invited_at               timestamptz,
  already_had_access       boolean,
  attention                text,                    -- why an operator should look at a row that the machine goes on with
  constraint purchases_attempted check (fulfillment_state <> 'in_progress' or fulfillment_attempted_at is not null),
  constraint purchases_delivered check (fulfillment_state <> 'delivered' or fulfilled_at is not null),
  constraint purchases_reasoned  check (fulfillment_state <> 'failed' or fulfillment_last_error is not null)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
create index purchases_pending on purchases (created_at, id) where fulfillment_state = 'pending' and revoked_at is null;
create index purchases_attention on purchases (fulfillment_attempted_at desc) where fulfillment_state in ('failed', 'in_progress');
create index purchases_fulfilled on purchases (fulfilled_at) where fulfilled_at is not null;    -- was another delivered in between?
create trigger purchases_born before insert on purchases for each row execute function law.guard_state('fulfillment_state', 'purchases');
create trigger purchases_moves before update of fulfillment_state, edge, claim_token, outcome_token on purchases for each row
  when ((old.fulfillment_state, old.edge, old.claim_token, old.outcome_token) is distinct from (new.fulfillment_state, new.edge, new.claim_token, new.outcome_token))
  execute function law.guard_state('fulfillment_state', 'purchases');
grant select, insert, update on purchases to rowclaim_fulfillment;

create view desk.fulfillment_attention as
select 'fulfillment'::text as slice, 'purchase'::text as kind, p.id::text as id, p.fulfillment_state as state,
       coalesce(p.fulfillment_attempted_at, p.created_at) as since,
       coalesce(p.attention, case when p.next_attempt_at is not null then 'deferred_slow' end, p.fulfillment_last_code, 'in_progress') as why,
       p.next_attempt_at as next_instant, null::text as action_url
from purchases p
where p.fulfillment_state in ('failed', 'in_progress') or p.attention is not null or p.timeouts_in_row >= 5
   or (p.revoked_at is not null and p.fulfillment_state = 'pending');
grant select on desk.fulfillment_attention to rowclaim_reader, rowclaim_operator;

reset role;

-- migrate:down
