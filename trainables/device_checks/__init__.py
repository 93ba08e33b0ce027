"""Checks that a device computes what the CPU computes, and how fast it trains.

They run on any device of torch; `study doctor --gpu` and `make gpu` run them on GPUs.
"""
