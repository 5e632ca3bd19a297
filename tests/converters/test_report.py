"""Progress and summaries say the right numbers, and nothing where they were asked to be quiet."""

from __future__ import annotations

import io
from collections import Counter

from converters.report import Progress, Report, ReportedSample
from dataloading.messages import human_bytes


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_without_a_terminal_a_line_comes_now_and_then() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(200, stream=stream, every_seconds=10, clock=clock)
    for _ in range(100):
        clock.now += 0.25
        progress.advance(1_000_000)
    progress.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[1] == "converting: 80 of 200 (40%), 4 images/s, 4.0 MB/s, 0:30 left"


def test_neither_what_was_done_before_nor_the_time_of_comparing_it_counts_for_the_speed() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(200, stream=stream, every_seconds=10, clock=clock)
    clock.now += 5
    progress.skip(120)
    for _ in range(40):
        clock.now += 0.25
        progress.advance(1_000_000)
    assert stream.getvalue().splitlines()[0] == "converting: 140 of 200 (70%), 4 images/s, 4.0 MB/s, 0:15 left"


def test_quiet_says_nothing() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(2, quiet=True, stream=stream, every_seconds=0, clock=clock)
    clock.now += 60
    progress.advance()
    progress.close()
    assert stream.getvalue() == ""


def test_on_a_terminal_a_bar_comes_and_goes() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    progress = Progress(3, stream=stream)
    for _ in range(3):
        progress.advance()
    progress.close()
    assert "converting" in stream.getvalue()
    assert stream.getvalue().rstrip(" ").endswith("\r")


def test_report_in_words_and_as_json() -> None:
    report = Report(path="o.beton", num_samples=1500, num_bytes=3 << 20, source_bytes=5 << 20, seconds=2.0)
    report.images = Counter({"transcoded": 1400, "encoded": 100})
    report.skipped = [ReportedSample(index=3, name="a/b.jpg", reason="JPEG data ends early")]
    assert str(report).splitlines() == [
        "o.beton: 1,500 samples, 3.0 MiB from 5.0 MiB of source files",
        "images: 100 encoded, 1,400 transcoded",
        "skipped: 1",
        "time: 2.0 s, 750 samples/s",
    ]
    facts = report.as_dict()
    assert facts["samples_per_second"] == 750.0
    assert facts["skipped"] == [{"index": 3, "name": "a/b.jpg", "reason": "JPEG data ends early"}]


def test_bytes_in_words() -> None:
    assert [human_bytes(count) for count in (1023, 1024, 5 << 40)] == ["1023 B", "1.0 KiB", "5.0 TiB"]
