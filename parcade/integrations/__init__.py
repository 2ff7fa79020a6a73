"""parcade for other libraries.

Environments for Gymnasium (``gym.py``), which TorchRL takes, too, raw games for other wrappers (``raw.py``),
Stable-Baselines3 (``sb3.py``), RLlib (``rllib.py``) and PettingZoo (``pettingzoo.py``); policies as ONNX
graphs (``onnx.py``).
"""
