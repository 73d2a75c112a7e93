"""The claims that this package can check, one function each: what was measured elsewhere, beside what is obtained here.

Start reading at `reproduce.CLAIMS`.
"""
