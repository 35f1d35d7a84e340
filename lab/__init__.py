"""The laboratory: programs that train, measure and draw what the documentation shows. Not part of the installed package.

Run from the root of a clone (`python -m lab`, `python -m lab.accuracy`). Some programs try the product with the fakes and the
hostile files of its tests, so those are importable from here.
"""

import sys
from pathlib import Path

HELPERS = Path(__file__).parents[1] / "tests" / "helpers"
if str(HELPERS) not in sys.path:
    sys.path.insert(0, str(HELPERS))
