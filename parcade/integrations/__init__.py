"""parcade for other libraries.

Environments for Gymnasium (``gym.py``) and Stable-Baselines3 (``sb3.py``); policies as ONNX graphs
(``onnx.py``).
"""
