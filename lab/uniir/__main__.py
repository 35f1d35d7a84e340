"""`python -m lab.uniir COMMAND`: the commands of `genius`, with UniIR's other encoders."""

from genius.cli import main

main()
