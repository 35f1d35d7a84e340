"""`python -m lab COMMAND`, from a clone: a toy M-BEIR, a check of M-BEIR's files, the paper's tables.

These are programs of the repository and not commands of `genius`, so that the product never has to know whether the laboratory
is there. Every other program here is a module of its own: `python -m lab.accuracy --help`.
"""

from __future__ import annotations

import typer

from lab.mbeir.check import check_mbeir
from lab.mbeir.shapes import shapes
from lab.paper.command import reproduce_experiment
from lab.recipes import recipes

app = typer.Typer(name="lab", no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.command("shapes")(shapes)
app.command("check-mbeir")(check_mbeir)
app.command("reproduce")(reproduce_experiment)
app.command("recipes")(recipes)

if __name__ == "__main__":
    app(prog_name="python -m lab")
