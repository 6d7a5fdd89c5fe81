"""Kept results: found by what they depend on, never overwritten, never silently wrong."""

import numpy
import pytest

from minicl.checks import InputError
from minicl.store import Store


def test_a_result_is_computed_once_for_what_it_depends_on(tmp_path):
    store, asked = Store(tmp_path / "kept"), []

    def compute():
        asked.append(1)
        return {"value": len(asked)}

    assert store.get("A name", {"n": 1, "t": (1, 2)}, compute) == {"value": 1}
    assert store.get("A name", {"n": 1, "t": (1, 2)}, compute) == {"value": 1}, "read"
    assert store.get("A name", {"n": 2, "t": (1, 2)}, compute) == {"value": 2}, "another one"
    assert store.get("A name", {"n": 1, "t": (1, 2)}, compute) == {"value": 1}, "the first is still there"
    assert store.find("A name", lambda other: other["n"] == 2) == {"value": 2}
    assert store.find("A name", lambda other: other["n"] == 3) is None and store.find("B", bool) is None
    assert [f.name.startswith("a-name-") for f in store.files("A name")] == [True, True]


def test_a_name_that_begins_with_another_is_not_that_one(tmp_path):
    store = Store(tmp_path)
    store.write("linear ar 1 query 0", {"n": 1}, "long")
    assert store.files("linear ar 1") == [] and store.find("linear ar 1", bool) is None


def test_a_damaged_file_is_refused_and_kept(tmp_path):
    store = Store(tmp_path)
    store.write("a", {"n": 1}, 3)
    (file,) = store.files("a")
    file.write_text("{ torn")
    for ask in (lambda: store.find("a", bool), lambda: store.get("a", {"n": 1}, int)):
        with pytest.raises(InputError, match="restore it"):
            ask()
    assert file.read_text() == "{ torn"


def test_errors_are_a_cache(tmp_path):
    """What is damaged is computed again, and a folder that cannot be written to is no obstacle."""
    values = numpy.arange(6, dtype=numpy.float32).reshape(3, 2)

    def compute():
        return {"mean": [1, 2]}, values

    for folder in (tmp_path / "kept", "/nonexistent/kept"):
        for _ in range(2):
            result, errors = Store(folder).get_errors("a", {"n": 1}, compute)
            assert result == {"mean": [1, 2]} and numpy.array_equal(errors, values)
    for file in (tmp_path / "kept").iterdir():
        file.write_bytes(b"torn")
    assert Store(tmp_path / "kept").get_errors("a", {"n": 1}, compute)[0] == {"mean": [1, 2]}

    def fail():
        raise AssertionError("it was kept")

    assert numpy.array_equal(Store(tmp_path / "kept").get_errors("a", {"n": 1}, fail)[1], values)
