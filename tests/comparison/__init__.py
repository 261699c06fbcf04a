"""Checks whether a change of the code changed an answer, by the JSON of many runs before and after.

``python -m tests.comparison save FOLDER [--checkout DIR]`` runs every command of `runs.RUNS` with the code of a checkout (by
default this one) and saves the JSON; ``python -m tests.comparison compare BEFORE AFTER`` names every value that differs.
"""
