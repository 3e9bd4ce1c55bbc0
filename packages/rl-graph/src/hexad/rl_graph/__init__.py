"""Reinforcement learning, planning and optimisation on graphs: the ICML 2025 methods of Hexad."""
