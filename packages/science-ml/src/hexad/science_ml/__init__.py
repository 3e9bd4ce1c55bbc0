"""Machine learning for the sciences: the ICML 2025 methods of Hexad."""
