"""Whether a process, named by its identity, is still there."""

import subprocess
import sys
import time

from parcade.cluster.processes import is_gone, own_identity


def test_a_process_is_gone_once_it_has_ended_and_before_its_parent_notices():
    program = "from parcade.cluster.processes import own_identity; print(own_identity()); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    identity = child.stdout.readline().strip()
    assert not is_gone(identity) and not is_gone(own_identity())
    child.stdin.close()
    child.stdout.read()  # until it ends; it is a zombie until it is waited for
    deadline = time.monotonic() + 60
    while not is_gone(identity) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_gone(identity)
    child.wait()
    child.stdout.close()
    assert is_gone(identity)


def test_a_process_of_another_host_or_namespace_is_not_called_gone():
    _, ticks, host, namespace = own_identity().split(" ")
    assert is_gone(f"999999999 {ticks} {host} {namespace}")
    assert not is_gone(f"999999999 {ticks} other-{host} {namespace}")
    assert not is_gone(f"999999999 {ticks} {host} other") and not is_gone("999999999") and not is_gone("")
