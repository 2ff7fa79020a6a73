"""Environments: ``make_vec`` returns a ``gymnasium.vector.VectorEnv`` for any game and any backend."""

from parcade.envs.games import canonical_game, game_names
from parcade.envs.make import make_vec
from parcade.envs.settings import ENV_PRESETS, EnvSettings

__all__ = ["ENV_PRESETS", "EnvSettings", "canonical_game", "game_names", "make_vec"]
