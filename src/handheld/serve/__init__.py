"""Shows the runs of a folder in a browser, on this machine only (`handheld serve`).

folder   finds the run files of a folder, and what the list says about each
server   answers requests: the list, the page of a run (live while it runs), comparisons
"""
