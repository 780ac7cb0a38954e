"""The command line: one module per group of commands, `main` joins them.

These modules import click and nothing heavy; a command imports what it needs when it is called, so that
`gatedeval --help` takes a tenth of a second. A command parses, calls and prints. stdout is data, stderr is progress.
"""
