"""Sentences of `grammar.txt`: instructions in classes of words, on which their reader (`genius.instructions`) is trained.

Which target modality a sentence asks for follows from the rules that it was made by. Knows classes; which words a class has is
not known here.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

GRAMMAR = Path(__file__).with_name("grammar.txt")
QUERIES = ("image", "text", "pair")
TARGETS = ("image", "text", "pair", "open")
DIRECTIONS = tuple((query, target) for query in QUERIES for target in TARGETS)
SHARE_OWN = 0.4  # of the sentences of a direction come from its own rules
SAFE_TO_DROP = ("a", "the", "filler", "sign", "adjective", "person", "aux")
Rules = dict[str, list[list[str]]]  # rule -> its alternatives, each a list of rules and classes


@cache
def sections() -> dict[str, Rules]:
    """The rules of every section of the file."""
    found: dict[str, Rules] = {}
    rules: Rules = {}
    name = ""
    for line in GRAMMAR.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            rules = found.setdefault(line.strip("[]"), {})
        elif line.startswith("    "):
            rules[name] += [part.replace("nothing", "").split() for part in line.split("|")]
        elif line.endswith(":"):
            name = line.removesuffix(":")
            rules[name] = []
    return found


@cache
def rules_of(query: str, target: str, own: bool) -> Rules:
    """The rules that make sentences of one direction.

    Args:
        query: One of `QUERIES`.
        target: One of `TARGETS`.
        own: Whether sentences are those of the direction alone.
    """
    rules = dict(sections()["general"])
    special = sections().get(f"{query} -> {target}", {})
    if target == "open":
        rules["S"] = sections()["open"]["S"] + special.get("S", [])
    elif own:
        rules |= special
    wanted = {"image": "images", "text": "texts", "pair": "pairs", "open": "ITEM"}
    unwanted = {"image": "texts", "text": "images", "pair": "texts", "open": "ITEM"}
    nouns = {"image": "IMAGE", "text": "TEXT", "pair": "IMAGE"}
    return rules | {
        "np": [[wanted[target]]],
        "other": [[unwanted[target]]],
        "ref": [["ref" + query]],
        "refnoun": [[nouns[query]]],
    }


def sentence(query: str, target: str, rng: random.Random) -> list[str]:
    """Classes of the words of one instruction.

    Args:
        query: One of `QUERIES`.
        target: One of `TARGETS`.
        rng: What is random.
    """
    words: list[str] = []
    _expand("S", rules_of(query, target, rng.random() < SHARE_OWN), rng, words)
    return _varied(words, rng)


def _expand(symbol: str, rules: Rules, rng: random.Random, words: list[str]) -> None:
    """Append the classes that a symbol stands for."""
    name = symbol.removesuffix("?")
    if name != symbol and rng.random() < 0.5:
        return
    if name not in rules:
        words.append(name.lower())
        return
    for part in rng.choice(rules[name]):
        _expand(part, rules, rng, words)


def _varied(words: list[str], rng: random.Random) -> list[str]:
    """Little words are left out or added, content may follow, and the sentence ends with a sign or not."""
    if rng.random() < 0.3:
        words = [word for word in words if word not in SAFE_TO_DROP or rng.random() < 0.6]
    if rng.random() < 0.2:
        words.insert(0, rng.choice(("filler", "filler", "person", "sign")))
    if rng.random() < 0.15:
        place = rng.randrange(len(words) + 1)
        added = "filler"
        if words[place : place + 1] in (["image"], ["text"], ["entry"], ["item"]):
            added = rng.choice(("adjective", "content", "adjective", "item"))
        words.insert(place, added)
    if rng.random() < 0.08 and len(words) > 3:
        words += ["of", *rng.choice((["content"], ["a", "content"], ["content", "content"], ["content", "in", "content"]))]
    if rng.random() < 0.6:
        words.append("sign")
    return ["a" if word == "and" and rng.random() < 0.02 else word for word in words]  # *an the*
