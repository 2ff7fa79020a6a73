"""The report: its metrics, its three formats, its plots."""

import json
import re

import pytest
from profiles import HEALTHY_GPU, on_gpu, profile, rank

from parcade.errors import UsageError
from parcade.machine.timing import SCOPES
from parcade.profile.data import from_json, to_json
from parcade.profile.profile_page import profile_page
from parcade.profile.profile_plots import draw_split, draw_timeline
from parcade.report.page import Heading, Image, Page, Table, Text, to_html, to_markdown, to_text, write_page

pytestmark = pytest.mark.quick


def test_the_report_gives_rates_bandwidth_and_its_own_price():
    text = to_text(profile_page(profile(), pictures=False))
    assert "2,000 steps/s over 10.0 s and 10 iteration(s)" in text
    assert "1.90 of 4 cores used" in text
    on_two_hosts = profile(*(rank(i, local_size=2) for i in range(4)))
    assert "3.80 of 8 cores used" in to_text(profile_page(on_two_hosts, pictures=False))
    # 2 ranks x 30 MB in 2 x 0.25 s; the ceiling is the median of the measured Allreduces of 0.3 MB
    assert re.search(r"achieved +120 MB/s", text) and re.search(r"ranks idle +150 MB/s", text)
    cost = "1.00 us per scope x 400 scopes per iteration over 0.95 s of CPU time"
    assert f"{cost} (plus 150 us at the end of an iteration) = 0.06%" in text
    assert "Nothing stands out" in text


def test_times_and_bandwidth_of_allreduces_are_those_of_the_same_ranks():
    text = to_text(profile_page(profile(rank(0), rank(1, allreduce_seconds=0.75)), pictures=False))
    assert re.search(r"mean time of an Allreduce +5.00 ms", text)  # 200 of 0.3 MB in 1 s, of 20 s
    assert re.search(r"share of wall clock +5.0%", text) and re.search(r"achieved +60 MB/s", text)


def test_a_rank_is_allowed_no_more_cores_than_there_are_under_a_quota_of_cpu_time():
    found = profile(rank(0, affinity=[*range(8)], cores_at_once=2), cores=2, machine={"cores": 8})
    text = to_text(profile_page(found, pictures=False))
    assert "8 of 8" in text and "0.95 of 2 cores used" in text


def test_the_overhead_on_this_runs_figures_is_under_two_per_cent():
    assert all(0 < r.overhead_share < 0.02 for r in profile().ranks)


def test_one_rank_has_no_communication_and_an_actor_has_its_own_row():
    alone = profile(rank(0, actor_seconds={"emulate": 3.0, "wait": 1.0}))
    text = to_text(profile_page(alone, pictures=False))
    assert "Communication" not in text and re.search(r"actor of 0 +75.0%", text)


def test_with_overlap_the_actors_thread_plays_and_its_emulation_is_shown():
    actor = {"emulate": 7.0, "infer": 2.0, "wait": 1.0}
    text = to_text(
        profile_page(profile(rank(0, {"learn": 6.0, "wait": 4.0}, actor_seconds=actor)), pictures=False)
    )
    assert re.search(r"share of wall clock +emulate +infer +learn +wait\n", text)
    assert re.search(r"all +0.0% +0.0% +60.0% +40.0%", text)
    assert re.search(r"actor of 0 +70.0% +20.0% +0.0% +10.0%", text)
    assert "1,000 steps/s" in text and "samples" not in text


def test_a_gpus_split_is_shown_next_to_the_hosts():
    timed = on_gpu(HEALTHY_GPU, changes={"device_span_cost_seconds": 5e-6})
    text = to_text(profile_page(timed, pictures=False))
    heading = re.search(r"host-to-device copies +kernels: infer +kernels: learn +busy +idle", text)
    assert heading and "kernels: emulate" not in text
    assert re.search(r"GPU +3.0% +16.0% +59.0% +78.0% +22.0%", text)
    assert re.search(r"host, all its threads +22.0% +12.0%", text)
    assert "a GPU: time between events" in text and "5.00 us per GPU span x 600 per iteration" in text
    assert "GPU" not in to_text(profile_page(profile(), pictures=False))


def test_each_rank_has_a_row_for_its_gpu():
    device = {"learn": 4.0, "busy": 4.0, "idle": 6.0}
    two = profile(rank(0, device_seconds=device), rank(1, device_seconds={**device, "busy": 2.0}))
    text = to_text(profile_page(two, pictures=False))
    assert re.search(r"GPU +40.0% +30.0%", text) and re.search(r"GPU of rank 1 +40.0% +20.0%", text)


def test_a_file_of_before_gpus_were_timed_is_read():
    old = to_json(profile())
    for each in old["ranks"]:
        for name in ("device_name", "device_seconds", "device_spans", "device_span_cost_seconds"):
            del each[name]
    assert from_json(old) == profile() and not from_json(old).has_device


def test_a_profile_survives_its_file():
    before = profile(
        rank(0, segments=[[0.5, 0.25]], segment_bytes=[8], device_seconds={"learn": 1.5}, device_spans=3)
    )
    assert from_json(json.loads(json.dumps(to_json(before)))) == before
    with pytest.raises(UsageError, match="schema_version 0, expected 1"):
        from_json({**to_json(before), "schema_version": 0})


def test_pictures_are_drawn_and_lie_inside_the_html(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra parcade[plots] is not installed")
    bins = [[1.0 if scope == "learn" else 0.0 for scope in SCOPES]] * 10
    drawn = profile(*(rank(i, timeline=bins, timeline_bin_seconds=0.1) for i in range(2)))
    draw_split(drawn, tmp_path / "split.png")
    draw_timeline(drawn, tmp_path / "timeline.png")
    write_page(profile_page(drawn, pictures=True), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,iVBOR") == 2 and len(page) < 300_000
    assert "![timeline" in (tmp_path / "report.md").read_text()


def test_one_page_reads_the_same_in_three_forms(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    blocks = (
        Heading("Part"),
        Text("a < b"),
        Table(["n", "x|y"], [["one", "1"], ["two", "22"]]),
        Image("a.png", "alt"),
    )
    page = Page("Title", (*blocks, Table(["finding", "fix"], [["f|g", "h"]], prose=True)))
    assert "n    x|y\none    1\ntwo   22" in to_text(page) and "* f|g\n    fix: h" in to_text(page)
    assert all(part in to_markdown(page) for part in ("| one | 1 |", "f\\|g", "![alt](a.png)"))
    assert "a &lt; b" in to_html(page, tmp_path) and "<td>22</td>" in to_html(page, tmp_path)
