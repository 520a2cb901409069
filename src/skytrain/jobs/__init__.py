"""Jobs: the processes that train a run on one machine, how they are supervised, and how they end together.

Nothing is imported here: a worker ties itself to its supervisor before it loads anything that takes time.
"""
