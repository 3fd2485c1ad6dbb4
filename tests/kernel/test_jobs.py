"""What a slice says of a job: when its periods are due, and the machine that each of them is."""

from datetime import timedelta

from services.kernel.jobs import JOB_RUNS, Schedule, daily, weekly
from services.kernel.service import verify_machine
from tests.fixtures.database import Connect


def test_a_schedule_is_a_length_and_a_place_in_it() -> None:
    assert daily(hour=3) == Schedule(every=timedelta(days=1), at=timedelta(hours=3))
    assert weekly(weekday=6, hour=4) == Schedule(every=timedelta(days=7), at=timedelta(days=6, hours=4))


async def test_the_machine_is_the_databases(connect: Connect) -> None:
    await verify_machine(await connect("rowclaim_ingress"), JOB_RUNS)
