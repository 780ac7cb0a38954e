"""A run as tables: pandas frames, Table 5, every task, differences, curves in figures. Computed from the run alone."""

from harness.tables.bytask import tasks_table
from harness.tables.delta import delta_table
from harness.tables.frames import cells_frame, samples_frame
from harness.tables.layout import Column, Entry, Table
from harness.tables.lengths import lengths_table
from harness.tables.table5 import table5

__all__ = [
    "Column",
    "Entry",
    "Table",
    "cells_frame",
    "delta_table",
    "lengths_table",
    "samples_frame",
    "table5",
    "tasks_table",
]
