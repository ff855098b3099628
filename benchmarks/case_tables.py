"""Hostile tables; see benchmarks/cases.py."""

from case_bench import Bench, Check, largest_difference, lines_of, numbers_of

RECIPE = "tabular/xgboost"


def other_dialect(bench: Bench) -> None:
    bench.see_code(bench.train(RECIPE, bench.case / "train.csv", "--target", "ziel"), 0, "train")
    found = bench.json("plan.json")["facts"]["schema"]["columns"]
    kinds = {name: entry["kind"] for name, entry in found.items()}
    bench.see(kinds == {"größe": "number", "gewicht": "number", "farbe": "category"}, f"columns {kinds}")
    mark = "\ufeff" in (bench.work / "run/plan.json").read_text(encoding="utf-8")
    bench.see(not mark, f"byte order mark in a name: {mark}")


def categories_at_predict(bench: Bench) -> None:
    bench.see_code(bench.train(RECIPE, bench.case / "train.csv", "--target", "y"), 0, "train")
    ended, full = bench.predict(bench.case / "test_full.csv")
    num = sum(line["colour"] == "violet" for line in lines_of(bench.case / "test_full.csv"))
    bench.see(f"{num} cell" in ended.err, f"count of unseen cells named ({num})")
    bench.see_named(ended, ["violet", "'colour'"])
    _, alone = bench.predict(bench.case / "test_one_row.csv")
    together = [line for line in full if line["id"] == "7"]
    far = largest_difference(numbers_of(together), numbers_of(alone))
    bench.see(far <= 1e-6, f"the shared row differs by {far:g}")


def columns_by_name(bench: Bench) -> None:
    bench.see_code(bench.train(RECIPE, bench.case / "train.csv", "--target", "y"), 0, "train")
    _, straight = bench.predict(bench.case / "a.csv")
    ended, shuffled = bench.predict(bench.case / "b_shuffled_extra.csv")
    far = largest_difference(numbers_of(straight), numbers_of(shuffled))
    bench.see(far == 0, f"shuffled columns differ by {far:g}")
    bench.see_named(ended, ["junk"])
    ended, _ = bench.predict(bench.case / "c_missing.csv")
    bench.see_code(ended, 2, "missing column")
    bench.see_named(ended, ["'x2'"])


def labels_as_given(bench: Bench) -> None:
    arguments = ("--target", "lane", "--task", "classification")
    bench.see_code(bench.train(RECIPE, bench.case / "train.csv", *arguments), 0, "train")
    _, answers = bench.predict(bench.case / "train.csv")
    found = sorted({line["prediction"] for line in answers})
    bench.see(set(found) <= {"3", "4", "5", "9"}, f"answers {found}")
    lanes = [line["lane"] for line in lines_of(bench.case / "train.csv")]
    where = {name: [lanes[int(i)] for i in ids].count("9") for name, ids in bench.json("split.json")["ids"].items()}
    bench.see(where["train"] > 0, f"class 9: {where}")


def codes_stay_text(bench: Bench) -> None:
    arguments = ("--target", "y", "--id-column", "code")
    bench.see_code(bench.train(RECIPE, bench.case / "train.csv", *arguments), 0, "train")
    _, answers = bench.predict(bench.case / "test.csv")
    wanted = [line["code"] for line in lines_of(bench.case / "test.csv")]
    bench.see([line["id"] for line in answers] == wanted, f"ids {[line['id'] for line in answers]}")
    kind = bench.json("plan.json")["facts"]["schema"]["columns"]["zip"]
    bench.see(kind["kind"] == "category" and kind["categories"][0].startswith("0"), f"zip is a {kind['kind']}")


CHECKS: dict[str, Check] = {
    "tabular/01-bom-semicolon-decimal-comma": other_dialect,
    "tabular/02-category-codes-at-predict": categories_at_predict,
    "tabular/03-column-order-and-extra": columns_by_name,
    "tabular/04-labels-not-zero-based": labels_as_given,
    "tabular/06-leading-zero-ids": codes_stay_text,
}
