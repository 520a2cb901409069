"""The command line: one file for each command. It parses arguments, calls one pipeline and prints."""
