"""What every claim shares. The statements themselves are held to the law in ``tests/conformance``."""

import subprocess
import sys
from datetime import timedelta

from services.kernel.claim import LEASE_RENEWALS, WORKER, renewal_interval_s


def test_a_worker_is_never_taken_for_another_start_of_its_process() -> None:
    program = "from services.kernel.claim import WORKER; print(WORKER)"
    starts = {subprocess.check_output([sys.executable, "-c", program], text=True).strip() for _ in range(2)}
    assert len({*starts, WORKER}) == 3
    assert all(len(worker) <= 80 and worker.count(":") == 2 for worker in starts)


def test_two_renewals_may_be_late_before_a_lease_is_over() -> None:
    lease = timedelta(seconds=30)
    assert LEASE_RENEWALS * renewal_interval_s(lease) == lease.total_seconds()
    assert 2 * renewal_interval_s(lease) < lease.total_seconds()
