"""Host files and launch commands, without starting anything."""

import dataclasses
import json
import stat
import subprocess
import sys

import pytest

from parcade.cluster import hosts as hosts_module
from parcade.cluster.hosts import (
    Host,
    address_of,
    check_slots,
    interface_name,
    most_ranks_on_a_host,
    own_address,
    read_hosts,
)
from parcade.cluster.launch import Job, launch_command, with_one_program
from parcade.cluster.processes import DIRECTORY
from parcade.cluster.versions import check_hosts, code_digest, versions
from parcade.errors import UsageError
from parcade.topology import ray_node

pytestmark = pytest.mark.quick


@pytest.fixture
def host_file(tmp_path, monkeypatch):
    monkeypatch.setattr(hosts_module.socket, "getaddrinfo", lambda name, port: resolve(name))

    def write(text):
        (tmp_path / "hosts").write_text(text)
        return tmp_path / "hosts"

    return write


def resolve(name):
    if name.startswith("nowhere"):
        raise OSError("Name or service not known")


def test_both_ways_to_write_slots_are_read(host_file):
    text = "# the cluster\nnode1 slots=4\nnode2:2  # smaller\n\n10.0.0.3\n"
    assert read_hosts(host_file(text)) == [Host("node1", 4), Host("node2", 2), Host("10.0.0.3", 1)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no host; expected one per line, e.g. node1 slots=4"),
        ("# all commented out\n", "names no host"),
        ("node1 slots=four\n", "line 1: got 'node1 slots=four', expected e.g. node1 slots=4"),
        ("node1 slots=0\n", "line 1: got 'node1 slots=0'"),
        ("node1\nnode2:\n", "line 2: got 'node2:'"),
        ("node1; rm -rf /\n", "line 1: got 'node1; rm -rf /'"),
        ("node1\nnode1:2\n", "line 2: node1 is listed twice; list it once, with all its slots"),
        ("node1\nnowhere7\n", "nowhere7 does not resolve to an address; check its spelling"),
    ],
)
def test_a_host_file_that_cannot_work_is_refused_in_one_line(host_file, text, said):
    with pytest.raises(UsageError, match="host file") as error:
        read_hosts(host_file(text))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_host_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_hosts(tmp_path / "none")


def test_more_ranks_than_slots_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"ranks=4 is more than the 3 slot\(s\) of 2 host\(s\)"):
        check_slots([Host("a", 2), Host("b", 1)], 4, tmp_path)


def test_slots_are_filled_in_order():
    assert most_ranks_on_a_host([Host("a", 2), Host("b", 4)], 3) == 2
    assert most_ranks_on_a_host([Host("a", 1), Host("b", 4)], 5) == 4


def test_an_interface_is_found_by_name_and_by_network_or_refused():
    assert interface_name("lo") == "lo"
    assert interface_name("127.0.0.0/8") == "lo"
    with pytest.raises(UsageError, match="network interface 'eth99' is not on this host, which has "):
        interface_name("eth99")


def test_each_mpi_gets_its_own_words(tmp_path):
    job = Job(
        ["python", "x.py"],
        3,
        tmp_path,
        1,
        hosts=(Host("a", 2), Host("b", 1)),
        network_interface="127.0.0.0/8",
    )
    open_mpi = " ".join(launch_command(job, "mpiexec", "openmpi", {"OMP_NUM_THREADS": "1", "SECRET": "x"}))
    assert open_mpi == (
        "mpiexec -n 3 --host a:2,b:1 --map-by slot --prtemca plm_ssh_agent ssh -x OMP_NUM_THREADS "
        "--prtemca prte_if_include 127.0.0.0/8 --mca btl_tcp_if_include 127.0.0.0/8 python x.py"
    )
    documented = {"NUMBA_CACHE_DIR": "/scratch", "WANDB_MODE": "offline", "WANDB_PROJECT": "atari"}
    passed_on = " ".join(launch_command(job, "mpiexec", "openmpi", documented))
    assert " -x NUMBA_CACHE_DIR -x WANDB_MODE -x WANDB_PROJECT " in passed_on
    mpich = " ".join(launch_command(job, "mpiexec", "mpich", {}))
    assert mpich == "mpiexec -n 3 -hosts a:2,b:1 -launcher ssh -launcher-exec ssh -iface lo python x.py"


def test_a_remote_shell_of_several_words_becomes_one_program(tmp_path):
    (tmp_path / DIRECTORY).mkdir()
    job = Job(["train"], 2, tmp_path, 1, remote_shell="printf '<%s>' 'a  b'")
    program = with_one_program(job).remote_shell
    done = subprocess.run([program, "node1", "the command $HOME"], capture_output=True, text=True, timeout=60)
    assert done.stdout == "<a  b><node1><the command $HOME>"
    job = dataclasses.replace(job, remote_shell="/opt/bin/ssh")
    assert with_one_program(job) is job


@pytest.fixture
def remote_shell(tmp_path):
    """A stand-in for ssh that runs this shell text and exits with ``code``."""

    def write(text, code=0):
        path = tmp_path / "shell"
        path.write_text(f"#!/bin/sh\n{text}\nexit {code}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return write


def test_equal_hosts_pass(remote_shell):
    check_hosts(["a", "b"], remote_shell('shift; eval "$*"'), {})


def test_a_host_with_another_torch_is_named_with_both_versions(remote_shell):
    theirs = json.dumps(versions() | {"torch": "2.0.0"})
    with pytest.raises(
        UsageError, match=r"host b has torch 2\.0\.0, this host has .*; install the same version everywhere"
    ):
        check_hosts(["b"], remote_shell(f"echo '{theirs}'"), {})


def test_a_host_that_refuses_is_named_with_its_reason(remote_shell):
    shell = remote_shell("echo 'Permission denied (publickey).' >&2", 255)
    with pytest.raises(UsageError, match=r"host b cannot start .*code 255: Permission denied \(publickey\)"):
        check_hosts(["b"], shell, {})


def test_a_remote_shell_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="remote shell '/no/such/shell' cannot be run"):
        check_hosts(["b"], "/no/such/shell", {})


def test_a_remote_shell_with_an_open_quote_is_refused():
    with pytest.raises(UsageError, match=r"remote_shell=ssh ' is not a command \(No closing quotation\)"):
        check_hosts(["b"], "ssh '", {})


def test_the_versions_name_this_python():
    assert versions()["python"] == ".".join(map(str, sys.version_info[:3]))


def test_code_compiled_meanwhile_is_no_other_code(tmp_path):
    (tmp_path / "part.py").write_text("x = 1\n")
    before = code_digest(tmp_path)
    kernels = tmp_path / "__pycache__" / "gpu-1" / "kernel.py"
    kernels.parent.mkdir(parents=True)
    kernels.write_text("")
    assert code_digest(tmp_path) == before
    (tmp_path / "part.py").write_text("x = 2\n")
    assert code_digest(tmp_path) != before


def test_an_address_that_other_hosts_do_not_reach_is_none(monkeypatch):
    for found, expected in (("127.0.1.1", None), ("10.0.0.7", "10.0.0.7")):
        monkeypatch.setattr(hosts_module.socket, "gethostbyname", lambda name, found=found: found)
        assert own_address() == expected
    assert own_address("lo") == own_address("127.0.0.0/8") == address_of("lo") == "127.0.0.1"
    with pytest.raises(UsageError, match="interface 'eth77' has no IPv4 address; expected one of .*lo"):
        address_of("eth77")
    with pytest.raises(UsageError, match="network interface 'eth77' is not on this host"):
        own_address("eth77")


def test_a_ray_node_announces_loopback_only_if_it_is_alone(monkeypatch):
    monkeypatch.setattr(hosts_module.socket, "gethostbyname", lambda name: "127.0.1.1")
    monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)
    assert ray_node.own_address("") == "127.0.0.1"
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    with pytest.raises(UsageError, match="has no address here that other nodes reach; .* --interface"):
        ray_node.own_address("")
    assert ray_node.own_address("lo") == "127.0.0.1"
