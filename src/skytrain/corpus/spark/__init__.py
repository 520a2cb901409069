"""The Spark engine: the local engine's functions over batches, between which Spark moves only small records.

Texts stay in the chunk files of the store. Executors read and write them with Skytrain's client for the store, so no
Hadoop file system is needed.
"""
