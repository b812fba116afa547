"""Facts in, verdict out: no clock, no file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.bench import report
from penstock.bench.facts import Facts, Flow, Limits, MeasuredSample, SampleTrial
from penstock.bench.plot import charts, check_plot, page
from penstock.bench.verdict import capacities, judge
from penstock.core.errors import InvalidInput

MB = 1_000_000


def flow(rate: float, waited: float) -> Flow:
    """A run of ten seconds."""
    return Flow(rows=round(rate * 10), wall_s=10.0, waited_s=10 * waited, cpu_s=5.0)


def facts(**changes: object) -> Facts:
    """Pictures of 100 KB; the disk gives 2,000 a second, the cores 1,000, the consumer wants 1,600."""
    sample = MeasuredSample("photos", "jpg", 100_000, 10_000 * MB, 100_000, 150_000, 1000, 32, 0.02)
    made = Facts(
        sample=sample,
        limits=Limits(cores=2, memcpy=8e9, read_cold=200 * MB, read_warm=2000 * MB, memory_nbytes=16_000 * MB),
        synthetic=flow(1600, 0.0),
        cached=flow(950, 0.4),
        cold=flow(900, 0.43),
        free=flow(960, 1.0),
        free_cold=flow(900, 1.0),
        decode=1000.0,
    )
    return replace(made, **changes)


def test_capacities_are_rows_a_second():
    found = capacities(facts(function=500.0))
    assert found["storage"] == pytest.approx(2000)
    assert found["consumer"] == pytest.approx(1600)
    assert found["prepare"] == pytest.approx(1 / (1 / 1000 + 1 / 500))


def test_cores_that_cannot_keep_up_are_decode():
    verdict = judge(facts())
    assert (verdict.bottleneck, verdict.later) == ("decode", "decode")
    assert verdict.prepare_stall_us > verdict.fetch_stall_us > 0
    assert verdict.reached["compute"] == pytest.approx(0.96)
    assert verdict.reached["disk"] == pytest.approx(0.48)
    assert verdict.reached["memcpy"] == pytest.approx(960 * 150_000 / 8e9)


def test_a_function_slower_than_decoding_is_the_function():
    assert judge(facts(function=400.0)).bottleneck == "function"
    assert judge(facts(function=4000.0)).bottleneck == "decode"


def test_waiting_for_a_database_is_told_as_such_and_for_every_epoch():
    rows = replace(facts().sample, kind="sql", nbytes=None, row_stored=50.0)
    slow = facts(sample=rows, cached=flow(1550, 0.02), cold=flow(300, 0.8), free_cold=flow(310, 1.0))
    verdict = judge(slow)
    assert (verdict.bottleneck, verdict.later, verdict.stays_cached) == ("storage", "storage", None)
    assert verdict.sentence == "The database is the bottleneck: the consumer waits for its rows."
    text = report.text(slow, verdict)
    assert "us for the database" in text and "rows at hand" in text and "files" not in text


def test_waiting_that_only_cold_files_cause_is_storage():
    found = facts(cached=flow(1590, 0.01), cold=flow(400, 0.75), free_cold=flow(410, 1.0))
    verdict = judge(found)
    assert (verdict.bottleneck, verdict.later) == ("storage", "consumer")
    assert "later epochs" in verdict.sentence
    # 10 GB stay in 16 GB of memory; 100 GB do not, so the first epoch's bottleneck is that of all.
    assert verdict.stays_cached is True
    large = replace(found, sample=replace(found.sample, nbytes=100_000 * MB))
    assert judge(large).stays_cached is False


def test_a_consumer_that_never_waits_is_the_bottleneck():
    verdict = judge(facts(cached=flow(1600, 0.01), cold=flow(1590, 0.02)))
    assert verdict.bottleneck == "consumer"
    assert verdict.advice == ("Nothing on the data side would make this consumer faster.",)


def test_without_cold_numbers_the_cached_run_decides():
    verdict = judge(facts(cold=None, free_cold=None, limits=replace(facts().limits, read_cold=None)))
    assert verdict.bottleneck == "decode"
    assert "storage" not in verdict.capacities and "disk" not in verdict.reached


def test_advice_is_what_gained_in_trials_largest_first():
    trials = (
        SampleTrial("pack", 1000, 960),
        SampleTrial("resize", 2400, 960),
        SampleTrial("cache in memory", 9600, 960, needs_nbytes=50_000 * MB, fits=False),
        SampleTrial("cache in a folder", 4800, 960),
        SampleTrial("other", None, 960, note="the disk is full"),
    )
    advice = judge(facts(trials=trials)).advice
    assert [line.partition(":")[0] for line in advice] == ["cache in a folder", "resize", "cache in memory"]
    assert "does not fit" in advice[-1]


def test_where_storage_is_slow_the_cold_gain_counts():
    trials = (
        SampleTrial("pack", 960, 960, cold=1200, before_cold=400),
        SampleTrial("resize", 1900, 960, cold=420, before_cold=400),
    )
    found = facts(cached=flow(1590, 0.01), cold=flow(400, 0.75), trials=trials)
    assert [line.partition(":")[0] for line in judge(found).advice] == ["pack"]


def test_no_gain_is_said():
    assert "None of the changes" in judge(facts(trials=(SampleTrial("pack", 970, 960),))).advice[0]


def test_batches_that_cost_more_than_their_rows_are_told():
    assert "A larger batch" in judge(facts(free=flow(90, 1.0))).advice[-1]
    assert not any("larger batch" in line for line in judge(facts()).advice)


def test_a_flow_of_nothing_divides_by_nothing():
    assert (Flow(0, 0.0).rate, Flow(0, 0.0).waited, Flow(0, 0.0).waited_us) == (0.0, 0.0, 0.0)


def test_no_share_above_one_where_files_in_memory_are_faster_than_the_disk():
    found = facts(free=flow(9600, 0.0), cached=flow(9600, 0.0))
    words = report.text(found, judge(found))
    assert "disk     files in memory: (960 MB/s of 200 MB/s cold, 2 GB/s from memory)" in words


def test_the_report_names_the_numbers():
    found = facts(trials=(SampleTrial("pack", 2000, 960, cold=1000, before_cold=900),), notes=("a note",))
    text = report.text(found, judge(found))
    for part in ("Decoding is the bottleneck", "100,000 rows", "200 MB/s", "96.0%", "2.08x", "1.11x", "a note"):
        assert part in text
    told = report.to_json(found, judge(found))
    assert told["verdict"]["bottleneck"] == "decode"
    assert told["rows_per_s"]["free"] == pytest.approx(960)
    assert told["gains"] == {"pack": pytest.approx(2000 / 960)}


def test_the_page_needs_nothing_else_and_shows_every_bar():
    found = facts(trials=(SampleTrial("pack <b>", 2000, 960),))
    text = page(found, judge(found))
    assert text.count("<svg") == 3 and "pack &lt;b&gt;" in text and "<b>" not in text
    assert "http" not in text and "<script" not in text
    names = [bar.name for chart in charts(found, judge(found)) for bar in chart.bars]
    assert names == [
        "storage", "decode", "consumer", "pipeline", "synthetic", "cached", "cold", "as it is", "pack <b>",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["out.svg", "no/such/folder/out.html"])
def test_a_plot_that_cannot_be_written_is_refused_early(name, tmp_path):
    with pytest.raises(InvalidInput, match="--plot"):
        check_plot(tmp_path / name)


def test_only_what_the_verdict_names_is_marked_and_small_times_are_not_zero():
    fast = facts(
        cached=Flow(9_000_000, 10.0, 1.8, 5.4), cold=None, free=Flow(9_000_000, 10.0, 10.0, 5.4), free_cold=None
    )
    fast = replace(fast, decode=1.5e6, sample=replace(fast.sample, step_s=1e-3, batch=1024))
    verdict = judge(fast)
    assert verdict.bottleneck == "decode" and verdict.capacities["consumer"] < verdict.capacities["decode"]
    text = report.text(fast, verdict)
    marked = [line for line in text.splitlines() if "<-" in line]
    assert len(marked) == 1 and marked[0].split()[0] == "decode"
    assert "processor time 0.6 us a row" in text
    assert "0.2 us for preparing, 0 us for storage" in text
