"""Every rule of the doctor fires on one machine and is silent on another."""

import dataclasses

import pytest

from parcade.doctor import machine_rules as rules
from parcade.doctor.facts import Facts
from parcade.doctor.pools import PlannedRun, Processes
from parcade.doctor.running import RunningProcess, examine_running
from parcade.doctor.start import plan_of
from parcade.machine.threads import Pool
from parcade.report.findings import Finding, by_gravity
from parcade.training_flags import parse_training

pytestmark = pytest.mark.quick

ONE_THREAD = (Processes("rank", 2, (Pool("openblas", 1), Pool("torch", 1))),)
HEALTHY = Facts(
    cpu="a CPU",
    cores=4,
    usable_cores=(0, 1, 2, 3),
    cgroup_cores=None,
    load=0.1,
    numa_nodes=((0, 1, 2, 3),),
    simd=("avx2", "avx512_bf16"),
    memory_bytes=16 * 2**30,
    cgroup_memory_bytes=None,
    shared_memory_bytes=8 * 2**30,
    shared_memory_free_bytes=8 * 2**30,
    processes=ONE_THREAD,
    wait_policy="PASSIVE",
    mpi_library="Open MPI v5.0.11",
    mpi_launcher="mpiexec",
    mpi_launcher_version="mpiexec (Open MPI) 5.0.11",
    games=104,
    numba="0.68",
    numba_cache="in the package directory",
    numba_cache_writable=True,
    numba_kernels_cached=30,
)
PLAN = PlannedRun(engine="mpi", ranks=2, backend="native", precision="bfloat16")
WIDE = (Processes("rank", 4, (Pool("openblas", 4), Pool("torch", 2))),)

# rule: (changes to the facts, changes to the plan, name, level, a word of the evidence, a word of the fix)
SICK = {
    rules.threads_against_cores: ({"processes": WIDE}, {}, "threads-oversubscribed", "problem",
        "4 threads of openblas", "--threads-per-rank 1"),
    rules.waiting_threads_spin: ({"processes": WIDE, "wait_policy": ""}, {}, "waiting-threads-spin",
        "warning", "not set", "OMP_WAIT_POLICY=PASSIVE"),
    rules.ranks_against_cores: ({}, {"ranks": 5}, "more-ranks-than-cores", "warning", "5 ranks on 4",
        "--ranks 4"),
    rules.parts_against_cores: ({}, {"parts": (("actor", 100, 1), ("learner", 1, 1), ("shard", 9, 1))},
        "more-parts-than-cores", "warning", "100 actor(s) and 1 learner(s) on 4 core(s)", "--num-actors 7"),
    rules.affinity: ({"usable_cores": (0,)}, {}, "pinned-to-few-cores", "warning",
        "number 0; the machine has 4", "--bind-to none"),
    rules.cgroup: ({"cgroup_cores": 2.0, "processes": WIDE}, {}, "cgroup-cpu-limit", "warning",
        "quota of 2 cores, 4 cores visible, 16 threads", "--threads-per-rank 1"),
    rules.numa: ({"numa_nodes": ((0, 1), (2, 3)), "processes": WIDE}, {"engine": "local", "ranks": 1},
        "numa", "note", "2 NUMA nodes", "--ranks 2"),
    rules.simd: ({"simd": ("avx2",)}, {}, "bfloat16-is-slow-here", "warning", "avx2", "--precision float32"),
    rules.mpi: ({"mpi_launcher_version": "HYDRA build details: MPICH"}, {}, "mpi-mismatch", "problem",
        "HYDRA", "mpiexec first on PATH"),
    rules.shared_memory: ({"shared_memory_free_bytes": 2**20}, {}, "shared-memory", "problem", "1 MiB free",
        "--shm-size"),
    rules.slurm: (
        {"slurm_job": {"SLURM_CPUS_PER_TASK": "2"}, "processes": WIDE}, {},
        "slurm-cpus-per-task", "warning", "4 threads", "--threads-per-rank 2",
    ),  # fmt: skip
    rules.gpu: ({}, {"device": "cuda"}, "gpu-unusable", "problem", "no GPU", "--device cpu"),
    rules.roms: ({"games": None}, {}, "no-games", "problem", "no ROMs", "ale-py"),
    rules.numba_cache: ({"numba_cache_writable": False, "numba_kernels_cached": 0}, {}, "numba-cache",
        "warning", "not writable", "NUMBA_CACHE_DIR"),
    rules.load: ({"load": 3.0}, {}, "machine-is-busy", "note", "3.0", "CPU-second"),
}  # fmt: skip


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_a_rule_speaks_where_it_must_and_is_silent_on_a_healthy_machine(rule):
    assert list(rule(HEALTHY, PLAN)) == []
    facts, plan, name, level, evidence, fix = SICK[rule]
    (finding,) = rule(dataclasses.replace(HEALTHY, **facts), dataclasses.replace(PLAN, **plan))
    assert (finding.rule, finding.level) == (name, level)
    assert evidence in finding.evidence and fix in finding.fix


@pytest.mark.parametrize(
    "facts, plan, name",
    [
        ({"cgroup_memory_bytes": 2**30}, {"ranks": 4}, "memory"),
        ({"cgroup_memory_bytes": 2**30}, {"ranks": 1, "parts": (("actor", 3, 1),)}, "memory"),
        ({"mpi_library": None}, {}, "mpi-missing"),
        ({"mpi_launcher": None}, {}, "mpiexec-missing"),
        ({"gpus": ("a GPU (80 GB)",)}, {}, "gpu-idle"),
        ({"numba_kernels_cached": 0}, {}, "numba-cold"),
        ({}, {"precision": "float32"}, "bfloat16-available"),
    ],
)
def test_the_other_findings_of_rules_that_have_several(facts, plan, name):
    found = rules.examine(dataclasses.replace(HEALTHY, **facts), dataclasses.replace(PLAN, **plan))
    assert name in [finding.rule for finding in found]
    assert name not in [finding.rule for finding in rules.examine(HEALTHY, PLAN)]


def test_twice_as_many_parts_as_cores_are_no_finding_and_learners_that_play_are_counted():
    fits = dataclasses.replace(PLAN, parts=(("actor", 7, 1), ("learner", 1, 1), ("shard", 3, 1)))
    assert list(rules.parts_against_cores(HEALTHY, fits)) == []
    learners = dataclasses.replace(PLAN, parts=(("learner", 9, 1), ("shard", 1, 1)))
    (finding,) = rules.parts_against_cores(HEALTHY, learners)
    assert "--num-learners 8 or fewer" in finding.fix


def test_a_quota_that_holds_the_runs_threads_is_no_finding():
    facts = dataclasses.replace(HEALTHY, cgroup_cores=2.0)
    assert list(rules.cgroup(facts, PLAN)) == []
    (finding,) = rules.cgroup(dataclasses.replace(facts, cgroup_cores=1.5), PLAN)
    assert finding.fix == "use fewer processes or raise the limit (docker --cpus)"


def test_one_rank_in_a_container_with_half_a_core_is_not_told_to_be_one():
    facts = dataclasses.replace(HEALTHY, cgroup_cores=0.5)
    assert list(rules.ranks_against_cores(facts, dataclasses.replace(PLAN, ranks=1))) == []
    (finding,) = rules.ranks_against_cores(facts, PLAN)
    assert "--ranks 1 here" in finding.fix


def test_the_ranks_that_the_doctor_advises_divide_the_environments():
    facts = dataclasses.replace(HEALTHY, cores=3, usable_cores=(0, 1, 2))
    plan = plan_of(parse_training("pong --engine mpi --ranks 8 --num-envs 16".split()))
    (finding,) = rules.ranks_against_cores(facts, plan)
    assert "--ranks 2 here" in finding.fix


def test_a_process_on_one_numa_node_is_not_told_to_bind_itself():
    facts = dataclasses.replace(HEALTHY, numa_nodes=((0, 1), (2, 3)), usable_cores=(2, 3))
    assert list(rules.numa(facts, PlannedRun())) == []


@pytest.mark.parametrize(
    "processes, plan",
    [
        (ONE_THREAD, {"engine": "serial"}),
        (WIDE, {"engine": "ray", "parts": (("actor", 3, 1), ("learner", 1, 4))}),
    ],
)
def test_only_a_process_with_several_threads_that_ranks_could_replace_is_told_of_numa_nodes(processes, plan):
    facts = dataclasses.replace(HEALTHY, numa_nodes=((0, 1), (2, 3)), processes=processes)
    assert list(rules.numa(facts, PlannedRun(**plan))) == []


def test_the_load_of_other_peoples_cores_is_no_finding():
    """Of a job with 4 of 64 cores, or a container with a quota: the load average is that of the machine."""
    facts = dataclasses.replace(HEALTHY, cores=64, load=30.0)
    assert list(rules.load(facts, PLAN)) == []
    assert list(rules.load(dataclasses.replace(HEALTHY, cores=64, load=1.5, cgroup_cores=2.0), PLAN)) == []
    (finding,) = rules.load(dataclasses.replace(facts, load=33.0), PLAN)
    assert "on 64 core(s)" in finding.evidence


def test_a_single_process_without_memory_is_not_told_to_be_one_and_ranks_still_divide_the_environments():
    def fix(memory_bytes, **plan):
        (finding,) = rules.cgroup(
            dataclasses.replace(HEALTHY, cgroup_memory_bytes=memory_bytes), PlannedRun(**plan)
        )
        return finding.fix

    assert fix(512 << 20) == "raise the limit, or use a machine with more memory"
    five_ranks = 5 * rules.RANK_MEMORY_BYTES
    assert fix(five_ranks, engine="mpi", ranks=8).startswith("use --ranks 5 or")
    assert fix(five_ranks, engine="mpi", ranks=8, possible_ranks=(1, 2, 4, 8)).startswith("use --ranks 4 or")


def test_a_gpu_that_torch_does_not_see_is_first_made_visible():
    facts = dataclasses.replace(HEALTHY, gpus=("a GPU",), gpu_driver="580")
    for_cpus, for_cuda = facts, dataclasses.replace(facts, torch_cuda="12.8")
    for device in ("cpu", "cuda"):
        plan = PlannedRun(device=device)
        ((no_cuda,), (hidden,)) = (list(rules.gpu(each, plan)) for each in (for_cpus, for_cuda))
        assert no_cuda.fix.startswith("install a torch build with CUDA")
        assert hidden.fix.startswith("check CUDA_VISIBLE_DEVICES")
    (idle,) = rules.gpu(dataclasses.replace(for_cuda, torch_sees_gpu=True), PlannedRun())
    assert idle.fix == "use --device cuda"


def test_nothing_is_said_of_number_formats_where_the_kernel_lists_no_features():
    facts = dataclasses.replace(HEALTHY, simd=None)
    assert list(rules.simd(facts, PLAN)) == [] == list(rules.simd(facts, PlannedRun()))
    (finding,) = rules.simd(dataclasses.replace(HEALTHY, simd=()), PLAN)
    assert finding.rule == "bfloat16-is-slow-here"


def test_ray_with_a_small_shared_memory_is_slow_and_does_not_crash():
    from parcade.topology.ray_engine import OBJECT_STORE_BYTES

    assert rules.RAY_STORE_BYTES == OBJECT_STORE_BYTES
    plan = PlannedRun(engine="ray", parts=(("actor", 1, 1), ("learner", 1, 1)))
    facts = dataclasses.replace(HEALTHY, shared_memory_free_bytes=512 << 20)
    (finding,) = rules.shared_memory(facts, plan)
    assert finding.level == "warning" and "slower" in finding.says and "1024 MiB" in finding.evidence
    assert list(rules.shared_memory(HEALTHY, plan)) == []
    assert list(rules.shared_memory(facts, PlannedRun(engine="ray"))) == [], "the cluster is elsewhere"


def test_the_missing_mpi_is_no_matter_to_a_local_run():
    facts = dataclasses.replace(HEALTHY, mpi_library=None, mpi_launcher=None)
    assert rules.examine(facts, PlannedRun(engine="local", precision="bfloat16")) == []


def test_findings_come_gravest_first_and_fit_one_line():
    findings = [
        Finding(level, level, says="says", evidence="evidence", fix="fix")
        for level in ("note", "problem", "warning")
    ]
    assert [finding.level for finding in by_gravity(findings)] == ["problem", "warning", "note"]
    assert findings[0].line() == "note: says (evidence); fix"


def process(name, **changes):
    shown = {"cores_used": 1.0, "threads": 9, "busy_threads": 1, "affinity": (0, 1)}
    return RunningProcess(
        name, 100, **{"involuntary_switches": 300, **shown, **changes}, memory_bytes=1, voluntary_switches=1
    )


def test_a_run_under_way_is_judged_by_what_its_threads_do():
    assert list(examine_running([process("0"), process("1")], cores=2)) == []
    (finding,) = examine_running([process("0", busy_threads=2), process("1", busy_threads=2)], cores=2)
    assert finding.rule == "threads-oversubscribed" and finding.level == "problem"
    takes_turns = process("0", busy_threads=3, cores_used=1.9, involuntary_switches=4)
    assert list(examine_running([takes_turns], cores=2)) == [], "its pools never run at the same time"
    (finding,) = examine_running([process("0", affinity=(1,)), process("1", affinity=(1,))], cores=2)
    assert finding.rule == "ranks-share-a-core"
    alone = [process("0", affinity=(0,)), process("1", affinity=(0,))]
    assert list(examine_running(alone, cores=1)) == [], "there is no other core to bind them to"
    assert list(examine_running([process("0", affinity=(0,)), process("1", affinity=(1,))], cores=2)) == []
    (finding,) = examine_running([process("0", cores_used=0.0, busy_threads=0)], cores=2)
    assert finding.rule == "nothing-runs" and "parcade stacks" in finding.fix
    driver = process("0", cores_used=0.0, busy_threads=0)
    assert list(examine_running([driver], cores=2, are_all=False)) == []
