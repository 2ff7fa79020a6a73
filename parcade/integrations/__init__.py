"""parcade for other libraries.

Environments for Gymnasium (``gym.py``), whose environments TorchRL takes, Stable-Baselines3 (``sb3.py``) and
RLlib (``rllib.py``); policies as ONNX graphs (``onnx.py``).
"""
