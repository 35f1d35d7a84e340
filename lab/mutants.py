"""Breaks the product on purpose, one line at a time, and sees whether a test notices: `python -m lab.mutants [--out FILE.json]`.

Each mutant is a line of a file, what it becomes, and the tests that should fail. It is made in a temporary copy of the working
tree, never in the tree itself. The tests must pass without any change first: a test that fails anyway notices nothing.
A mutant that survives, or whose line is not there any more (`stale`), ends the program with status 1.

Names beginning with M are of the first review (four of its 24 are gone with the code they were in), N1 to N6 came later; the
eleven others survived a later review. 79 more were run once: `lab/results/mutants.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from lab import ROOT, provenance

COPIED = ("src", "tests", "lab", "docs", "pyproject.toml", "README.md")
SECONDS = 900  # for the tests of one mutant


@dataclass(frozen=True)
class Mutant:
    name: str
    about: str
    file: str  # below src/genius
    old: str
    new: str
    tests: tuple[str, ...]  # below tests
    equivalent: str = ""  # why no test can notice it


MUTANTS = (
    Mutant(
        "M1", "an added item comes before those with the same ID", "search/trie.py",
        "points: Ints = self.positions(hi)", "points: Ints = self.positions(lo)",
        ("search/test_trie.py::test_a_merged_trie_is_the_rebuilt_one",),
    ),
    Mutant(
        "M2", "fewer than k hits are enough", "search/beam.py",
        "minlength=len(queries)) < wanted[queries]", "minlength=len(queries)) < 0",
        ("search/test_beam.py::test_the_plan_returns_k_items_while_k_exist",),
    ),
    Mutant(
        "M4", "row -1 of a trie is taken for the last one", "search/trie.py",
        "known = (wanted >= 0) & (wanted < len(self._inverse))", "known = wanted < len(self._inverse)",
        ("search/test_trie.py::test_rows_that_no_item_has_are_refused",),
    ),
    Mutant(
        "M5", "codes that nothing chose drift to the origin", "model/quantizer.py",
        "vectors.copy_(torch.where((counts > 0)[:, None], fresh, vectors))", "vectors.copy_(fresh)",
        ("model/test_quantizer.py::test_a_code_that_got_nothing_keeps_its_place",),
    ),
    Mutant(
        "M6", "the gradient is never rotated", "model/quantizer.py",
        'if self.config.gradient == "rotation":', 'if self.config.gradient == "never":',
        ("model/test_official_golden.py",),
    ),
    Mutant(
        "M7", "a modality's dead codes are revived from other modalities", "model/quantizer.py",
        "modality_candidates = candidates[gather(codes[:, 0]) == modality]", "modality_candidates = candidates",
        ("model/test_own_codebooks.py::test_dead_codes_are_revived_from_their_own_modality",),
    ),
    Mutant(
        "M8", "a table that does not continue what was seen is believed", "index/opened.py",
        "if not trust or reader.count() != self.alive:", "if reader.count() != self.alive:",
        ("index/test_index_versions.py::test_another_story_of_equal_length_is_noticed",),
    ),
    Mutant(
        "M9", "ids whose hashes are equal are taken for one", "index/opened.py",
        'for item_id, row in doubtful if rows[int(self.seqs[row])]["id"] == item_id)', "for item_id, row in doubtful)",
        ("index/test_index_basics.py::test_ids_whose_hashes_collide_are_told_apart",),
    ),
    Mutant(
        "M10", "a second writer adds what another has added meanwhile", "index/writing.py",
        "if not replace and there:  # another writer was quicker", "if not replace and not there:",
        ("index/test_index_crash.py::test_processes_adding_the_same_items_add_each_once",),
    ),
    Mutant(
        "M11", "given features are not those of the items that are kept", "index/writing.py",
        "part = features[positions]", "part = features[slice(0, len(positions))]",
        ("index/test_index_basics.py::test_given_features_go_to_the_items_that_are_kept",),
    ),
    Mutant(
        "M12", "a weaker second entry of a key lowers its scope", "serve/auth.py",
        'if role == "write" or digest not in keys:', "if True:",
        ("serve/test_auth.py::test_a_key_that_is_listed_twice_has_its_stronger_role",),
    ),
    Mutant(
        "M13", "a browser's word that a request comes from another site is not heard", "serve/auth.py",
        'if not same_origin or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):',
        "if not same_origin:",
        ("serve/test_auth.py::test_an_open_server_keeps_other_web_sites_out",),
    ),
    Mutant(
        "M14", "L_rq is not in the loss", "train/quantizer.py",
        "loss = loss + config.rq_weight * rq + config.mse_weight * mse", "loss = loss + config.mse_weight * mse",
        ("train/test_without_contrast.py::test_without_l_cl_the_modality_loss_still_teaches",),
    ),
    Mutant(
        "M15", "codebooks never move", "train/quantizer.py",
        "self.quantizer.update(quantized.codes, quantized.residuals, gather_halves)", "pass",
        ("train/test_stages.py::test_codebooks_follow_the_vectors_that_they_stand_for",),
    ),
    Mutant(
        "M16", "no L_cl on what codes stand for", "train/quantizer.py",
        "loss = loss + config.codes_weight * ranking", "pass",
        ("train/test_pairing.py::test_codes_are_ranked_as_they_will_be_searched",),
    ),
    Mutant(
        "M18", "queries are not augmented (Eq. 11)", "train/generator.py",
        "Batch(self.augment(frozen.queries[rows], frozen.pool[targets], mu),", "Batch(frozen.queries[rows],",
        ("train/test_stages.py::test_the_papers_inputs_are_augmented_questions",),
    ),
    Mutant(
        "M20", "norms and biases decay too", "train/loop.py",
        '"weight_decay": 0.0}]', '"weight_decay": config.weight_decay}]',
        ("train/test_stages.py::test_weight_decay_is_for_matrices_alone",),
    ),
    Mutant(
        "M21", "under a narrow filter not all that match are compared", "search/scan.py",
        "if passing <= EXACT or comparing_is_cheaper(", "if comparing_is_cheaper(",
        ("search/test_scan.py::test_a_narrow_filter_is_answered_exactly",),
    ),
    Mutant(
        "M22", "deleted items are found", "search/engine.py",
        "            return self.collection.alive\n        mask = as_numpy(allowed)",
        "            return None\n        mask = as_numpy(allowed)",
        ("search/test_engine.py::test_additions_and_deletions_equal_a_fresh_build",),
    ),
    Mutant(
        "M23", "z need not say which modality it is", "train/pairs.py",
        'loss = loss + self.modality_weight * logs["modality"]', "pass",
        ("train/test_pairing.py::test_the_weight_counts_and_zero_leaves_the_paper",),
    ),
    Mutant(
        "N1", "a field without effect is not refused", "train/config.py",
        "if values.get(name) != defaults.get(name):", "if False:",
        ("train/test_every_field.py::test_a_field_that_another_makes_meaningless_is_refused",),
    ),
    Mutant(
        "N2", "a recipe's schedule is not the optimizer's", "train/quantizer.py",
        "self.schedule = self.recipe.quantizer", "pass",
        ("train/test_every_field.py::test_another_constant_of_the_recipe_changes_the_run",),
    ),
    Mutant(
        "N3", "a new field enters the fingerprint with its default", "model/config.py",
        "values = changed(dataclasses.replace(", "values = dataclasses.asdict(dataclasses.replace(",
        ("model/test_genius_model.py::test_a_field_that_comes_later_changes_no_fingerprint_until_it_is_used",),
    ),
    Mutant(
        "N4", "the best weights are not the ones that stay", "train/selection.py",
        "if self.patience and self.best:", "if False:",
        ("train/test_selection.py",),
    ),
    Mutant(
        "N5", "a collapsed quantizer is not reported", "train/quantizer.py",
        'values["perplexity"] >= COLLAPSED * usable', 'values["perplexity"] >= 0',
        ("train/test_warnings.py::test_a_level_that_uses_a_tenth_of_its_codes_has_collapsed",),
    ),
    Mutant(
        "N6", "a decoder at chance is not reported", "train/generator.py",
        'values["nats"] < AT_CHANCE * chance', 'values["nats"] < 2 * chance',
        ("train/test_stages.py::test_a_decoder_within_two_percent_of_guessing_is_at_chance",),
    ),
    Mutant(
        "T2", "the decoder's correction of the similarity costs nothing", "train/generator.py",
        'loss = loss + CORRECTION_PENALTY * logs["correction"]', "pass",
        ("train/test_stages.py::test_the_correction_of_the_similarity_is_penalised",),
    ),
    Mutant(
        "K1", "a revived code's running sum is not weighted: it jumps at the next step", "model/quantizer.py",
        "[rows] = picks * weight", "[rows] = picks",
        ("model/test_quantizer.py::test_a_revived_code_stays_where_it_was_put",),
    ),
    Mutant(
        "X2", "offsets of synthetic queries point the other way", "fit/__init__.py",
        "Offsets(query_z[known] - z[rows],", "Offsets(z[rows] - query_z[known],",
        ("fit/test_offsets.py",),
    ),
    Mutant(
        "D2", "repeated queries of a plain split are dropped in silence", "data/mbeir.py",
        "                if self.split in UNION_QUERIES:\n                    seen.add(name)", "                seen.add(name)",
        ("data/test_mbeir_layout.py::test_a_query_that_a_plain_split_names_twice_is_not_dropped_in_silence",),
    ),
    Mutant(
        "Q2", "a filtered scan may end with fewer than k", "search/scan.py",
        "if len(short) and probes < cells.count:", "if False:",
        ("search/test_scan.py::test_a_filter_far_from_the_query_still_fills_k",),
    ),
    Mutant(
        "Q3", "the filter of the first query serves the whole batch", "search/scan.py",
        "self._filter(batch.allowed[query])", "self._filter(batch.allowed[0])",
        ("search/test_scan.py::test_every_query_has_its_own_filter",),
    ),
    Mutant(
        "Q5", "items as near as the tenth but for rounding do not count in the calibration", "search/scan.py",
        "self.tenth[query] - TIE", "self.tenth[query] + TIE",
        ("search/test_scan.py::test_a_scan_finds_the_nearest_for_any_k",),
    ),
    Mutant(
        "K3", "smoothing takes its total without what it adds", "model/quantizer.py",
        "/ (total + sizes.numel() * eps) * total", "/ total * total",
        ("model/test_quantizer.py::test_codes_move_to_the_smoothed_mean",),
    ),
    Mutant(
        "L3", "what a crash left of a line is not cut off before the next", "index/ledger.py",
        "file.truncate(self._end)  # what a crash may have left of a line", "pass",
        ("index/test_ledger.py::test_cut_anywhere_it_is_an_earlier_one",),
        equivalent="what is left of it behind the next line has no end: it is read as never written, and written over",
    ),
    Mutant(
        "V1", "a shared pass is charged in full to each owner", "serve/batching.py",
        "+ seconds / len(owners)", "+ seconds",
        ("serve/test_fair.py::test_a_shared_pass_is_charged_in_parts",),
    ),
    Mutant(
        "R1", "repair goes back to an older version although that has fewer rows", "index/repair.py",
        "and total > sound and _is_whole(reader):", "and _is_whole(reader):",
        ("index/test_index_integrity.py::test_a_repair_keeps_the_newest_version_where_an_older_one_has_fewer_rows",),
    ),
)  # fmt: skip


def fails(root: Path, tests: tuple[str, ...]) -> bool:
    """Whether any of these tests fails in the copy; one that does not end fails."""
    paths = [str(Path("tests") / test) for test in tests]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *paths]
    try:
        return subprocess.run(command, cwd=root, env=environment, capture_output=True, timeout=SECONDS).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def result(mutant: Mutant, root: Path) -> str:
    """What becomes of one mutant: caught, survived, equivalent or stale."""
    path = root / "src" / "genius" / mutant.file
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if before.count(mutant.old) != 1:
        return "stale"
    path.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
    caught = fails(root, mutant.tests)
    path.write_text(before, encoding="utf-8")
    if caught:
        return "caught"
    return "equivalent" if mutant.equivalent else "survived"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only these mutants")
    parser.add_argument("--out", type=Path, help="write the results here, as JSON")
    args = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not args.names or mutant.name in args.names]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name)
            else:
                shutil.copy(source, root / name)
        if fails(root, tuple(dict.fromkeys(test for mutant in chosen for test in mutant.tests))):
            raise SystemExit("a test that fails without any change notices nothing")
        for mutant in chosen:
            results.append(asdict(mutant) | {"result": result(mutant, root)})
            print(f"{mutant.name:4s} {results[-1]['result']:10s} {mutant.about}", flush=True)
    counts = {kind: sum(entry["result"] == kind for entry in results) for kind in ("caught", "equivalent", "survived", "stale")}
    print(counts)
    if args.out is not None:
        body = {"command": "python -m lab.mutants", **provenance(), **counts, "mutants": results}
        args.out.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    raise SystemExit(int(counts["survived"] + counts["stale"] > 0))


if __name__ == "__main__":
    main()
