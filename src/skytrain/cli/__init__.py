"""The command line: one file a verb. Parse, call one story, print."""
