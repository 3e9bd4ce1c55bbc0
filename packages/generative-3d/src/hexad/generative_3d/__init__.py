"""Generative models and 3D scenes: the ICML 2025 methods of Hexad."""
