"""Ray: placing parts on a cluster, calling them and detecting their death. No reinforcement learning.

Ray places and restarts parts; the drivers restore the state of a restarted part. Arrays go through Ray's
object store, in which readers on a node share memory. They are flat NumPy arrays: Ray copies tensors.

A cluster that a run starts for itself listens on the loopback interface only and requires a token that only
its own processes know. To join an existing cluster (``--address``), RAY_AUTH_TOKEN must hold its token, if it
has one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from parcade.cluster.hosts import address_of
from parcade.cluster.processes import is_gone, own_identity
from parcade.cluster.versions import ANSWER_SECONDS, compare, versions
from parcade.config import TopologyConfig
from parcade.errors import UsageError, missing_extra
from parcade.topology.engine import ANSWER_TIMEOUT_SECONDS, InputLost, PartLost
from parcade.topology.reservations import KINDS, ROUNDING, Reservation, largest_of, without_room

# By default, Ray takes half a minute to detect a dead node; with these settings, about five seconds. By
# default, its workers have a niceness of 15 and yield to all other processes; here they are the job. By
# default, it kills the children of a worker that ends; those of a sweep save and stop (cluster/attached.py).
# By default, a driver waits a minute for a head that is gone, as after a signal to all processes of a job.
RECONNECT_SECONDS = 5
CLUSTER_SETTINGS = {
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 4,
    "health_check_timeout_ms": 1000,
    "worker_niceness": 0,
    "kill_child_processes_on_worker_exit": False,
    "gcs_rpc_server_reconnect_timeout_s": RECONNECT_SECONDS,
}
ROOM_SECONDS = 300.0
"""A run waits this long for the end of other work on the cluster."""
ROOM_POLL_SECONDS = 1.0
CONNECT_SECONDS = 10.0
# Minimum wait for an answer after its deadline: it may have arrived while the driver waited for another one.
LEAST_SECONDS = 0.5
# Object store of a run's own cluster: holds a few hundred unrolls. Ray's default is a third of memory.
OBJECT_STORE_BYTES = 1 << 30
LOOPBACK = "127.0.0.1"
# Ray adds about 65 characters to the temporary directory for its sockets' paths, whose limit is 107.
LONGEST_TEMPORARY = 20
DIRECTORY_PREFIX = "parcade-ray-"
DRIVER_FILE = "driver"


class RayPending:
    """A running call on the cluster, with the deadline for its answer."""

    def __init__(self, part: RayPart, note: Any, data: Any) -> None:
        self.part = part
        self.note_ref = note
        self.data = data
        self.deadline = time.monotonic() + part.answer_seconds

    def note(self, timeout: float | None = None) -> dict[str, Any]:
        left = self.deadline - time.monotonic() if timeout is None else timeout
        try:
            return _get(self.note_ref, self.part.name, max(left, LEAST_SECONDS))
        except NoAnswer:
            self.part.restart()
            raise


class RayPart:
    """A handle on a part; it can be sent to other parts. ``answer_seconds`` is the time limit of a call."""

    def __init__(self, name: str, handle: Any, answer_seconds: float = ANSWER_TIMEOUT_SECONDS) -> None:
        self.name = name
        self.handle = handle
        self.answer_seconds = answer_seconds

    def start(self, method: str, *arguments: Any) -> RayPending:
        note, data = getattr(self.handle, method).options(num_returns=2).remote(*arguments)
        return RayPending(self, note, data)

    def restart(self) -> None:
        """Kill the part's process, which does not answer; Ray starts a new one."""
        import ray

        ray.kill(self.handle, no_restart=False)


class NoAnswer(PartLost):
    """A part did not answer in time: it hangs or is stopped."""


def _get(ref: Any, name: str, timeout: float) -> Any:
    """Return the object behind a reference.

    Errors: PartLost when it is lost, InputLost when it was not made for want of its input; any error of the
    part.
    """
    import ray
    from ray import exceptions

    lost = (
        exceptions.RayActorError,
        exceptions.ObjectLostError,
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.OutOfMemoryError,  # Ray killed the part's process because the node's memory ran out
    )
    try:
        return ray.get(ref, timeout=timeout)
    except exceptions.GetTimeoutError:
        raise NoAnswer(name, f"no answer within {timeout:.0f} s") from None
    except exceptions.RayTaskError as error:  # first: it is also an instance of the class of its cause
        if isinstance(error.cause, lost):  # its input, made by another part, is lost
            raise InputLost(name, type(error.cause).__name__) from error
        if isinstance(error.cause, UsageError):  # without the part's traceback
            raise UsageError(f"{name}: {error.cause}") from error
        raise
    except lost as error:
        _refuse_unborn(name, error)
        raise PartLost(name, type(error).__name__) from error


def _refuse_unborn(name: str, error: Exception) -> None:
    """Check whether a part failed in its constructor and so can never restart. Errors: UsageError if so."""
    text = str(error)
    if "creation task" in text:
        said = [line.strip() for line in text.splitlines() if line.strip()]
        reason = next(
            (line.split("UsageError:", 1)[1].strip() for line in said if "UsageError:" in line), said[-1]
        )
        raise UsageError(f"{name} cannot start: {reason}") from error


def fetch(data: Any, timeout: float = ANSWER_TIMEOUT_SECONDS) -> Any:
    """Return the arrays behind a reference, read-only and shared with the object store. Errors: PartLost."""
    import ray

    return _get(data, "data", timeout) if isinstance(data, ray.ObjectRef) else data


class RayEngine:
    """Runs parts as Ray actors. It joins the cluster at ``settings.address``, or starts one for this run.

    Errors: UsageError when no cluster answers, versions differ, or the cluster has too few CPUs or GPUs.
    """

    is_remote = True
    fetch = staticmethod(fetch)

    def __init__(self, settings: TopologyConfig, needed: dict[str, float]) -> None:
        has_token = bool(settings.address) or choose_token()
        try:
            import ray
        except ImportError:
            raise missing_extra("ray", "ray", "--engine ray") from None
        self._ray = ray
        self.settings = settings
        self._parts: list[RayPart] = []
        self._directory: str | None = None
        self.answer_seconds = ANSWER_TIMEOUT_SECONDS
        self._owns = not ray.is_initialized()
        if self._owns and settings.interface and not has_token:
            raise UsageError(
                f"a cluster on interface {settings.interface} would have no token, because ray was imported "
                "before this run; leave out --interface, or set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN before"
            )
        if self._owns:
            self._join() if settings.address else self._start(needed)
        if settings.address:
            self.check_nodes(versions())
        there = ray.cluster_resources()
        for kind, amount in needed.items():
            if amount > there.get(kind, 0) + 1e-9:
                self.close()
                raise UsageError(
                    f"the parts reserve {amount:g} {kind}s, the cluster has {there.get(kind, 0):g}; "
                    f"use fewer parts, lower --actor-{kind.lower()}s and --learner-{kind.lower()}s, "
                    "or add nodes"
                )

    def check_places(self, parts: Sequence[Reservation]) -> None:
        """Check that every part has room on a node, empty of other work. Errors: UsageError."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        for kind in KINDS:
            amount, most = largest_of(parts, kind), max(node.get(kind, 0.0) for node in nodes)
            if amount > most + ROUNDING:
                self.close()
                raise UsageError(
                    f"one part reserves {amount:g} {kind}s, the largest node has {most:g}; "
                    f"lower --actor-{kind.lower()}s or --learner-{kind.lower()}s, or add a larger node"
                )
        if role := without_room(parts, nodes):
            self.close()
            raise UsageError(
                f"the cluster has enough in total, but no node has room for the last {role}, since a part "
                "is not divided among nodes, nor less than a GPU among GPUs; use fewer parts, lower the CPUs "
                "or GPUs of each, or add nodes"
            )

    def wait_for_room(self, parts: Sequence[Reservation], say: Callable[[str], None]) -> None:
        """Wait until other work on the cluster leaves enough CPUs and GPUs, and say so.

        Errors: UsageError if it does not within ``ROOM_SECONDS``.
        """
        deadline, said = time.monotonic() + ROOM_SECONDS, False
        try:
            while short := self._short_of(parts):
                if time.monotonic() > deadline:
                    raise UsageError(f"{short}; try again when it has ended, use fewer parts, or add nodes")
                if not said:
                    say(f"waiting for at most {ROOM_SECONDS / 60:.0f} minutes: {short}")
                    said = True
                time.sleep(ROOM_POLL_SECONDS)
        except BaseException:  # Ctrl-C, too
            self.close()
            raise

    def _short_of(self, parts: Sequence[Reservation]) -> str:
        """Return what the cluster lacks at this moment, empty if there is enough in total."""
        free = self._ray.available_resources()
        for kind in KINDS:
            amount = sum(part.count * self._reserves(part.role)[kind] for part in parts)
            if amount > free.get(kind, 0.0) + ROUNDING:
                return (
                    f"the parts reserve {amount:g} {kind}s, and other work on the cluster leaves "
                    f"{free.get(kind, 0.0):g}"
                )
        return ""

    def _start(self, needed: dict[str, float]) -> None:
        """Start a cluster on this machine that declares as many CPUs as the parts reserve."""
        own = address_of(self.settings.interface) if self.settings.interface else LOOPBACK
        short = None if len(tempfile.gettempdir()) <= LONGEST_TEMPORARY else "/tmp"
        remove_left_directories(Path(short or tempfile.gettempdir()))
        self._directory = tempfile.mkdtemp(prefix=DIRECTORY_PREFIX, dir=short)
        Path(self._directory, DRIVER_FILE).write_text(own_identity())
        self._init(
            address="local",  # even if RAY_ADDRESS names another cluster
            num_cpus=max(1, int(-(-needed.get("CPU", 1) // 1))),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=self._directory,
            _node_ip_address=own,
            _system_config=CLUSTER_SETTINGS,
        )

    def _join(self) -> None:
        address = self.settings.address
        if address != "auto":
            check_reachable(address)
        words = {"_node_ip_address": address_of(self.settings.interface)} if self.settings.interface else {}
        self._init(address=address, **words)

    def check_nodes(self, expected: dict[str, str]) -> None:
        """Compare all nodes' versions. Errors: UsageError naming a node that differs or does not answer."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ask = self._ray.remote(versions)
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
        asked = [
            ask.options(num_cpus=0, max_retries=0, scheduling_strategy=place).remote() for place in places
        ]
        try:
            for node, answer in zip(nodes, asked, strict=True):
                name = node["NodeManagerHostname"]
                try:
                    found = self._ray.get(answer, timeout=ANSWER_SECONDS)
                except Exception as error:  # the node has no parcade or another Python; the exception varies
                    last = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
                    raise UsageError(
                        f"node {name} cannot run parcade ({last}); install the same version on all nodes"
                    ) from error
                compare(found, f"node {name}", expected, "this one")
        except UsageError:
            self.close()
            raise

    def _init(self, **words: Any) -> None:
        try:
            with _keeping_handler(), _own_sessions():
                self._ray.init(log_to_driver=False, logging_level="ERROR", configure_logging=False, **words)
        except Exception as error:  # a plain one if a node starts too slowly
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            if self._directory:
                self._ray.shutdown()
            self._remove_directory()
            if "ersion mismatch" in str(error):
                what = " ".join(line.strip() for line in str(error).splitlines() if ":" in line)
                raise UsageError(f"{what}; install the same Ray and Python on every node") from error
            if not self.settings.address:
                raise UsageError(
                    f"Ray did not start on this machine ({first}); it may be short of cores or memory: "
                    "end other programs, or try again later"
                ) from error
            raise UsageError(
                f"no Ray cluster could be used at address {self.settings.address!r} "
                f"({first}); start one with: ray start --head, or leave out --address"
            ) from error
        except BaseException:  # Ctrl-C
            self._ray.shutdown()
            self._remove_directory()
            raise

    def make(self, name: str, kind: type, *arguments: Any) -> RayPart:
        role = name.split("-")[0]
        reserved = self._reserves(role)
        # Ray restarts a part on any node with enough resources, but does not repeat interrupted calls.
        options = {"max_restarts": -1, "max_task_retries": 0}
        options |= {"num_cpus": reserved["CPU"], "num_gpus": reserved["GPU"]}
        # A learner waits for shards, so it must detect a hung shard before its own time limit ends.
        patience = self.answer_seconds / 3 if role == "shard" else self.answer_seconds
        part = RayPart(name, self._ray.remote(kind).options(**options).remote(*arguments), patience)
        self._parts.append(part)
        return part

    def _reserves(self, role: str) -> dict[str, float]:
        """Return the CPUs and GPUs that a part reserves. In the run's own cluster, parts reserve no CPUs."""
        s = self.settings
        cpus, gpus = {"actor": (s.actor_cpus, s.actor_gpus), "learner": (s.learner_cpus, s.learner_gpus)}.get(
            role, (s.shard_cpus, 0.0)
        )
        return {"CPU": 0.0 if self._directory else cpus, "GPU": gpus}

    def room_for(self, role: str, count: int) -> int:
        free = self._ray.available_resources()
        each = self._reserves(role)
        room = min([count, *(int(free.get(kind, 0) / each[kind] + ROUNDING) for kind in KINDS if each[kind])])
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        own = Counter(part.name.split("-")[0] for part in self._parts)
        while room > 0:
            wanted = own + Counter({role: room})
            if not without_room([Reservation(r, n, self._reserves(r)) for r, n in wanted.items()], nodes):
                break
            room -= 1
        return room

    def check_room(self, role: str, count: int) -> None:
        if count <= 0 or (room := self.room_for(role, count)) == count:
            return
        reserved = {kind: amount for kind, amount in self._reserves(role).items() if amount}
        each = " and ".join(f"{n:g} {kind}{'' if n == 1 else 's'}" for kind, n in reserved.items())
        raise UsageError(
            f"{count} more {role}(s) reserve {each} each, the cluster has room for {room}; "
            "add nodes, or request fewer"
        )

    def share(self, data: dict[str, Any]) -> Any:
        return self._ray.put(data)

    def first_done(self, calls: list[RayPending]) -> RayPending:
        next_over = min(calls, key=lambda each: each.deadline)
        left = next_over.deadline - time.monotonic()
        if left <= 0:  # return it even if others are done: its note returns the answer or raises PartLost
            return next_over
        refs = [each.note_ref for each in calls]
        done, _ = self._ray.wait(refs, num_returns=1, timeout=left, fetch_local=False)
        return next(each for each in calls if each.note_ref == done[0]) if done else next_over

    def all_done(self, calls: list[RayPending]) -> list[RayPending]:
        refs = [each.note_ref for each in calls]
        done = set(self._ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)[0])
        return [each for each in calls if each.note_ref in done]

    def remove(self, part: RayPart) -> None:
        self._ray.kill(part.handle, no_restart=True)
        self._parts.remove(part)

    def close(self) -> None:
        for part in list(self._parts):
            self.remove(part)
        if self._owns and self._ray.is_initialized():
            self._ray.shutdown()
        self._remove_directory()

    def _remove_directory(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


@contextlib.contextmanager
def _keeping_handler() -> Iterator[None]:
    """Keep the program's own handler of SIGTERM; Ray sets one that exits with the signal's number."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as error:
        sys.exit(128 + signal.SIGTERM if error.code == signal.SIGTERM else error.code)
    finally:
        is_own = before not in (signal.SIG_DFL, None)
        if is_own and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _own_sessions() -> Iterator[None]:
    """Let Ray start its processes in sessions of their own.

    A signal to the whole process group, as ``timeout`` sends one, then reaches only the driver, which needs
    the parts for its checkpoint. They end with their driver all the same. Ray 2.60, the only version that
    parcade accepts, has no setting for this.
    """
    from ray._private import services

    popen = services.ConsolePopen
    services.ConsolePopen = functools.partial(popen, start_new_session=True)
    try:
        yield
    finally:
        services.ConsolePopen = popen


def remove_left_directories(folder: Path) -> None:
    """Remove the directories of clusters whose driver was killed."""
    for note in folder.glob(f"{DIRECTORY_PREFIX}*/{DRIVER_FILE}"):
        with contextlib.suppress(OSError, ValueError):  # another user's, or just removed
            if is_gone(note.read_text()):
                shutil.rmtree(note.parent, ignore_errors=True)


def choose_token() -> bool:
    """Set a secret token for the cluster that this process starts; return whether it will have one.

    Ray reads it when it is imported: later there is none, unless the user has set one.
    """
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    return os.environ.get("RAY_AUTH_MODE") == "token"


def check_reachable(address: str) -> None:
    """Check an address in seconds; Ray takes minutes. Errors: UsageError if nothing listens at host:port."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"address {address!r} is not host:port; use e.g. 10.0.0.1:6379, or auto")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise UsageError(
            f"no Ray cluster answers at {address} ({error}); "
            "start one with: ray start --head, or leave out --address"
        ) from error
