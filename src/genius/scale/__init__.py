"""Beyond one machine: bulk indexing, training and serving on Ray, and what they share.

Knows Ray, and is imported by the command line alone, behind an option: nothing here is needed, or loaded, without it. The work
itself is that of the rooms below (`index`, `train`, `serve`); here it is only spread.
"""

import os

os.environ.setdefault("LANCE_LOG", "error")  # pylance would warn of every data file that is written apart from its table
