"""parcade's environments for other libraries: Gymnasium (``gym.py``) and Stable-Baselines3 (``sb3.py``)."""
