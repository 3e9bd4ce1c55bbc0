"""Robust and trustworthy vision: one folder a method.

`hexad.vision_robustness.laion_c` distorts images in the six ways of LAION-C and scores classifiers on them.
`hexad.vision_robustness.shufflemamba` regularises Vision Mamba networks by shuffling, and trains them.
Nothing heavy is imported here; import the method that you need.
"""
