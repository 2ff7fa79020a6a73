"""Whether a process, named by its identity, is still there."""

import subprocess
import sys
import time

from parcade.cluster.identity import is_gone, own_identity


def test_a_process_is_gone_once_it_has_ended_and_before_its_parent_notices():
    program = "from parcade.cluster.identity import own_identity; print(own_identity()); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    identity = child.stdout.readline().strip()
    assert not is_gone(identity) and not is_gone(own_identity())
    child.stdin.close()
    child.stdout.read()  # until it ends; it is a zombie until it is waited for
    deadline = time.monotonic() + 10
    while not is_gone(identity) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_gone(identity)
    child.wait()
    child.stdout.close()
    assert is_gone(identity)


def test_a_process_of_another_host_or_namespace_is_not_called_gone():
    place = own_identity().split(" ")[1]
    assert is_gone(f"999999999 {place}")
    assert not is_gone(f"999999999 other{place}") and not is_gone("999999999") and not is_gone("")
