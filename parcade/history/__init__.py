"""What runs have written: ``runs`` lists the runs below a directory, ``status`` says whether they work.

``series`` reads their metrics as columns, ``bands`` averages them over seeds, ``comparison`` puts groups of
runs next to each other, and ``comparison_page`` and ``comparison_curves`` show them.
"""
