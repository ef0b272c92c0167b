"""Schedules on paper: the makespan model, the choice it justifies, tile traces and their pictures. Imports no JAX."""
