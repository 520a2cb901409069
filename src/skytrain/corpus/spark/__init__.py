"""The Spark engine: the local engine's functions over batches, with Spark moving small records between them.

Texts stay in the chunk files of the store. Executors read and write them with the store's own client, so no Hadoop
file system is needed.
"""
