"""What the Ray engine makes of Ray's errors, without a cluster."""

import pytest

ray = pytest.importorskip("ray")

from ray import exceptions  # noqa: E402

from parcade.topology.engine import InputLost, PartLost  # noqa: E402
from parcade.topology.ray_engine import RayPart, RayPending  # noqa: E402


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ActorDiedError(),
        exceptions.ActorUnavailableError("its process restarts", None),
        exceptions.NodeDiedError("the node's raylet is gone"),
        exceptions.OutOfMemoryError("the memory monitor killed its process"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_part_whose_process_is_gone_is_lost_and_does_not_end_the_run(monkeypatch, error):
    def fail(ref, timeout):
        raise error

    monkeypatch.setattr(ray, "get", fail)
    with pytest.raises(PartLost, match=f"actor-3 is lost: {type(error).__name__}"):
        RayPending(RayPart("actor-3", None), None, None).note()


@pytest.mark.parametrize(
    "cause",
    [
        exceptions.ObjectLostError("ab" * 28, b"", ""),
        exceptions.OwnerDiedError("ab" * 28, b"", ""),
        exceptions.ActorDiedError(),
    ],
    ids=lambda cause: type(cause).__name__,
)
def test_a_part_whose_input_is_gone_is_not_lost_itself(monkeypatch, cause):
    def fail(ref, timeout):
        raise exceptions.RayTaskError("learn", "Traceback", cause).as_instanceof_cause()

    monkeypatch.setattr(ray, "get", fail)
    with pytest.raises(InputLost, match=f"^the input of learner-0 is lost: {type(cause).__name__}$"):
        RayPending(RayPart("learner-0", None), None, None).note()
