"""Methods that make language models, and other transformers, faster and smaller.

Each method is a folder of its own (`hexad.llm_efficiency.spargeattn`, ...); importing this package
imports none of them.
"""
