"""Says at the end of a run how many kills were survived, and where they were; and how many schedules were played."""

from collections.abc import Callable

import pytest

from tests.crash.sweep import Report

Record = Callable[[str, Report], None]
_PROPERTY = "crash points"
_COUNTED = (_PROPERTY, "interleavings")


@pytest.fixture
def record_points(request: pytest.FixtureRequest) -> Record:
    """Tell the summary about a sweep; reports carry it from parallel workers too."""

    def record(name: str, report: Report) -> None:
        request.node.user_properties.append((_PROPERTY, f"{name} {report}"))

    return record


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name in _COUNTED:
                terminalreporter.write_line(f"{name}: {value}")
