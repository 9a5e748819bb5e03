"""python -m zbench.report FILE... -o report.html: recorded runs as one page that needs no network.

overview: what the records themselves say. inside: a step simulated again, its timeline and who holds what. page: both
put into one file, with the charts' library in it.
"""
