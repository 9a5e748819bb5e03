"""What torchrun's and Slurm's variables say."""

import pytest

from zbench.runtime.processes.world import ProcessPlace, first_node, found

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_RUN_ID": "job",
}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "11",
    "SLURM_NTASKS": "11",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
    "SLURM_STEP_NODELIST": "gpu[07-09]",
}


def test_a_process_started_alone_is_no_world() -> None:
    assert found({}) is None
    assert found({"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "LOCAL_RANK": "0"}) is None


def test_torchrun() -> None:
    assert found(TORCHRUN) == ProcessPlace(3, 8, 1, 2, "node0", 29500, True, "job/2", False)


def test_other_launchers_set_fewer_variables_and_serve_no_store() -> None:
    few = {name: TORCHRUN[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")}
    assert found(few) == ProcessPlace(3, 8, 1, None, "node0", 29500, False, "/0", False)


def test_slurm() -> None:
    world = found(SLURM)
    assert world is not None
    assert (world.rank, world.num_ranks, world.local_rank, world.num_local) == (5, 11, 1, 4)
    assert (world.address, world.is_hosted, world.may_be_bound, world.is_one_machine) == ("gpu07", False, True, False)
    other_rank = found({**SLURM, "SLURM_PROCID": "9", "SLURM_NODEID": "2"})
    assert other_rank is not None
    assert (other_rank.port, other_rank.num_local) == (world.port, 3)
    other_job = found({**SLURM, "SLURM_JOB_ID": "4712"})
    assert other_job is not None
    assert other_job.port != world.port


def test_slurm_on_one_node_meets_on_the_loopback() -> None:
    world = found({**SLURM, "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "11"})
    assert world is not None
    assert (world.address, world.is_one_machine) == ("127.0.0.1", True)


def test_the_user_s_address_wins() -> None:
    world = found({**SLURM, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"})
    assert world is not None
    assert (world.address, world.port) == ("10.0.0.1", 1234)


def test_a_batch_script_and_a_step_of_one_task_are_no_world() -> None:
    batch = {name: value for name, value in SLURM.items() if "STEP" not in name}
    assert found({**batch, "SLURM_PROCID": "0"}) is None
    assert found({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}) is None


def test_torchrun_inside_slurm_counts() -> None:
    assert found({**SLURM, **TORCHRUN}) == found(TORCHRUN)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu07", "gpu07"),
        ("gpu07,gpu09", "gpu07"),
        ("gpu[07-09,12],big1", "gpu07"),
        ("gpu[3,5]", "gpu3"),
        ("rack[1-2]-a,rack9", "rack1-a"),
        ("a-b-[10-12]", "a-b-10"),
        ("", ""),
    ],
)
def test_the_first_node_of_a_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"WORLD_SIZE": None}, "RANK is set but WORLD_SIZE is not"),
        ({"RANK": None, "MASTER_PORT": None}, "WORLD_SIZE is set but RANK and MASTER_PORT are not"),
        ({"RANK": "8"}, "RANK is 8 but WORLD_SIZE is 8; they contradict"),
        ({"RANK": "-1"}, "RANK is '-1'; it takes a whole number"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK is 2 but LOCAL_WORLD_SIZE is 2"),
        ({"LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE is 9 but WORLD_SIZE is 8"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT is 0"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT is 'x'"),
    ],
)
def test_torchrun_s_contradictions_are_told(changes: dict[str, str | None], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        found({name: value for name, value in {**TORCHRUN, **changes}.items() if value is not None})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"SLURM_PROCID": "11"}, "SLURM_PROCID is 11 but SLURM_STEP_NUM_TASKS is 11"),
        ({"SLURM_LOCALID": "4"}, "SLURM_LOCALID is 4 but the number of tasks on this node is 4"),
        ({"SLURM_LOCALID": None}, "SLURM_LOCALID is not set"),
        ({"SLURM_NODEID": "3"}, "SLURM_NODEID is 3"),
        ({"SLURM_STEP_TASKS_PER_NODE": "many"}, "SLURM_TASKS_PER_NODE is 'many'"),
        ({"SLURM_STEP_NODELIST": None}, "SLURM_STEP_NODELIST is not set"),
    ],
)
def test_slurm_s_contradictions_are_told(changes: dict[str, str | None], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        found({name: value for name, value in {**SLURM, **changes}.items() if value is not None})
