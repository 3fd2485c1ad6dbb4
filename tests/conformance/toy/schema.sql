set role rowclaim_owner;

insert into law.state_edges (table_name, edge, source, target, fence) values
  ('letters', 'write',    null,          'pending',     'birth'),
  ('letters', 'claim',    'pending',     'in_progress', 'claim'),
  ('letters', 'post',     'in_progress', 'posted',      'token'),
  ('letters', 'refuse',   'in_progress', 'refused',     'token'),
  ('letters', 'put_back', 'in_progress', 'pending',     'token'),
  ('letters', 'reap',     'in_progress', 'pending',     'claim'),
  ('letters', 'readdress', 'refused',    'pending',     'person'),
  ('letters', 'redirect', 'pending',     'pending',     'person');

create table letters (
  id              bigint generated always as identity primary key,
  reference       text not null constraint letters_once unique,
  address         text not null,
  state           text not null constraint letters_state check (state in ('pending', 'in_progress', 'posted', 'refused')),
  edge            text not null,
  claim_token     bigint not null default 0,
  outcome_token   bigint,
  attempt         integer not null default 0,
  next_attempt_at timestamptz not null,
  claimed_by      text,
  claimed_at      timestamptz,
  lease_until     timestamptz,
  stamp           text,
  refusal         text,
  constraint letters_leased check ((state = 'in_progress') = (lease_until is not null)),
  constraint letters_stamped check ((state = 'posted') = (stamp is not null)),
  constraint letters_reasoned check (state <> 'refused' or refusal is not null)
) with (fillfactor = 70);
create index letters_pending on letters (next_attempt_at) where state = 'pending';
create index letters_in_progress on letters (claimed_at) where state = 'in_progress';
create trigger letters_born before insert on letters for each row execute function law.guard_state('state', 'letters');
create trigger letters_moves before update of state, edge, claim_token, outcome_token on letters for each row
  when ((old.state, old.edge, old.claim_token, old.outcome_token) is distinct from (new.state, new.edge, new.claim_token, new.outcome_token))
  execute function law.guard_state('state', 'letters');
grant select, insert, update on letters to rowclaim_service;

reset role;
