"""What an index hands back: hits, reports of writes, and what lives under a prefix of codes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genius.errors import GeniusError, Problems
from genius.index.exchange import flat, imported
from genius.types import Item, Modality

if TYPE_CHECKING:
    import pyarrow as pa

DOUBT = 0.25  # below this probability of an answer hits are marked as doubtful


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer. `item.image` is the path it was added with, or its thumbnail's bytes when it came without one."""

    id: str
    score: float
    codes: tuple[int, ...]
    item: Item
    modality: Modality
    probability: float | None = None  # that it is relevant to the query (`genius.model.config`); None: not calibrated
    ranks: dict[str, int] | None = None  # in each ranking that was fused (`genius.index.words`); None: similarity alone

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; of a picture its path, where it has one."""
        return {
            "id": self.id,
            "score": self.score,
            "probability": self.probability,
            "codes": list(self.codes),
            "modality": self.modality.label,
            "text": self.item.text,
            "image": str(self.item.image) if isinstance(self.item.image, str | Path) else None,
            "metadata": dict(self.item.metadata),
            **({} if self.ranks is None else {"ranks": dict(self.ranks)}),
        }


class Hits(list[Hit]):
    """The hits of one query, best first."""

    answerable: float | None = None  # probability that the collection holds an answer at all; None: not calibrated
    plan: str | None = None  # how they were found: flat, scan or beam; None: there was nothing to search
    considered: int = 0  # items that were scored in any way to find them
    target: Modality | None = None  # what was looked for: the target of the query, or the default one; None: every modality
    fusion: dict[str, float] | None = None  # weights of the rankings that were fused; None: similarity alone
    why: str | None = None  # where nothing was found: why, and what to do

    def having(self, hits: Iterable[Hit]) -> Hits:
        """Other hits of the same search, with what is known of it.

        Args:
            hits: In place of these.
        """
        out = Hits(hits)
        vars(out).update(vars(self))
        return out

    def __repr__(self) -> str:
        if self or self.why is None:
            return super().__repr__()
        return f"[]  # {self.why}"

    def to_list(self) -> list[dict[str, Any]]:
        """JSON-ready mappings, one per hit (`Hit.to_dict`)."""
        return [hit.to_dict() for hit in self]

    def _columns(self) -> dict[str, list[Any]]:
        rows = []
        for hit in self.to_list():
            metadata = hit.pop("metadata")
            rows.append(flat(hit, metadata))
        names = list(dict.fromkeys(name for row in rows for name in row)) or ["id", "score"]
        return {name: [row.get(name) for row in rows] for name in names}

    def to_arrow(self) -> pa.Table:
        """An Arrow table, one row per hit; metadata fields are columns.

        Examples:
            >>> Hits().to_arrow().num_rows
            0
        """
        import pyarrow as pa

        return pa.table(self._columns())

    def to_pandas(self) -> Any:
        """A pandas data frame, one row per hit; metadata fields are columns.

        Raises:
            GeniusError: If pandas is not installed.
        """
        return imported("pandas", "to_pandas").DataFrame(self._columns())

    def sorted_by(self, field: str, descending: bool = False) -> Hits:
        """The same hits by a metadata field; those without it come last.

        Args:
            field: A metadata field.
            descending: Largest first.

        Raises:
            GeniusError: If no hit has the field.
        """
        having = [hit for hit in self if hit.item.metadata.get(field) is not None]
        if self and not having:
            raise GeniusError(f"no hit has the field {field!r}")
        having.sort(key=lambda hit: hit.item.metadata[field], reverse=descending)
        return self.having(having + [hit for hit in self if hit.item.metadata.get(field) is None])

    @property
    def doubtful(self) -> bool:
        """Whether there is probably nothing like that here."""
        return self.answerable is not None and self.answerable < DOUBT


@dataclass(slots=True)
class AddReport:
    """What a write did. `problems` has one line for each item that could not be read (`on_error="skip"`)."""

    added: int = 0  # new ids
    existing: int = 0  # `add`: ids that were there already and stayed as they were
    replaced: int = 0  # `upsert`: ids whose item was replaced
    problems: Problems = field(default_factory=Problems)  # the first ones; `problems.total` counts all

    def merge(self, other: AddReport) -> None:
        """Add the counts of another report to this one.

        Args:
            other: The report.
        """
        self.added += other.added
        self.existing += other.existing
        self.replaced += other.replaced
        self.problems += other.problems

    def to_dict(self) -> dict[str, Any]:
        return {
            "added": self.added,
            "existing": self.existing,
            "replaced": self.replaced,
            "problems": list(self.problems),
            "problems_left_out": self.problems.left_out,
        }


@dataclass(frozen=True, slots=True)
class PrefixView:
    """What lives under the first codes of an ID: how many items, which codes come next, and some of the items."""

    prefix: tuple[int | None, ...]  # None: any code
    count: int
    children: Mapping[int, int]  # next code -> items below it, most first; empty at full depth
    items: list[Item]  # the first few, in the order they were added
    codes: list[tuple[int, ...]]  # full codes of `items`

    def to_dict(self) -> dict[str, Any]:
        return {
            "prefix": list(self.prefix),
            "count": self.count,
            "children": [{"code": code, "count": count} for code, count in self.children.items()],
            "items": [
                {
                    "id": item.id,
                    "codes": list(codes),
                    "modality": item.modality.label,
                    "text": item.text,
                    "metadata": dict(item.metadata),
                }
                for item, codes in zip(self.items, self.codes, strict=True)
            ],
        }
