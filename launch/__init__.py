"""Presets, machines, command lines, serving. Data and pure functions; imports no torch, no engine."""

__version__ = "0.1.0"
