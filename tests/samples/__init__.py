"""How the built-in samples were made: ``python -m tests.samples.build`` trains and writes them again."""
