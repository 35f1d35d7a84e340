"""Breaks the product on purpose, one line at a time, and sees whether a test notices: `python -m lab.mutants --out FILE.json`.

Each mutant is a line of a file, what it becomes, and the tests that should fail. It is made in a temporary copy of the working
tree, never in the tree itself. The tests must pass without any change first: a test that fails anyway notices nothing.
`survived` and `stale` (the line is not there any more) end the program with status 1. A mutant that changes no result says why
in `equivalent`; its tests are run all the same.

`OLD` has the numbers of the first review; four of its 24 are gone with the code they were in, N1 to N6 came later. `REVIEW` has
the names of a later review, which published its eleven survivors (K1, K3, L3, Q2, Q3, Q5, R1, T2, V1, X2, D2) and of the 27
others only names: those are made anew, in the module that the letter stands for. `OWN` was chosen afterwards by somebody else.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import multiprocessing
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
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


OLD = (
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
        "return max(valid or matching, key=lambda key: len(key.scopes), default=None)",
        "return (valid or matching or [None])[-1]",
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
        "if small is not None or len(passing) <= EXACT:", "if small is not None:",
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
        "raise _no_effect(name, rule.switch, switch)", "pass",
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
)  # fmt: skip

REVIEW = (
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
        "Q1", "a scan hands the re-ranker no more than k candidates", "search/scan.py",
        "return k + int(effort * REFINED * k**0.5)", "return k",
        ("search/test_scan.py::test_a_scan_finds_the_nearest_for_any_k",),
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
        "Q4", "a modality that could still hold one of the k best is not searched", "search/scan.py",
        "bound = log_probs[own, modality] + np.linalg.norm(self.batch.dense[own], axis=1)",
        "bound = log_probs[own, modality]",
        ("search/test_scan.py::test_a_modality_that_may_hold_a_better_item_is_searched",),
    ),
    Mutant(
        "Q5", "items as near as the tenth but for rounding do not count in the calibration", "search/scan.py",
        "self.tenth[query] - TIE", "self.tenth[query] + TIE",
        ("search/test_scan.py::test_a_scan_finds_the_nearest_for_any_k",),
    ),
    Mutant(
        "S1", "hits of several modalities are merged worst first", "index/searching.py",
        "key=lambda hit: -hit.score)[:k])", "key=lambda hit: hit.score)[:k])",
        ("index/test_index_basics.py::test_a_target_is_what_people_mean_by_it",),
    ),
    Mutant(
        "S2", "scores are brought to another modality's scale by the wrong ratio", "index/searching.py",
        "(wanted_deviation / deviation)", "(deviation / wanted_deviation)",
        ("index/test_captions.py::test_the_scale_is_that_of_the_other_modality",),
    ),
    Mutant(
        "B1", "ids of a cached base are not found", "index/cache.py",
        'high = np.searchsorted(self.hashes, key, "right")', 'high = np.searchsorted(self.hashes, key, "left")',
        ("index/test_index_cache.py::test_rows_of_a_base_are_in_the_order_of_writing",),
    ),
    Mutant(
        "B2", "a cache of another index or model is believed", "index/cache.py",
        "if any(about.get(name) != value for name, value in key.to_dict().items()):", "if False:",
        ("index/test_index_versions.py::test_a_damaged_or_foreign_cache_is_not_believed",),
    ),
    Mutant(
        "Be1", "the score of a beam is not divided by its length", "search/beam.py",
        "= scores / state.level", "= scores",
        ("search/test_beam.py::test_equals_brute_force",),
    ),
    Mutant(
        "Be2", "the decoder's memory stays with the beams of before", "search/beam.py",
        "state=state.state.follow(parent),", "state=state.state,",
        ("search/test_beam.py::test_equals_brute_force",),
    ),
    Mutant(
        "K2", "the running sizes of codes forget nearly all at each step", "model/quantizer.py",
        "sizes.lerp_(counts, 1 - decay)", "sizes.lerp_(counts, decay)",
        ("model/test_quantizer.py::test_codes_move_to_the_smoothed_mean",),
    ),
    Mutant(
        "K3", "smoothing takes its total without what it adds", "model/quantizer.py",
        "/ (total + sizes.numel() * eps) * total", "/ total * total",
        ("model/test_quantizer.py::test_codes_move_to_the_smoothed_mean",),
    ),
    Mutant(
        "G1", "all queries continue the beams of the first", "search/decoder.py",
        "return self._rows(self.z, self.cross, first + parent)", "return self._rows(self.z, self.cross, parent)",
        ("search/test_beam.py::test_equals_brute_force",),
    ),
    Mutant(
        "T1", "offsets have no noise", "train/generator.py",
        "self.noise * offsets.norm(dim=1, keepdim=True) * direction", "0 * direction",
        ("train/test_shifted.py",),
    ),
    Mutant(
        "T3", "a rare modality is rare among the decoder's inputs", "train/generator.py",
        "float(len(rows) > 0) for rows in self.rows", "float(len(rows)) for rows in self.rows",
        ("train/test_shifted.py",),
    ),
    Mutant(
        "T4", "real items are taught the IDs of invented ones", "train/generator.py",
        "ids = torch.where(virtual, ids, self.codes[rows])", "pass",
        ("train/test_shifted.py",),
    ),
    Mutant(
        "H1", "queries that share a positive are not held out together", "train/holdout.py",
        "positives = data.pairs + torch.tensor([0, queries])", "positives = data.pairs",
        ("train/test_holdout.py",),
    ),
    Mutant(
        "H2", "offsets are of validation queries, too", "train/holdout.py",
        "(held_out & ~validation).nonzero()", "held_out.nonzero()",
        ("train/test_holdout.py",),
    ),
    Mutant(
        "L1", "positives are transposed in the direction from targets to queries", "train/losses.py",
        "[:, first : first + local].T", "[:, first : first + local]",
        ("train/test_losses.py::test_targets_know_which_queries_they_are_positives_of",),
    ),
    Mutant(
        "L2", "a line of the ledger is not compared with its checksum", "index/ledger.py",
        "if text_sum(text) != given:", "if False:",
        ("index/test_ledger.py::test_any_flipped_bit_is_damage",),
    ),
    Mutant(
        "L3", "what a crash left of a line is not cut off before the next", "index/ledger.py",
        "file.truncate(self._end)  # what a crash may have left of a line", "pass",
        ("index/test_ledger.py::test_cut_anywhere_it_is_an_earlier_one",),
        equivalent="what is left of it behind the next line has no end: it is read as never written, and written over",
    ),
    Mutant(
        "O1", "the rows of a filter are remembered from version to version", "index/opened.py",
        "        self._masks.clear()\n", "",
        ("index/test_index_basics.py::test_filters_run_inside_the_search",),
    ),
    Mutant(
        "O2", "vectors that were held back stand for all that are new", "index/opened.py",
        "whole = bool(held) and held[0][0] == first and held[-1][0] + len(held[-1][1]) == len(self.seqs)",
        "whole = bool(held)",
        ("index/test_extents.py::test_an_open_index_searches_the_vectors_of_two_writers",),
    ),
    Mutant(
        "W1", "of an id that is upserted twice in a batch the first item wins", "index/writing.py",
        "if replace or item.id not in chosen:", "if item.id not in chosen:",
        ("index/test_index_basics.py::test_add_keeps_what_is_there_and_upsert_replaces_it",),
    ),
    Mutant(
        "F1", "after a date means after its first moment", "index/filters.py",
        '">": f"({left.sql} >= {date.until})",', '">": f"({left.sql} > {date.sql})",',
        ("index/test_index_filters.py::test_dates_and_lists",),
    ),
    Mutant(
        "V1", "a shared pass is charged in full to each owner", "serve/batching.py",
        "used += seconds / len(owners)", "used += seconds",
        ("serve/test_fair.py::test_a_shared_pass_is_charged_in_parts",),
    ),
    Mutant(
        "V2", "a lane that was away has its time saved up", "serve/batching.py",
        "place.used = max(place.used, self._clock)", "pass",
        ("serve/test_fair.py::test_who_was_away_saves_nothing_up",),
    ),
    Mutant(
        "A1", "keys are valid once they have expired", "serve/auth.py",
        "self.expires <= datetime.now(UTC)", "self.expires > datetime.now(UTC)",
        ("serve/test_rotation.py::test_a_key_ends",),
    ),
    Mutant(
        "A2", "any key may do anything", "serve/auth.py",
        "if needed not in caller.scopes:", "if not caller.scopes:",
        ("serve/test_auth.py::test_every_route_asks_for_its_scope",),
    ),
    Mutant(
        "D1", "queries of a union file count as often as they occur", "data/mbeir.py",
        "if number is None or name in seen:", "if number is None:",
        ("data/test_mbeir_layout.py::test_the_up_sampled_file_is_each_question_with_how_often_it_occurs",),
    ),
    Mutant(
        "E1", "reciprocal ranks begin with a half", "ranking.py",
        "first.argmax(1) + 1)", "first.argmax(1) + 2)",
        ("evaluate/test_metrics.py",),
    ),
    Mutant(
        "E2", "recall is of what k hits can hold at most", "ranking.py",
        "/ np.maximum(judged.positives, 1)", "/ np.clip(judged.positives, 1, k)",
        ("evaluate/test_metrics.py",),
    ),
    Mutant(
        "R1", "repair goes back to an older version although that has fewer rows", "index/repair.py",
        "if reader.count() > sound and _is_whole(reader):", "if _is_whole(reader):",
        ("index/test_index_integrity.py::test_a_repair_keeps_the_newest_version_where_an_older_one_has_fewer_rows",),
    ),
)  # fmt: skip

OWN = (
    Mutant(
        "P1", "rows of later blocks are taken for rows of the first", "search/flat.py",
        "arrays.arange(rows.stop - rows.start) + rows.start", "arrays.arange(rows.stop - rows.start)",
        ("search/test_engine.py",),
    ),
    Mutant(
        "P2", "a query without a target finds nothing beside one with a target", "search/flat.py",
        "of_target = (target < 0) | (arrays", "of_target = (arrays",
        ("search/test_engine.py::test_filters_may_differ_by_query_and_targets_may_be_mixed",),
    ),
    Mutant(
        "P3", "vectors are kept with the biases of another bank", "search/flat.py",
        "held.vectors is vectors and (item_bias is None or held.item_bias is item_bias)", "held.vectors is vectors",
        ("search/test_item_bias.py::test_a_hub_is_found_less_often",),
    ),
    Mutant(
        "P4", "what a query may not find fills up its hits", "search/flat.py",
        "rows_found = np.where(np.isneginf(found), -1, arrays.host(best_rows))", "rows_found = arrays.host(best_rows)",
        ("search/test_engine.py::test_k_allowed_items_come_back_when_they_exist",),
    ),
    Mutant(
        "P5", "rows of later blocks of an exhaustive comparison are those of the first", "search/arrays.py",
        "[best_rows, rows[places]], 1)", "[best_rows, places], 1)",
        ("search/test_scan.py::test_a_comparison_in_blocks_is_one_without",),
    ),
    Mutant(
        "P6", "items added to a small modality replace those before", "search/scan.py",
        "few[modality] = np.concatenate([before, rows])", "few[modality] = rows",
        ("search/test_scan.py::test_deleted_items_are_gone_and_added_ones_found",),
    ),
    Mutant(
        "P7", "a saved scan of another number of items is used", "search/scan.py",
        "if known is not None and known.rows == len(self.collection):", "if known is not None:",
        ("search/test_scan.py::test_a_saved_scan_of_another_number_of_items_is_not_used",),
    ),
    Mutant(
        "P8", "additions change the cells of the scan before", "search/cells.py",
        "grown.index = faiss.clone_index(self.index)", "grown.index = self.index",
        ("search/test_scan.py::test_codes_are_unpacked_as_they_were_packed_and_additions_change_no_other",),
    ),
    Mutant(
        "P9", "queries are brought into the space of items", "search/cells.py",
        "queries @ self.query_transform", "queries @ self.item_transform",
        ("search/test_scan.py::test_scores_by_codes_approximate_similarities",),
    ),
    Mutant(
        "P10", "the range of biases begins above its least", "search/item_bias.py",
        "round((MARGIN * span - low)", "round((-MARGIN * span - low)",
        ("search/test_item_bias.py::test_a_bias_takes_one_byte_per_query_modality_and_is_as_exact_as_its_steps",),
    ),
    Mutant(
        "P11", "added items get the modality of the first ones for their bias", "search/item_bias.py",
        "known), modality[first:])", "known), modality[: len(modality) - first])",
        ("search/test_item_bias.py::test_the_bias_of_an_added_item_follows_its_own_modality",),
    ),
    Mutant(
        "P12", "biases of another bank are read from the cache", "search/item_bias.py",
        'metadata.get("format") != FORMAT or metadata.get("identity") != identity', 'metadata.get("format") != FORMAT',
        ("search/test_item_bias.py::test_a_bias_is_read_back_from_its_cache_and_not_for_another_bank",),
    ),
    Mutant(
        "P13", "biases stay those of the collection before", "search/engine.py",
        '        new.__dict__.pop("item_bias", None)\n', "",
        ("search/test_item_bias.py::test_items_added_later_have_the_bias_of_the_formula_and_others_keep_theirs",),
    ),
    Mutant(
        "P14", "the likeliest modality may be one that no item has", "search/engine.py",
        "likeliest = np.where(exists, log_probs, -np.inf).max(1, keepdims=True)",
        "likeliest = log_probs.max(1, keepdims=True)",
        ("search/test_engine.py::test_scores_keep_their_scale_where_no_item_is_of_the_likeliest_modality",),
    ),
    Mutant(
        "P15", "padding is ranked by its score", "search/rerank.py",
        "HOST.top_k(np.where(rows < 0, np.float32(-np.inf), scores), k)", "HOST.top_k(scores, k)",
        ("search/test_engine.py::test_flat_is_brute_force",),
    ),
    Mutant(
        "P16", "candidates as good as the k-th are left out", "search/arrays.py",
        "scores[query] >= bound[query]", "scores[query] > bound[query]",
        ("search/test_engine.py::test_the_best_candidates_are_those_of_a_stable_sort",),
    ),
    Mutant(
        "P17", "a child ends where the next row's begins", "search/trie.py",
        "end[:-1] = self.ops.where(row[1:] == row[:-1], start[1:], end[:-1])", "end[:-1] = start[1:]",
        ("search/test_beam.py::test_equals_brute_force",),
    ),
    Mutant(
        "P18", "a filter's rows are counted in the order of rows, not of IDs", "search/trie.py",
        "self.ops.cumsum(allowed[self.ops.int64(self._order)])", "self.ops.cumsum(allowed[: len(self._order)])",
        ("search/test_trie.py::test_a_mask_counts_as_a_trie_of_the_allowed_items",),
    ),
    Mutant(
        "P19", "a given modality costs its log-probability in a mixed batch", "search/beam.py",
        "_totals(scorer, state, children).masked_fill(wanted >= 0, 0.0)", "_totals(scorer, state, children)",
        ("search/test_beam.py::test_queries_with_and_without_a_target_share_a_batch",),
    ),
    Mutant(
        "P20", "a filter is forgotten where codes do not say the modality", "index/searching.py",
        "        everything = mask\n", "        pass\n",
        ("index/test_index_basics.py::test_a_model_without_modality_codes_still_obeys_target",),
    ),
    Mutant(
        "P21", "probabilities are averaged without their weights", "index/searching.py",
        "(means[-1] * sizes[-1] + means[-2] * sizes[-2]) / size", "(means[-1] + means[-2]) / 2",
        ("index/test_index_probability.py::test_neighbours_in_the_wrong_order_are_averaged_by_their_number",),
    ),
    Mutant(
        "P22", "a collection of pairs is searched for texts by default", "index/target.py",
        "if Modality.IMAGE in held or Modality.PAIR in held:", "if Modality.IMAGE in held:",
        ("index/test_index_basics.py::test_a_target_is_what_people_mean_by_it",),
    ),
    Mutant(
        "P23", "a target text does not mean texts with images", "index/target.py",
        "Modality.TEXT: (Modality.TEXT, Modality.PAIR),", "Modality.TEXT: (Modality.TEXT,),",
        ("index/test_index_basics.py::test_a_target_is_what_people_mean_by_it",),
    ),
    Mutant(
        "P24", "the version that counts is set aside, too", "index/commit.py",
        "if version > head]\n    with", "if version >= head]\n    with",
        ("index/test_index_integrity.py::test_what_a_dead_writer_left_is_not_shown_and_set_aside",),
    ),
    Mutant(
        "P25", "files of the table are not synced before they count", "index/commit.py",
        "        if durable:\n            folders", "        if False:\n            folders",
        ("index/test_index_integrity.py::test_commits_are_synced_before_they_count",),
    ),
    Mutant(
        "P26", "a file that ends early counts", "index/commit.py",
        "if file.read() != ending:", "if False:",
        ("index/test_index_crash.py::test_a_file_that_ends_early_does_not_count",),
    ),
    Mutant(
        "P27", "an index whose files are gone opens", "index/commit.py",
        "tolerate_missing=state.cleaning)", "tolerate_missing=True)",
        ("index/test_index_integrity.py::test_an_index_with_a_data_file_missing_is_not_opened",),
    ),
    Mutant(
        "P28", "a file takes its name before its bytes are on the disk", "files.py",
        "            sync_file(temporary)\n", "            pass\n",
        ("core/test_files.py::test_durable_bytes_are_on_the_disk_before_the_name",),
    ),
    Mutant(
        "P29", "the name of a file is not synced", "files.py",
        "            sync_directory(path.parent)\n", "            pass\n",
        ("core/test_files.py::test_durable_bytes_are_on_the_disk_before_the_name",),
    ),
    Mutant(
        "P30", "a line of the ledger is not synced", "index/ledger.py",
        "                file.flush()\n                if durable:",
        "                file.flush()\n                if False:",
        ("index/test_index_integrity.py::test_commits_are_synced_before_they_count",),
    ),
    Mutant(
        "P31", "ids that came back stay deleted in a copy", "index/repair.py",
        "keep_deleted(target, ids - alive)", "keep_deleted(target, ids)",
        ("index/test_names.py::test_what_was_deleted_stays_deleted_in_copies",),
    ),
    Mutant(
        "P32", "a row is not compared with its checksum", "index/check.py",
        "if noted[i] is not None and noted[i] != value:", "if False:",
        ("index/test_index_integrity.py::test_a_row_that_is_not_as_it_was_written_is_named",),
    ),
    Mutant(
        "P33", "codes of a base are in the order of the table, not of its rows", "index/cache.py",
        "build_trie(codes[order], level_sizes)", "build_trie(codes, level_sizes)",
        ("index/test_index_cache.py::test_rows_of_a_base_are_in_the_order_of_writing",),
    ),
    Mutant(
        "P34", "what was learned by another model is used", "index/learned.py",
        'if about.get("fingerprint") != fingerprint:\n        return None\n    if version', "if version",
        ("index/test_learning.py::test_a_damaged_or_foreign_file_counts_as_none",),
    ),
    Mutant(
        "P35", "an older version is searched with what was learned later", "index/learned.py",
        'int(about.get("version", "0")) > version:', 'int(about.get("version", "0")) < version:',
        ("index/test_learning.py::test_snapshots_have_it_and_older_versions_do_not",),
    ),
    Mutant(
        "P36", "a changed caption is not noticed", "index/ingest.py",
        '        mark = f"{mark}+{file_mark(file.caption, config.by_content)}"\n', "",
        ("index/test_index_ingest.py::test_a_second_run_reads_only_what_changed",),
    ),
    Mutant(
        "P37", "the weight of words does not count", "index/words.py",
        '"words": request.words_weight}', '"words": 1.0}',
        ("index/test_words.py::test_hybrid_is_the_fusion_of_both_rankings",),
    ),
    Mutant(
        "P38", "words are found outside of the filter", "index/words.py",
        "conditions.append(compile_where(request.where, reader.columns))", "compile_where(request.where, reader.columns)",
        ("index/test_words.py::test_filters_and_targets_hold",),
    ),
    Mutant(
        "P39", "image and text are balanced the wrong way", "fit/__init__.py",
        "math.log(image_length / text_length)", "math.log(text_length / image_length)",
        ("fit/test_offsets.py::test_image_and_text_of_a_pair_count_equally",),
    ),
    Mutant(
        "P40", "the metric is of the queries that consist of a modality, not of those that want it", "model/query_bank.py",
        "target_queries = self.z[self.target == target]", "target_queries = self.z[self.modality == target]",
        ("model/test_query_bank.py",),
    ),
    Mutant(
        "P41", "the digest of a bank does not tell what its queries want", "model/query_bank.py",
        "        digest.update(self.target.tobytes())\n", "",
        ("model/test_query_bank.py::test_banks_that_differ_have_other_digests",),
    ),
    Mutant(
        "P42", "queries are judged with the bias of their own half", "model/bias_choice.py",
        "folds = [(bank_subset(bank, ~half), judged.take(even)), (bank_subset(bank, half), judged.take(odd_places))]",
        "folds = [(bank_subset(bank, half), judged.take(even)), (bank_subset(bank, ~half), judged.take(odd_places))]",
        ("model/test_bias_choice.py::test_a_query_is_judged_by_the_other_half",),
    ),
    Mutant(
        "P43", "a bias that is better by chance is chosen", "model/bias_choice.py",
        "> ERRORS * error:", "> -ERRORS:",
        ("model/test_bias_choice.py",),
    ),
    Mutant(
        "P44", "the gap to the others counts with the wrong sign", "model/confidence.py",
        "scores[:, 0] - others.mean(1)]", "others.mean(1) - scores[:, 0]]",
        ("model/test_confidence.py",),
    ),
    Mutant(
        "P45", "a query with many positives counts more", "train/losses.py",
        "weights = positive / positive.sum(1, keepdim=True).clamp(min=1)", "weights = positive.to(losses.dtype)",
        ("train/test_losses.py",),
    ),
    Mutant(
        "P46", "one caller may displace another who has no more than it", "serve/batching.py",
        "sizes.get((lane, owner), 0) + 2:", "sizes.get((lane, owner), 0):",
        ("serve/test_fair.py::test_a_full_line_takes_the_one_in_who_has_less",),
    ),
    Mutant(
        "P47", "a job whose time has passed is run", "serve/batching.py",
        "if waiting.deadline <= started:", "if False:",
        ("serve/test_batching.py::test_late_and_cancelled_jobs_are_not_run",),
    ),
    Mutant(
        "P48", "every IPv6 address is a client of its own", "serve/auth.py",
        "(address, 64), strict=False", "(address, 128), strict=False",
        ("serve/test_connections.py::test_an_address_is_a_client",),
    ),
    Mutant(
        "P49", "the connection that has waited least is closed", "serve/connections.py",
        "(held[other.address], -other.waiting_since)", "(held[other.address], other.waiting_since)",
        ("serve/test_connections.py::test_the_connection_that_waits_longest_makes_room",),
    ),
    Mutant(
        "P50", "pictures get one patch too few", "encoders/inputs.py",
        "if across * down <= self.most:", "if across * down < self.most:",
        ("encoders/test_dual.py::test_naflex_agrees_with_transformers",),
    ),
    Mutant(
        "P51", "pictures of an export lie in the wrong column", "export/web.py",
        "left = place % COLUMNS * CELL", "left = place // COLUMNS * CELL",
        ("export/test_sheets.py",),
    ),
    Mutant(
        "P52", "an upsert is searched with the vectors of before", "index/opened.py",
        "out[self.rows_of(seqs) - first] = embeddings", "out[: len(seqs)] = embeddings",
        ("index/test_extents.py::test_an_open_index_searches_the_vectors_of_two_writers",),
    ),
)  # fmt: skip

MUTANTS = OLD + REVIEW + OWN

GONE = {
    "M3": "renumbering of beams: it had no effect and was deleted",
    "M17": "distillation from dense vectors: did not help and was deleted",
    "M19": "a ranking loss beside Eq. 10: never measured and was deleted",
    "M24": "a weight of nearness chosen after training: nearness is inside the decoder now",
}


@contextmanager
def applied(mutant: Mutant, root: Path) -> Iterator[bool]:
    """The copy with this one change; False if its line is not there exactly once."""
    path = root / "src" / "genius" / mutant.file
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if before.count(mutant.old) != 1:
        yield False
        return
    path.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        yield True
    finally:
        path.write_text(before, encoding="utf-8")


def noticed(root: Path, tests: tuple[str, ...], seconds: int = SECONDS) -> tuple[bool, str]:
    """Whether any of these tests fails in the copy, and the last line of what they say.

    In a fork of this process, which has imported large libraries already and nothing of the product.
    """
    paths = [str(Path("tests") / test) for test in tests]
    output = root / "output.txt"
    process = multiprocessing.get_context("fork").Process(target=_run_tests, args=(root, paths, output))
    process.start()
    process.join(seconds)
    if process.is_alive():
        assert process.pid is not None
        os.killpg(process.pid, signal.SIGKILL)  # the tests may have started others
        process.join()
        return True, f"not done after {seconds} s"
    said = output.read_text(encoding="utf-8", errors="replace")
    if process.exitcode not in (0, 1):  # no tests, or none that could be read; a mutant may break the import of its module
        said_at_last = said.strip().splitlines()[-1:]
        return True, f"pytest ends with {process.exitcode}: {''.join(said_at_last)}"[:200]
    failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return process.exitcode == 1, (failed or said.strip().splitlines()[-1:])[0][:200]


def _run_tests(root: Path, paths: list[str], output: Path) -> None:
    """Run pytest in the copy, in a process group of its own; the exit status is pytest's."""
    os.setsid()
    os.chdir(root)
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    places = {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    os.environ.update(places)
    sys.dont_write_bytecode = True
    for name in [name for name in sys.modules if name.split(".")[0] in ("lab", "genius")]:
        del sys.modules[name]
    elsewhere = [path for path in sys.path if not Path(path or ".").resolve().is_relative_to(ROOT) or "site-packages" in path]
    sys.path[:] = [str(root / "src"), str(root), *elsewhere]
    import pytest

    status = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *paths]))
    sys.stdout.flush()
    os._exit(status)  # threads of the tests may still be there


def preload() -> None:
    """Import what most tests import and what starts no thread: each fork then has it for nothing."""
    for name in ("numpy", "torch", "torch.distributed", "pyarrow", "PIL.Image", "safetensors.torch", "faiss", "pytest"):
        importlib.import_module(name)
    for plugin in entry_points(group="pytest11"):
        plugin.load()
    import torch

    torch.set_num_threads(1)


def judge(mutants: tuple[Mutant, ...], root: Path) -> Iterator[dict[str, Any]]:
    for mutant in mutants:
        start = time.monotonic()
        entry = asdict(mutant) | {"tests": list(mutant.tests)}
        with applied(mutant, root) as there:
            result = "stale"
            words = "its line is not there exactly once"
            if there:
                caught, words = noticed(root, mutant.tests)
                result = "caught" if caught else "survived"
        if result == "survived" and mutant.equivalent:
            result = "equivalent"
        yield entry | {"result": result, "says": words, "seconds": round(time.monotonic() - start, 1)}


def counts(results: dict[str, dict[str, Any]]) -> dict[str, int]:
    kinds = ("caught", "equivalent", "survived", "stale")
    return {kind: sum(entry["result"] == kind for entry in results.values()) for kind in kinds}


def write(path: Path, results: dict[str, dict[str, Any]]) -> None:
    """All results, in the order of the list; those of mutants that are not in it any more are left out."""
    known = [mutant.name for mutant in MUTANTS if mutant.name in results]
    kept = {name: results[name] for name in known}
    about: dict[str, Any] = {"date": datetime.date.today().isoformat(), "python": platform.python_version(), **counts(kept)}
    for name, group in (("old", OLD), ("review", REVIEW), ("own", OWN)):
        about[name] = counts({one.name: results[one.name] for one in group if one.name in results})
    about["not_run"] = [mutant.name for mutant in MUTANTS if mutant.name not in results]
    body = {"about": about, "gone": GONE, "mutants": list(kept.values())}
    path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def read(path: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """Results of other mutants that a file holds, where only some were asked for."""
    if not names or not path.exists():
        return {}
    return {entry["name"]: entry for entry in json.loads(path.read_text(encoding="utf-8"))["mutants"] if "commit" in entry}


def commit() -> str:
    """The commit of the working tree; with a plus sign if the product or its tests differ from it."""
    run = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=True)
    name = run(["git", "rev-parse", "--short=12", "HEAD"]).stdout.strip()
    changed = run(["git", "status", "--porcelain", "src", "tests"]).stdout.strip()
    return name + ("+" if changed else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only these mutants; the results of others stay as they are in the file")
    parser.add_argument("--out", type=Path, help="write the results here, as JSON")
    args = parser.parse_args()
    chosen = tuple(mutant for mutant in MUTANTS if not args.names or mutant.name in args.names)
    results: dict[str, dict[str, Any]] = {}
    preload()
    about = {"commit": commit(), "date": datetime.date.today().isoformat()}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        for name in COPIED:
            source = ROOT / name
            shutil.copytree(source, root / name) if source.is_dir() else shutil.copy(source, root / name)
        failing, words = noticed(root, tuple(dict.fromkeys(test for mutant in chosen for test in mutant.tests)))
        if failing:
            raise SystemExit(f"a test that fails without any change notices nothing: {words}")
        for entry in judge(chosen, root):
            results[entry["name"]] = entry | about
            if args.out is not None:
                write(args.out, read(args.out, args.names) | results)
            shown = f"{entry['name']:4s} {entry['result']:10s} {entry['seconds']:6.1f} s  {entry['about']}: {entry['says']}"
            print(shown, flush=True)
    counted = counts({entry["name"]: entry for entry in results.values()})
    print(counted)
    raise SystemExit(int(counted["survived"] + counted["stale"] > 0))


if __name__ == "__main__":
    main()
