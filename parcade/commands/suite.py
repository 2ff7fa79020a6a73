"""``parcade suite``: train and score an algorithm on a set of games, and report."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from parcade.commands.reports import check_installed, given_flag, refuse_flags, report_in
from parcade.errors import UsageError

SET_BY_SUITE = (
    "--algorithm", "--env-preset", "--seed", "--run-dir", "--resume",
)  # fmt: skip


@dataclass(frozen=True)
class SuiteFlags:
    """Train and score an algorithm on a set of games. Flags after -- go to every training.

    The same command continues an interrupted suite. More seeds extend it, and with --dir more games.
    """

    games: Annotated[str, "positional"] = ""
    """A set (atari-5, atari-10, cray-4, atari-26, atari-49, atari-57) or a list, e.g. pong,breakout."""
    algorithm: str = "ppo"
    """The algorithm, e.g. ppo."""
    seeds: str = "3"
    """Number of seeds per game, or a list of seeds, e.g. 5,6,7."""
    budget: str = "10M-steps"
    """Length of each training: 10M-steps, 200M-frames, or 2h, which ends earlier at --total-frames."""
    protocol: str = "training"
    """How scores are defined: training, sticky, null-op, null-op-30min or greedy-30min."""
    jobs: int = 0
    """Trainings at once, with one thread each; 0 starts one per core."""
    dir: str = ""
    """Directory of the suite; empty uses suites/GAMES-ALGORITHM-PROTOCOL."""
    against: list[str] = field(default_factory=list)
    """CSV files of other scores under the same protocol, with columns game, score, protocol."""
    price: float = 0.0
    """Price of this machine per hour: adds what the trainings cost one after the other; 0 leaves it out."""
    report_only: bool = False
    """Report on the finished runs of --dir without training."""

    def __post_init__(self) -> None:
        if self.jobs < 0:
            raise UsageError(f"jobs={self.jobs} is below 0; use 1 or more, or 0 for one per core")
        if not 0 <= self.price < float("inf"):
            raise UsageError(f"price={self.price} is not a price; use e.g. 1.5, or 0 to leave costs out")
        if not self.report_only and not self.games:
            raise UsageError("no games given; use e.g. parcade suite atari-5, or parcade suite pong,breakout")
        if self.report_only and self.games:
            raise UsageError(f"--report-only takes the games from --dir; leave out {self.games!r}")
        if self.report_only:
            taken = ("dir", "against", "price", "report_only")
            refuse_flags(self, taken, "is that of the suite with --report-only")
        if self.report_only and not self.dir:
            raise UsageError("--report-only needs --dir, the directory of an existing suite")


def suite(arguments: list[str]) -> int:
    """``parcade suite``."""
    own, training = arguments, []
    if "--" in arguments:
        at = arguments.index("--")
        own, training = arguments[:at], arguments[at + 1 :]
    from parcade.flags import parse

    flags = parse(SuiteFlags, own, prog="parcade suite")
    check_installed(("matplotlib", "scipy"), "reports", "parcade suite")
    return _report(flags, {}) if flags.report_only else _run(flags, tuple(training))


def _run(flags: SuiteFlags, training: tuple[str, ...]) -> int:
    from parcade.files.locks import locked
    from parcade.files.outputs import make_folders, say_line
    from parcade.machine.facts import cores_at_once
    from parcade.suite.games import games_of
    from parcade.suite.jobs import run_cells
    from parcade.suite.plan import Cell, Plan, budget_flags, open_suite, read_plan, seeds_of, set_by_budget
    from parcade.suite.protocols import check_rules, protocol_of
    from parcade.suite.scores import read_others
    from parcade.train import check_start
    from parcade.training_flags import parse_training

    if protocol_of(flags.protocol).needs_recording:
        raise UsageError(
            f"protocol {flags.protocol} needs a recording of each game, which a suite does not have; "
            "use parcade eval DIR --protocol recorded-starts --start-states FILE"
        )
    budget_flags(flags.budget)
    plan = Plan(
        games_of(flags.games), seeds_of(flags.seeds), flags.algorithm, flags.budget, flags.protocol, training
    )
    read_others(flags.against, flags.protocol, flags.algorithm)
    if flag := given_flag(list(training), (*SET_BY_SUITE, *set_by_budget(flags.budget))):
        raise UsageError(f"parcade suite sets {flag} itself; leave it out after --")
    for game in plan.games:  # mistakes in the training's flags end here, before any process starts
        config = parse_training(plan.command(Cell(game, max(plan.seeds)))[1:])
        check_rules(config.env, game, plan.rules)
        check_start(config)
    folder = _folder(flags)
    make_folders("suite", folder, ("runs",))
    refusal = f"another parcade suite is running in {folder}; wait for its end, or use another --dir"
    try:
        with locked(folder / "lock", refusal):
            open_suite(folder, plan)
            failed = run_cells(
                folder,
                read_plan(folder),
                at_once=flags.jobs or cores_at_once(),
                say=say_line,
            )
    except KeyboardInterrupt:
        print(f"stopped; the same command continues the suite in {folder}")
        raise
    return _report(flags, failed)


def _folder(flags: SuiteFlags) -> Path:
    if flags.dir:
        return Path(flags.dir)
    return (
        Path("suites")
        / f"{flags.games.replace(',', '-').replace('/', '_')}-{flags.algorithm}-{flags.protocol}"
    )


def _report(flags: SuiteFlags, failed: dict) -> int:
    """Write the report and print it: last, since the reader may have left. Return 1 if a cell has failed."""
    from parcade.report.page import to_text, write_page
    from parcade.suite.plan import read_plan
    from parcade.suite.scores import read_others, results_of, scores_of, write_csv
    from parcade.suite.suite_page import draw, suite_page

    folder = _folder(flags)
    plan = read_plan(folder)
    others = read_others(flags.against, plan.protocol, plan.algorithm)
    results = results_of(folder, plan)
    scores = scores_of(plan, results)
    with report_in(folder):
        write_csv(folder / "scores.csv", plan, results)
        page = suite_page(
            folder, plan, results, failed, scores=scores, others=others, price=flags.price,
            images=draw(folder, plan, results, scores, others),
        )  # fmt: skip
    try:
        with report_in(folder):
            write_page(page, folder)
    finally:
        print(to_text(page))
    print(f"report: {folder / 'report.html'}, {folder / 'report.md'}; scores: {folder / 'scores.csv'}")
    return 1 if failed else 0
