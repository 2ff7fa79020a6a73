"""parcade's environments for Gymnasium, Stable-Baselines3 and RLlib; TorchRL takes Gymnasium's."""
