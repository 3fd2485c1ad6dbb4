-- what:  the login role of identity, users as Clerk's events tell them, and the view by which the other slices see them
-- why:   a person's address and customer id stand in one place, ordered by Clerk's own clock; everybody else keeps the id
-- locks: none on existing tables

-- migrate:up
set lock_timeout = '2s';

-- Roles belong to the whole cluster: a second database on the same server finds them made (or meets their maker).
do $$
begin
  begin
    create role rowclaim_identity login;
  exception when duplicate_object or unique_violation then null;
  end;
  begin
    alter role rowclaim_identity set timezone = 'UTC';
    alter role rowclaim_identity set lock_timeout = '2s';
    alter role rowclaim_identity set statement_timeout = '5s';
    alter role rowclaim_identity set idle_in_transaction_session_timeout = '10s';
    grant rowclaim_service to rowclaim_identity;
  exception when internal_error or unique_violation then
    if sqlstate = 'XX000' and sqlerrm not like 'tuple concurrently updated%' then raise; end if;  -- another database's migration says the same
  end;
end $$;

set role rowclaim_owner;

create table users (
  user_id            text primary key,     -- Clerk's subject
  email              text,                 -- the primary one, as Clerk gives it
  stripe_customer_id text,
  clerk_updated_at   timestamptz,          -- the user's own clock, of the body that stands here
  clerk_event_at     timestamptz,          -- when Clerk told it; decides between two bodies of one instant
  created_at         timestamptz not null, -- ours: first heard of
  updated_at         timestamptz not null, -- ours: latest change
  deleted_at         timestamptz,          -- ours: Clerk deleted the user; nothing is written here any more
  forgotten_at       timestamptz,          -- ours: somebody had the person forgotten; only a deletion is written here
  constraint users_told  check (deleted_at is not null or forgotten_at is not null or (clerk_updated_at is not null and clerk_event_at is not null)),
  constraint users_final check ((deleted_at is null and forgotten_at is null) or (email is null and stripe_customer_id is null))
);
grant select, insert, update on users to rowclaim_identity;

-- The door for the other slices: living users, three columns. It reads by its owner's rights; nobody else reads the table.
create schema identity;
grant usage on schema identity to rowclaim_service;
create view identity.people with (security_barrier) as
select u.user_id, u.email, u.stripe_customer_id from users u where u.deleted_at is null and u.forgotten_at is null;
grant select (user_id, email, stripe_customer_id) on identity.people to rowclaim_service;

reset role;

-- migrate:down
