"""The page in a real browser, as a class uses it: tests/page/browser.cjs acts, and what it saw is judged here."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NODE = shutil.which("node")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PACKAGES = ROOT / "tests" / "page" / "node_modules" / "playwright-core"
if not (NODE and CHROMIUM and PACKAGES.exists()):
    pytest.skip("needs node, chromium and `npm install --prefix tests/page`", allow_module_level=True)


@pytest.fixture(scope="module")
def seen():
    """What happened when tests/page/browser.cjs used the page in Chromium."""
    script = ROOT / "tests" / "page" / "browser.cjs"
    result = subprocess.run(
        [NODE, script, CHROMIUM, ROOT / "docs" / "play.html"], capture_output=True, text=True, timeout=500
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_page_loads_from_disk_with_one_request_and_no_error(seen):
    assert seen["requests"] == 1 and seen["errors"] == [] and seen["title"] == "1. Learning without training"


def test_points_move_by_mouse_touch_and_keys(seen):
    assert seen["drag"]["curve"] > 0.01 and seen["drag"]["dx"] > 0.1 and seen["drag"]["dy"] > 0.5
    assert seen["keys"]["curve"] > 0.01 and seen["nextPoint"] == "Example 2"
    assert [round(seen["keys"][way], 2) for way in ("dx", "dy")] == [0.5, 0.1]
    assert seen["touch"] > 0.2


def test_shuffle_moves_ar_and_a_label_swap_does_not_move_prefix(seen):
    assert seen["shuffle"]["invicl"] < 1e-5 and seen["shuffle"]["ar"] > 0.01, seen["shuffle"]
    assert seen["swap"]["prefix"] < 1e-5 and seen["swap"]["invicl"] > 0.01, seen["swap"]
    assert "ar moved by up to" in seen["shuffle"]["says"] and "have changed places" in seen["swap"]["says"]


def test_every_shuffle_is_another_order_and_no_report_grows_old(seen):
    assert seen["orders"] == "+-+-+-" and seen["stale"] == [""] * 4
    assert seen["noModel"] == "The order has changed; the points have not." and "two examples" in seen["onePoint"]


def test_focus_stays_on_a_button_that_has_nothing_more_to_do(seen):
    last, first = "step 8 of 8", "step 1 of 8"
    assert seen["focus"] == ["next", last, "next", last, "undo", last, "back", first] and seen["notRestarted"]


def test_rings_follow_as_the_mask_lets_them(seen):
    pull = seen["pull"]
    leak = pull["prefix_others"]
    assert leak["own"] > 0.5 and leak["own"] > 5 * max(leak["earlier"], leak["later"])
    assert pull["invicl"]["own"] == 0 and min(pull["invicl"]["earlier"], pull["invicl"]["later"]) > 0.01
    assert pull["ar"]["own"] == pull["ar"]["earlier"] == 0 and pull["ar"]["later"] > 0.01
    assert pull["boe"]["own"] == pull["boe"]["earlier"] == pull["boe"]["later"] == 0
    assert all(found["ring"] == 8 and "Label 4 moved by 1.00" in found["says"] for found in pull.values())


def test_longer_prompts_break_ar_and_empty_ones_break_nothing(seen):
    assert seen["long"]["ar"] > 3 * seen["long"]["invicl"], seen["long"]
    assert seen["late"] == 10 and "10 more than in training" in seen["longSays"] and seen["empty"]


def test_a_link_restores_the_state_and_garbage_gives_a_valid_one(seen):
    assert seen["restored"] and seen["defaults"]
    assert seen["garbage"] == [] and seen["garbageErrors"] == [] and seen["garbageTried"] > 50


def test_painting_a_mask_updates_its_certificates(seen):
    assert seen["boe"] == seen["undone"] == "✓✓✗✓" and seen["invicl"] == "✓✓✓✓" and "✗" in seen["almost"]
    assert seen["solved"][0] == "✓✓✓✓" and "Solved" in seen["solved"][1] and seen["solved"][2]
    assert "y1 → x1'" in seen["leak"][0] and seen["leak"][1:] == [True, 1]
    assert "found: 1 of 4" in seen["puzzle"] and "found: 2 of 4" in seen["puzzleEmpty"]
    assert "4 of 512" in seen["counted"] and "found: 0 of 4" in seen["puzzleAgain"]
    assert seen["unknownCells"] == ["Mask of invicl", ""]


def test_pasted_data_is_used_and_rubbish_is_not(seen):
    assert seen["rubbish"][0] == 8 and "as before" in seen["rubbish"][1]
    assert seen["pasted"][0] == 3 and "x − 2001" in seen["pasted"][1] and seen["same"]


def test_own_points_have_no_hidden_function_and_get_no_points_of_one(seen):
    assert [(n, lines) for n, lines, _ in seen["own"]] == [(3, 0), (2, 0), (3, 0), (3, 0)]
    assert not any("hidden" in legend for *_, legend in seen["own"]) and "no others" in seen["ownSays"]
    assert seen["notOwn"] == [5, 1]


def test_every_tour_step_is_accessible_and_fits_a_phone(seen):
    assert seen["axe"] == [] and seen["wide"] == [] and seen["lastStep"] == "step 8 of 8"
