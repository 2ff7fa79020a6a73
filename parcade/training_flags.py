"""The flags of ``parcade train``, which depend on the algorithm and the presets."""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Sequence
from dataclasses import dataclass, fields, make_dataclass, replace
from typing import Any

from parcade.algorithms.base import AlgorithmConfig
from parcade.algorithms.table import ALGORITHMS, algorithm_row
from parcade.config import RunConfig, TopologyConfig, TrainConfig, load_config
from parcade.envs.games import settings_of_id
from parcade.envs.settings import NAMES_ELSEWHERE, RENAMED, EnvSettings, env_preset
from parcade.errors import UsageError
from parcade.files.run_directory import START_STATES
from parcade.flags import parse, positional
from parcade.model.networks import NetworkConfig
from parcade.presets import preset_flags
from parcade.zoo import agent_directory

FLAGS_ELSEWHERE = {
    **{name: here for name, here in NAMES_ELSEWHERE.items() if hasattr(EnvSettings, here)},
    "screen_size": "image_height; --image-width is the other side",
    "max_episode_steps": "frame_limit; a step of an Atari game is 4 frames (--frame-skip)",
    **dict.fromkeys(("episodic_life", "terminal_on_life_loss", "life_loss_info"), "life_loss"),
    **dict.fromkeys(("reward_clipping", "reward_clip", "clip_reward"), "clip_rewards"),
    **dict.fromkeys(("n_envs", "num_environments", "nenvs"), "num_envs"),
    **dict.fromkeys(
        ("total_timesteps", "n_timesteps", "num_timesteps", "timesteps", "total_steps", "max_steps"),
        "total_frames; a step of an Atari game is 4 frames (--frame-skip)",
    ),
    "max_frames": "total_frames",
    "lr": "learning_rate",
    "anneal_lr": "final_learning_rate",
    **dict.fromkeys(("n_steps", "num_steps", "rollout", "rollout_length"), "unroll_length"),
    **dict.fromkeys(("n_epochs", "num_epochs", "update_epochs", "num_sgd_iter"), "epochs"),
    **dict.fromkeys(
        ("batch_size", "minibatch_size", "sgd_minibatch_size", "n_minibatches"),
        "num_minibatches; their number, not their size",
    ),
    **dict.fromkeys(("clip_range", "clip_coef", "clip_param", "clip_eps", "ppo_clip"), "clip"),
    **dict.fromkeys(("ent_coef", "entropy_coef", "entropy_coeff", "entropy_cost"), "entropy_weight"),
    **dict.fromkeys(("vf_coef", "value_coef", "vf_loss_coeff", "value_loss_coef"), "value_weight"),
    **dict.fromkeys(("lambda", "lam", "lambda_"), "gae_lambda"),
    **dict.fromkeys(("grad_clip", "clip_grad_norm", "max_gradient_norm"), "max_grad_norm"),
    **dict.fromkeys(("buffer_size", "replay_size", "memory_size"), "replay_capacity"),
    **dict.fromkeys(
        ("target_update_interval", "target_network_frequency", "target_network_update_freq"),
        "target_period; in updates",
    ),
    **dict.fromkeys(("exploration_fraction", "epsilon_decay"), "epsilon_until"),
    **dict.fromkeys(("exploration_initial_eps", "start_e", "eps_start"), "epsilon_start"),
    **dict.fromkeys(("exploration_final_eps", "end_e", "eps_end"), "epsilon_end"),
    **dict.fromkeys(("hidden_size", "hidden_dim", "hidden_units"), "hidden"),
    **dict.fromkeys(("algo", "agent"), "algorithm"),
    **dict.fromkeys(("log_dir", "logdir", "output_dir", "save_dir", "exp_name"), "run_dir"),
    **dict.fromkeys(("num_workers", "n_workers"), "num_actors"),
    **dict.fromkeys(("nproc", "nproc_per_node", "world_size"), "ranks"),
    **dict.fromkeys(("cuda", "gpu"), "device; its value is cuda"),
}
"""Flags and settings of Stable-Baselines3, CleanRL, RLlib, Sample Factory and EnvPool, by parcade's names."""


@dataclass(frozen=True)
class PresetFlags:
    """Sources of the default values, and your own environment."""

    env: str = ""
    """Your own environment, in place of GAME: MODULE:ID, where the module registers the Gymnasium id."""
    preset: str = ""
    """A named set of flags; explicit flags override it. One of pong_fast, pong_gpu, pong_gpu_consoles,
    pong_pqn, pong_a2c, pong_vtrace, pong_dqn, pong_impala, pong_apex, pong_gorila, pong_a3c, pong_async_q,
    pong_ga3c, pong_es, rainbow and karpathy_2016."""
    env_preset: str = "dqn_2015"
    """Defaults of the environment flags: dqn_2015, machado_2018 or karpathy_2016."""


def _value_of(flag: str, arguments: list[str], otherwise: str) -> str:
    """Return the last value given to a flag. Used before parsing, for flags that decide which flags exist."""
    value = otherwise
    for i, word in enumerate(arguments):
        if word.startswith(f"--{flag}="):
            value = word.split("=", 1)[1]
        elif word == f"--{flag}" and i + 1 < len(arguments):
            value = arguments[i + 1]
    return value


def _with_hyphens(word: str) -> str:
    """Return a flag, ``--a_b`` or ``--a_b=VALUE``, with hyphens in its name; any other word as it is."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def _where_to_find(flag: str, algorithm: str) -> str:
    """Return advice for an unknown flag of a training with this algorithm; empty if the name is unknown.

    It is a new name, parcade's name for a setting of another library, or the algorithms that have the flag.
    """
    name = flag.split("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_")
    if name in RENAMED:
        return f"it is --{RENAMED[name]} now"
    here, _, note = FLAGS_ELSEWHERE.get(name, "").partition("; ")
    of_here, have = _algorithms_with(here), _algorithms_with(name)
    if here and algorithm in of_here:
        return f"here it is --{here.replace('_', '-')}" + (f"; {note}" if note else "")
    if have:
        return f"it is a flag of --algorithm {', '.join(have)}"
    if here and of_here:
        return f"here it is --{here.replace('_', '-')}, a flag of --algorithm {', '.join(of_here)}"
    return ""


def _algorithms_with(name: str) -> list[str]:
    """Return the algorithms whose trainings have a flag."""
    of_all = {field.name for kind in (RunConfig, EnvSettings, NetworkConfig) for field in fields(kind)}
    topology = {field.name for field in fields(TopologyConfig)}
    return [
        algorithm
        for algorithm, row in ALGORITHMS.items()
        if name in of_all | {field.name for field in fields(row.config)}
        or (row.topology and name in topology)
    ]


def check_algorithm(arguments: list[str]) -> None:
    """Check the ``--algorithm`` of a command, importing plugins for its name. Errors: UsageError."""
    algorithm_row(_value_of("algorithm", arguments, RunConfig().algorithm))


def parse_training(arguments: list[str], also: Sequence[str] = ()) -> TrainConfig:
    """Parse the flags of ``parcade train``. The algorithm and the presets decide which flags exist.

    ``also`` are the names of the own flags of the command that passes these on, for a misspelt one.

    A setting's value comes from the first of these that has it: the user's flag; a flag of ``--preset``;
    ``--env-preset``; the rules of a game id such as ``ALE/Pong-v5``; the agent of ``--from``; the defaults.
    """
    import tyro

    arguments = [_with_hyphens(word) for word in arguments]
    arguments = [re.sub("^--from(?==|$)", "--from-agent", word) for word in arguments]
    # Behind flags, the game cannot be told from a flag's value, such as a directory of that name.
    names_game_first = bool(arguments) and not arguments[0].startswith("-")
    candidates = arguments[:1] if names_game_first else arguments
    if env := _value_of("env", arguments, ""):
        if not arguments[0].startswith("-"):
            raise UsageError(f"got the game {arguments[0]} and --env {env}; leave one of them out")
    preset = _value_of("preset", arguments, "")
    if preset:
        _check_algorithm_of(preset, _value_of("algorithm", arguments, ""))
        # The user's arguments follow the preset's flags and so override them.
        arguments = preset_flags(preset) + arguments
    if env:
        arguments, candidates = [env, *arguments], [env]
    trained = _trained_config(_value_of("from-agent", arguments, ""), env)
    algorithm = trained.run.algorithm if trained else RunConfig().algorithm
    row = algorithm_row(_value_of("algorithm", arguments, algorithm))
    _check_names(row.config)
    skips = ("frame_skip",) if _value_of("frame-skip", arguments, "") else ()
    of_id = next(filter(None, (settings_of_id(word, skips) for word in candidates)), {})
    preset_name = _value_of("env-preset", arguments, "")
    # A preset that the user names replaces the rules of an id, as single settings do.
    env_default = env_preset(preset_name) if preset_name else env_preset(PresetFlags().env_preset, **of_id)
    hyper_default = row.config()
    if trained:
        env_default = env_default if preset_name else replace(trained.env, **of_id)
        same = type(trained.hyper) is row.config
        hyper_default = trained.hyper if same else row.config(network=trained.hyper.network)
    game = "An Atari game or built-in task (parcade games lists them), or the id of a Gymnasium environment."
    title = tyro.conf.arg(name=_value_of("algorithm", arguments, algorithm))
    groups: list[tuple[str, Any]] = [
        ("game", positional("game", str, help=game)),
        ("presets", PresetFlags),
        ("run", RunConfig),
        ("env", EnvSettings),
        ("hyper", typing.Annotated[row.config, title]),
    ]
    engine = RunConfig().engine if RunConfig().engine in row.engines else row.engines[0]
    run_default = RunConfig(algorithm=algorithm, engine=engine)
    defaults = [tyro.MISSING, PresetFlags(), run_default, env_default, hyper_default]
    if row.topology:
        groups.append(("topology", TopologyConfig))
        defaults.append(TopologyConfig())
    Flags = make_dataclass("Flags", groups, frozen=True)
    whose = functools.partial(_where_to_find, algorithm=_value_of("algorithm", arguments, algorithm))
    default = Flags(*defaults)
    flags = parse(Flags, arguments, prog="parcade train", default=default, whose=whose, also=also)
    if settings_of_id(flags.game, skips) != of_id:
        raise UsageError(f"name the game first, before any flag: parcade train {flags.game} ...")
    topology = flags.topology if row.topology else TopologyConfig()
    return TrainConfig(flags.game, flags.run, flags.env, flags.hyper, topology)


def _check_names(config: type[AlgorithmConfig]) -> None:
    """Check that no field of an algorithm's config has the name of another flag. Errors: UsageError."""
    others = (RunConfig, EnvSettings, NetworkConfig, PresetFlags)
    taken = {field.name for other in others for field in fields(other)} | {"game"}
    own = {field.name for field in fields(config)} - {field.name for field in fields(AlgorithmConfig)}
    if clash := sorted(own & taken):
        raise UsageError(f"{config.__name__} has {', '.join(clash)}, a flag of every training; rename it")


def _check_algorithm_of(preset: str, asked: str) -> None:
    """Refuse another algorithm than the preset's, whose flags it may not have. Errors: UsageError."""
    algorithm = _value_of("algorithm", preset_flags(preset), RunConfig().algorithm)
    if asked and asked != algorithm:
        raise UsageError(
            f"preset {preset} is for {algorithm}; got --algorithm {asked}; leave one of them out"
        )


def _trained_config(agent: str, env: str) -> TrainConfig | None:
    """Return the config of the agent that a run starts from, None without one. Errors: UsageError.

    A recording of start states is the copy in the agent's directory: the user's file may be gone or changed.
    """
    if not agent:
        return None
    directory = agent_directory(agent)
    config, kept = load_config(directory, env), directory / START_STATES
    if not config.env.starts_from_file or not kept.exists():
        return config
    return replace(config, env=replace(config.env, start_states=str(kept.resolve())))
