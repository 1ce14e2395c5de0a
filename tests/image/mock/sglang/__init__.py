"""Stands in for the engine in container tests: boots in a second and fails on request."""
