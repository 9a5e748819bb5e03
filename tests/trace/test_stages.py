"""What a trace shows of pipelines and of jobs with stages."""

import json
from pathlib import Path

import pytest

from tests.cost.test_stacks import job, layers_end
from tests.cost.test_stacks import laid as in_stages
from tests.helpers.oracles import small
from tests.simulator.test_pipelined import laid as in_pipelines
from tests.simulator.test_pipelined import pipelines
from zbench.report.inside import timeline
from zbench.simulator.simulate import SimulatedAttention
from zbench.trace.step import write_trace
from zbench.trace.tracks import SHARED


def test_pipelines_show_every_micro_batch_on_every_rank(tmp_path: Path) -> None:
    cost = small(1, 4)
    batch, plans = in_pipelines(cost, pipelines((0, 2, 2)), [{0: [500]}, {0: [700]}])
    count = write_trace(tmp_path / "t.json", cost, plans)
    events = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]
    layers = [event for event in events if event["name"] in ("forward", "backward")]
    assert len(layers) == 2 * 2 * 4 < len(events) < count
    step = SimulatedAttention(cost).step(batch, plans)
    end = max(e["ts"] + e["dur"] for e in events) / 1e6
    assert end == pytest.approx(step.seconds, abs=1e-5)


def test_jobs_show_every_stage_on_its_nodes(tmp_path: Path) -> None:
    cost = job(4, 2, 2)
    batch, plans = in_stages(cost, [[(500, [0])], [(900, [0, 3]), (100, [1])]])
    write_trace(tmp_path / "t.json", cost, plans)
    drawn = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]
    events = [e for e in drawn if e["name"] not in SHARED]
    assert len(events) == 2 * 2 * (1 + 3)
    nodes = {stage: {e["pid"] for e in events if e["args"]["stage"] == stage} for stage in (0, 1)}
    assert nodes == {0: {0, 1}, 1: {2, 3}}
    end = max(e["ts"] + e["dur"] for e in events) / 1e6
    assert end == pytest.approx(layers_end(cost, batch, plans)[0], abs=1e-5)
    page = timeline(plans, cost)
    assert page is not None
    assert (len(page["track"]), len(page["tracks"])) == (len(drawn), 4 * (2 + 2 + 1))
    assert max(page["track"]) < len(page["tracks"])
