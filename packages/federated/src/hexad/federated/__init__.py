"""Federated, split and private learning: the ICML 2025 methods of Hexad."""
