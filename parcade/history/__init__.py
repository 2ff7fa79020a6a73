"""What runs have written: ``runs`` lists the runs below a directory, ``status`` says whether they work.

``series`` reads their metrics as columns, ``bands`` averages them over seeds.
"""
