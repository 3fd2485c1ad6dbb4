-- what:  what the retention role may blank and delete, and the two functions by which it drops whole weeks of event bodies
-- why:   nothing is kept for ever, and no service may delete; a person can be forgotten without a hole in any history
-- locks: none on existing tables

-- migrate:up
set lock_timeout = '2s';
set role rowclaim_owner;

grant select, update (body) on event_bodies to rowclaim_retention;    -- an empty body is one that was forgotten
grant select, delete on webhook_deliveries, event_ids, job_runs, pages to rowclaim_retention;
grant insert on admin_actions to rowclaim_retention;

-- The weeks of event bodies that ended longer ago than ``kept``, oldest first. ``needed``: bodies that somebody may
-- still work on; what was stored only to be shown, and what was forgotten, nobody can.
create function old_event_partitions(kept interval)
  returns table (partition_name text, since timestamptz, until timestamptz, needed bigint)
  language sql stable set search_path = pg_catalog, public, pg_temp as $$
  with weeks as (
    select c.relname::text as partition_name,
           regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''([^'']+)''\) TO \(''([^'']+)''\)') as bounds
    from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'public.event_bodies'::regclass)
  select w.partition_name, w.bounds[1]::timestamptz, w.bounds[2]::timestamptz,
         (select count(*) from public.webhook_deliveries d
          join public.event_bodies b on b.event_id = d.event_id and b.received_at = d.received_at
          where d.state in ('pending', 'in_progress', 'parked') and d.consumer <> 'ingress' and b.body <> ''
            and d.received_at >= w.bounds[1]::timestamptz and d.received_at < w.bounds[2]::timestamptz)
  from weeks w
  where w.bounds[2]::timestamptz <= public.rowclaim_now() - kept
  order by w.bounds[2]::timestamptz $$;
revoke execute on function old_event_partitions(interval) from public;
grant execute on function old_event_partitions(interval) to rowclaim_retention;

-- Drops one of them unless it is needed; whether it did. Whatever it is asked for, 90 days are kept. The lock comes
-- first, and not for long, because webhooks queue behind it: a replay that saw the body is over then, and what it made
-- claimable is counted; one that comes later sees no body.
create function drop_event_partition(named text, kept interval) returns boolean
  language plpgsql security definer set search_path = pg_catalog, public, pg_temp set lock_timeout = '250ms' as $$
begin
  lock table public.event_bodies in access exclusive mode;
  if not exists (select from public.old_event_partitions(greatest(kept, interval '90 days')) o
                 where o.partition_name = named and o.needed = 0) then
    return false;
  end if;
  execute format('drop table public.%I', named);
  return true;
end $$;
revoke execute on function drop_event_partition(text, interval) from public;
grant execute on function drop_event_partition(text, interval) to rowclaim_retention;

reset role;

-- migrate:down
