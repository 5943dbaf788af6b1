"""Pumice's models in frameworks that people already use: one small module and one extra each."""
