"""A suite of three tiny tasks, as a command."""

TASKS = "tiny_catch,tiny_memory,CartPole-v1"
SMALL = ["--num-envs", "4", "--unroll-length", "8", "--hidden", "16"]


def arguments(folder, *more: str) -> list[str]:
    return ["suite", TASKS, "--dir", str(folder), "--seeds", "1", "--jobs", "2", *more]
