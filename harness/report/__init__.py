"""`gatedeval report`: one self-contained HTML page of a run. It loads nothing and works from file://.

page.py collects what the page shows, the templates hold its words and markup, charts.py and heat.py make its charts and
coloured tables, samples.py its sample browser's data.
"""

from harness.report.page import report, write_report

__all__ = ["report", "write_report"]
