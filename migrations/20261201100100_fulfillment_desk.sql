-- what:  what a purchase's payment and invitation came to later, what was granted by it, and one list of what needs a look
-- why:   a payment may be taken back, an invitation may run out, and a person repairs both over routes of their own
-- locks: purchases, exclusively, while columns are added (no rewrite), and against writes while four small indexes are built

-- migrate:up
set lock_timeout = '2s';
set role rowclaim_owner;

alter table purchases
  add column stripe_payment_id     text,            -- the payment intent: refunds and disputes name it, not the Session
  add column revoked_why           text,            -- refunded, disputed
  add column accepted_at           timestamptz,     -- when access was first seen to be there
  add column invitation_expired_at timestamptz,     -- the instant at which the latest invitation ran out unaccepted; a new delivery clears it
  add constraint purchases_revoked check (revoked_why is null or revoked_at is not null),
  add constraint purchases_decided check (accepted_at is null or invitation_expired_at is null);

create index purchases_owner on purchases (user_id, created_at desc, id desc) where user_id is not null;
create index purchases_payment on purchases (stripe_payment_id) where stripe_payment_id is not null;
create index purchases_undecided on purchases (invited_at, id)   -- invitations that nobody took up, oldest first
  where fulfillment_state = 'delivered' and accepted_at is null and invitation_expired_at is null and invited_at is not null;

-- Written by whoever grants more than the invitation; fulfillment reads it and no more.
create table entitlements (
  id          bigint generated always as identity primary key,
  purchase_id bigint not null references purchases,
  user_id     text not null,
  kind        text not null,
  granted_at  timestamptz not null default rowclaim_now(),
  constraint entitlements_once unique (purchase_id, kind)
);
grant select on entitlements to rowclaim_fulfillment;

drop index purchases_attention;   -- the wider one below takes its place

-- What needs a look is said once, here. The desk shows it to everybody who may look, the admin route with what it needs
-- to act. Of several reasons the one that forbids most comes first.
create view purchases_attention as
select p.id, p.user_id, p.github_handle, p.fulfillment_state,
       case when p.revoked_at is not null then coalesce(p.revoked_why, 'revoked')
            when p.fulfillment_state = 'in_progress' then 'in_progress'
            when p.attention is not null then p.attention
            when p.fulfillment_state = 'delivered' then 'invitation_expired'
            when p.next_attempt_at is not null then 'deferred_slow'
            else p.fulfillment_last_code end as why,
       case when p.revoked_at is not null then p.revoked_at
            when p.fulfillment_state = 'delivered' and p.attention is null then p.invitation_expired_at
            else coalesce(p.fulfillment_attempted_at, p.created_at) end as since,
       p.fulfillment_last_error, p.fulfillment_attempts, p.fulfillment_attempted_at, p.fulfilled_at,
       p.invitation_expired_at, p.revoked_at, p.next_attempt_at
from purchases p
where p.fulfillment_state in ('failed', 'in_progress') or p.attention is not null or p.revoked_at is not null
   or p.timeouts_in_row >= 5 or (p.fulfillment_state = 'delivered' and p.invitation_expired_at is not null);
grant select on purchases_attention to rowclaim_fulfillment;

-- The view's very condition, so that its newest fifty are read and nothing else is.
create index purchases_attention_newest on purchases (fulfillment_attempted_at desc nulls last, id desc)
  where fulfillment_state in ('failed', 'in_progress') or attention is not null or revoked_at is not null
     or timeouts_in_row >= 5 or (fulfillment_state = 'delivered' and invitation_expired_at is not null);
create or replace view desk.fulfillment_attention as
select 'fulfillment'::text as slice, 'purchase'::text as kind, a.id::text as id, a.fulfillment_state as state, a.since,
       a.why, a.next_attempt_at as next_instant, null::text as action_url
from purchases_attention a;

reset role;

-- migrate:down
