"""Warnings about a tracking store that lacks records."""

from __future__ import annotations

from study.tracking.monitor import TrackingMonitor
from study.tracking.spool import ShippingStatus


def test_an_outage_is_one_warning() -> None:
    warnings: list[str] = []
    now, status = 0.0, ShippingStatus(error="no route")
    monitor = TrackingMonitor(lambda: status, warnings.append, clock=lambda: now)
    for second in range(60):
        now = float(second)
        monitor.update()
    assert len(warnings) == 1
    assert "no route" in warnings[0]
    status = ShippingStatus()
    for second in range(60, 70):
        now = float(second)
        monitor.update()
    status = ShippingStatus(error="again")
    for second in range(70, 120):
        now = float(second)
        monitor.update()
    assert len(warnings) == 2


def test_a_note_of_an_earlier_run_is_not_repeated_but_a_new_one_is_printed() -> None:
    warnings: list[str] = []
    status = ShippingStatus(note="circle is back")
    monitor = TrackingMonitor(lambda: status, warnings.append)
    monitor.warn_of_note()
    assert warnings == []
    for note in ("", "circle is back", "circle is back"):
        status = ShippingStatus(note=note)
        monitor.warn_of_note()
    assert [text.rpartition(": ")[2] for text in warnings] == ["circle is back"]
